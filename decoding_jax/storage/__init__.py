"""Files on disks and in buckets: the only layer that knows where a file is kept.

``storage_path`` turns a path or a URL such as ``gs://bucket/out`` into an object with the methods
of ``pathlib.Path`` that the library uses, and ``model_path`` a model of the Hugging Face Hub too.
``write`` and ``create`` publish whole files on both.
"""

from decoding_jax.storage.cloud_path import CloudPath, StorageError
from decoding_jax.storage.paths import (
    StoragePath,
    is_hub_name,
    kvstore,
    local_path,
    model_path,
    read_text,
    storage_path,
)
from decoding_jax.storage.publishing import create, local_copy, write, write_bytes

__all__ = [
    "CloudPath",
    "StorageError",
    "StoragePath",
    "create",
    "is_hub_name",
    "kvstore",
    "local_copy",
    "local_path",
    "model_path",
    "read_text",
    "storage_path",
    "write",
    "write_bytes",
]
