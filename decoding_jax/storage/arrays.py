"""Where ``tensorstore`` finds arrays: it reads buckets by drivers of its own."""

from __future__ import annotations

import os
from typing import Any

from decoding_jax.storage.cloud_path import CloudPath, StorageError
from decoding_jax.storage.paths import StoragePath

_DRIVERS = {"gs": "gcs", "s3": "s3"}


def kvstore(folder: StoragePath) -> dict[str, Any]:
    """Returns the key-value store of a folder, as ``tensorstore`` takes it.

    Raises:
      StorageError: if ``tensorstore`` has no driver for the scheme of the folder.

    Example:
      >>> kvstore(CloudPath("gs://bucket/checkpoint_1/state"))
      {'driver': 'gcs', 'bucket': 'bucket', 'path': 'checkpoint_1/state/'}
    """
    if not isinstance(folder, CloudPath):
        return {"driver": "file", "path": f"{folder.absolute()}/"}
    if folder.scheme not in _DRIVERS:
        raise StorageError(f"{folder}: holds arrays; takes a local path, or a URL of gs or s3")
    bucket, _, path = folder.key.partition("/")
    found = {"driver": _DRIVERS[folder.scheme], "bucket": bucket, "path": f"{path}/"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if folder.scheme == "s3" and endpoint:  # S3 of another provider.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        found |= {"endpoint": endpoint, "aws_region": region}
    return found
