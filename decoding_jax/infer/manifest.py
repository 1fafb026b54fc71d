"""What makes a job the same job: ``job.json`` in its output directory."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from decoding_jax.infer import shards
from decoding_jax.infer.sources import Item
from decoding_jax.text import Tokenizer

FILE = "job.json"
_PROBE = "The quick brown fox, 0123456789! Größe, ça où; Привет, 你好, مرحبا.\n\t<pad></s>"


def count_and_digest(source: Iterable[Item]) -> tuple[int, str]:
    """How many items a source has, and a digest of all of them in their order.

    Example:
      >>> count, digest = count_and_digest([Item("one"), Item("", "empty")])
      >>> count, digest[:8]
      (2, '7bf20e99')
    """
    digest, count = hashlib.sha256(), 0
    for item in source:
        digest.update(json.dumps(item).encode() + b"\n")
        count += 1
    return count, digest.hexdigest()


def model_digest(model: Any) -> str:
    """A digest of a model's weights and settings, whatever files they came from."""
    leaves, structure = jax.tree.flatten(model)
    digest = hashlib.sha256(_stable(str(structure)).encode())
    for leaf in leaves:
        if callable(leaf):
            digest.update(_name_of(leaf).encode())
        else:
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A digest of what a tokenizer makes of a line with some of everything."""
    try:
        seen: list[Any] = [int(i) for i in tokenizer.encode(_PROBE)]
    except Exception as e:  # one that takes no such text is told apart by what it says
        seen = [str(e)]
    ends = [int(i) for i in tokenizer.eos_ids]
    return hashlib.sha256(json.dumps([seen, ends]).encode()).hexdigest()


def describe_strategy(strategy: Callable[..., Any]) -> str:
    """A strategy's name and the settings bound to it by ``functools.partial``.

    Example:
      >>> import decoding_jax
      >>> describe_strategy(functools.partial(decoding_jax.sample, num_samples=2))
      'decoding_jax.strategies.sampling.sample(num_samples=2)'
    """
    if isinstance(strategy, functools.partial):
        settings = ", ".join(f"{k}={v!r}" for k, v in sorted(strategy.keywords.items()))
        return _stable(f"{describe_strategy(strategy.func)}({settings})")
    return _name_of(strategy)


def claim(directory: Path, manifest: dict[str, Any]) -> None:
    """Makes the directory this job's, or sees that it already is.

    Raises:
      ValueError: in one line, if it belongs to another job or holds something else.
    """
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"output_dir: {directory} is a file; takes a directory")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    manifest = json.loads(json.dumps(manifest))
    if path.exists():
        found = _read(path)
        different = [k for k in {**manifest, **found} if manifest.get(k) != found.get(k)]
        if different:
            raise ValueError(
                f"output_dir: {directory} belongs to another job (not the same: "
                f"{', '.join(different)}); takes an empty directory or this job's own"
            )
        return
    # A job killed before its manifest was in place leaves at most a temporary file.
    others = sorted(p.name for p in directory.iterdir() if not re.fullmatch(r"\..*\.tmp", p.name))
    if others:
        raise ValueError(
            f"output_dir: {directory} holds {others[0]} but no {FILE}; takes an empty directory "
            "or this job's own"
        )
    shards.write(path, [json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"output_dir: {path} is not JSON: {e}") from e
    return found if isinstance(found, dict) else {"": found}


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{module}.{name}"


def _stable(text: str) -> str:
    """Without memory addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)
