"""Models of the Hugging Face Hub, as directories of its local cache."""

from __future__ import annotations

import re
from pathlib import Path

from decoding_jax.storage.paths import StoragePath, storage_path

WEIGHTS = "*.safetensors"
OTHERS = ("*.json", "*.model", "*.jinja", "*.spm", "merges.txt")
"""The files of a model that are read here: settings, tokenizers and templates of chats."""

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
      ValueError: directory: got 'hf://a/b/c'; takes hf://organisation/model, or with @revision
    """
    url = str(path)
    if not (scheme := _SCHEME.match(url)):
        return storage_path(name, path)
    repository, _, revision = url[scheme.end() :].strip("/").partition("@")
    if not is_hub_name(repository):
        raise ValueError(f"{name}: got {url!r}; takes hf://organisation/model, or with @revision")
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{name}: got {url!r}; needs pip install huggingface_hub") from None
    try:
        found = huggingface_hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[*OTHERS, *([WEIGHTS] if weights else [])],
            ignore_patterns=["*/*"],
        )
    except Exception as error:  # Its exceptions have no common base.
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name}: got {url!r}, which cannot be downloaded ({cause})") from error
    return Path(found)
