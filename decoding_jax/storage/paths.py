"""What a path or a URL names: files on disks, in buckets, and models of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from decoding_jax import fields
from decoding_jax.storage.cloud_path import SCHEMES, CloudPath, StorageError

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
      ValueError: output_dir: expected a local path, or a URL of gs, s3 or memory, got 'ftp://host/out'
    """
    match = _url(path)
    if match is None:
        return Path(str(path))
    scheme, key = match[1].lower(), match[2].strip("/")
    if scheme not in SCHEMES or not key:
        raise ValueError(
            f"{name}: expected a local path, or a URL of {', '.join(SCHEMES[:-1])} or"
            f" {SCHEMES[-1]}, got {str(path)!r}"
        )
    return CloudPath(f"{scheme}://{key}")


def read_text(name: str, path: str | StoragePath) -> str:
    """Returns the text of a file in UTF-8.

    Args:
      name: the argument's name, for the error.
      path: as for ``storage_path``.

    Raises:
      ValueError: in one line, for a file that cannot be read.

    Example:
      >>> read_text("grammar", "nowhere.lark")
      Traceback (most recent call last):
      ValueError: grammar: expected a text file, got 'nowhere.lark' (No such file or directory)
    """
    try:
        return storage_path(name, path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        expected, got = "a text file", fields.describe(str(path))
        raise ValueError(f"{name}: expected {expected}, got {got} ({reason})") from None


def local_path(name: str, path: str | Path) -> Path:
    """Returns a local path.

    Raises:
      ValueError: for a path with a scheme, such as ``gs://bucket/out``.

    Example:
      >>> local_path("gin_file", "gs://bucket/own.gin")
      Traceback (most recent call last):
      ValueError: gin_file: expected a local path, got 'gs://bucket/own.gin'
    """
    if _url(path):
        raise ValueError(f"{name}: expected a local path, got {str(path)!r}")
    return Path(path)


def _url(path: str | StoragePath) -> re.Match[str] | None:
    return re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", str(path), re.DOTALL)


WEIGHTS = "*.safetensors"
TEMPLATES = "*.jinja"
OTHERS = ("*.json", "*.model", TEMPLATES, "*.spm", "merges.txt")
"""The files of a model that are read here: settings, tokenizers and templates of chats.

Only templates are in folders too: those of ``additional_chat_templates``."""

_SCHEME = re.compile("hf:/+")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(text: str) -> bool:
    """Whether a text may be the name of a model of the Hub.

    Example:
      >>> is_hub_name("gpt2"), is_hub_name("Qwen/Qwen3-0.6B"), is_hub_name("./a/b")
      (True, True, False)
    """
    return _NAME.fullmatch(text) is not None


def model_path(name: str, path: str | StoragePath, *, weights: bool = True) -> StoragePath:
    """Returns the path of a model: ``storage_path``, or the local copy of a model of the Hub.

    A model is downloaded into the cache of ``huggingface_hub`` unless it is there already.

    Args:
      name: the argument's name, for the error.
      path: as for ``storage_path``; or ``hf://organisation/model``, with ``@revision`` after it for
        another revision than the newest.
      weights: whether the weights are downloaded too.

    Raises:
      ValueError: in one line, for a URL of another form, without ``huggingface_hub``, and for a
        model that cannot be downloaded.

    Example:
      >>> model_path("directory", "hf://a/b/c")
      Traceback (most recent call last):
      ValueError: directory: expected hf://organisation/model, or with @revision, got 'hf://a/b/c'
    """
    url = str(path)
    if not (scheme := _SCHEME.match(url)):
        return storage_path(name, path)
    repository, _, revision = url[scheme.end() :].strip("/").partition("@")
    if not is_hub_name(repository):
        raise ValueError(
            f"{name}: expected hf://organisation/model, or with @revision, got {url!r}"
        )
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{name}: got {url!r}; needs pip install huggingface_hub") from None
    try:
        found = huggingface_hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[*OTHERS, *([WEIGHTS] if weights else [])],
            ignore_patterns=[f"*/{name}" for name in (*OTHERS, WEIGHTS) if name != TEMPLATES],
        )
    except Exception as error:  # Its exceptions have no common base.
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name}: got {url!r}, which cannot be downloaded ({cause})") from error
    return Path(found)


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
        raise StorageError(f"{folder}: expected a local path, or a URL of gs or s3, for arrays")
    bucket, _, path = folder.key.partition("/")
    found = {"driver": _DRIVERS[folder.scheme], "bucket": bucket, "path": f"{path}/"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if folder.scheme == "s3" and endpoint:  # S3 of another provider.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        found |= {"endpoint": endpoint, "aws_region": region}
    return found
