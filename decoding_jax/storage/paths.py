"""Tells paths on disks from URLs of buckets."""

from __future__ import annotations

import re
from pathlib import Path

from decoding_jax.storage.cloud_path import SCHEMES, CloudPath

StoragePath = Path | CloudPath


def storage_path(name: str, path: str | StoragePath) -> StoragePath:
    """Returns a local path, or a path in a bucket.

    Args:
      name: the argument's name, for the error.
      path: a local path, or a URL: ``gs://`` (Google Cloud Storage), ``s3://`` (S3) or, to try
        something out within one process, ``memory://``. ``pathlib`` writes ``gs://bucket`` as
        ``gs:/bucket``, so a scheme is recognized with one slash as well.

    Raises:
      ValueError: for a URL of another scheme, or one that names no bucket.

    Example:
      >>> storage_path("output_dir", "gs://bucket/out/")
      CloudPath(url='gs://bucket/out')
      >>> storage_path("output_dir", "ftp://host/out")
      Traceback (most recent call last):
      ValueError: output_dir: got 'ftp://host/out'; takes a local path, or a URL of gs, s3 or memory
    """
    match = _url(path)
    if match is None:
        return Path(str(path))
    scheme, key = match[1].lower(), match[2].strip("/")
    if scheme not in SCHEMES or not key:
        raise ValueError(
            f"{name}: got {str(path)!r}; takes a local path, or a URL of "
            f"{', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}"
        )
    return CloudPath(f"{scheme}://{key}")


def local_path(name: str, path: str | Path) -> Path:
    """Returns a local path.

    Raises:
      ValueError: for a path with a scheme, such as ``gs://bucket/out``.

    Example:
      >>> local_path("gin_file", "gs://bucket/own.gin")
      Traceback (most recent call last):
      ValueError: gin_file: got 'gs://bucket/own.gin'; takes a local path
    """
    if _url(path):
        raise ValueError(f"{name}: got {str(path)!r}; takes a local path")
    return Path(path)


def _url(path: str | StoragePath) -> re.Match[str] | None:
    return re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", str(path), re.DOTALL)
