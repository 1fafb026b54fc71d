"""Constraints on disk, for later processes: those that took long to make.

A file has the name of all that its constraint depends on: the schema, pattern or grammar with its
settings, the texts of the tokens, and the code of the compiler. It appears when it is complete, so
processes may make the same one at a time; one that cannot be read is made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from decoding_jax import transforms
from decoding_jax.constraints.token_automata import Vocabulary
from decoding_jax.ops.jit import cache_folder
from decoding_jax.storage import publishing
from decoding_jax.transforms import PrefixAllowedTokens, languages, stack_automata

VARIABLE = "DECODING_JAX_CONSTRAINTS_DIR"
"""The environment variable that names another folder, or none if it is empty."""

_SHORT = 0.1  # seconds of compilation, up to which nothing is kept
_LANGUAGES = (transforms.CompressedAutomaton, transforms.StackAutomaton)


Made = tuple[PrefixAllowedTokens, str | None]
"""A constraint, and what there is to say about it."""


def kept(asked: Any, vocabulary: Vocabulary, make: Callable[[], Made]) -> Made:
    """A constraint from disk, or made and perhaps kept there.

    Args:
      asked: what the constraint is of, as JSON.
      vocabulary: the texts of the tokens.
      make: makes it.
    """
    folder = _folder()
    if folder is None:
        return make()
    texts = vocabulary.digest, len(vocabulary.ends), np.flatnonzero(vocabulary.ends).tolist()
    whole = json.dumps([asked, texts, _version()]).encode()
    path = folder / f"{hashlib.sha256(whole).hexdigest()[:32]}.npz"
    # What is no whole file of this kind is made again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        found, words = _read(path)
        return dataclasses.replace(found, digest=vocabulary.digest), words
    begin = time.perf_counter()
    made = make()
    if time.perf_counter() - begin > _SHORT:
        with contextlib.suppress(OSError):  # The folder cannot be written.
            folder.mkdir(parents=True, exist_ok=True)
            publishing.write_bytes(path, [_bytes_of(made)])
    return made


def _folder() -> Path | None:
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    return cache_folder("constraints")


@functools.cache
def _version() -> str:
    """A digest of the compiler, and the version of Python, whose patterns it reads."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    files += [Path(module.__file__ or "") for module in (languages, stack_automata)]
    digest = hashlib.sha256(sys.version.encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _bytes_of(both: Made) -> bytes:
    made, words = both
    language, buffer = made.language, io.BytesIO()
    arrays = {field.name: getattr(language, field.name) for field in dataclasses.fields(language)}
    first = [] if made.first is None else [made.first]
    kind = [one.__name__ for one in _LANGUAGES].index(type(language).__name__)
    of = {"of.kind": kind, "of.start": made.start, "of.first": first, "of.words": words or ""}
    np.savez_compressed(buffer, **arrays, **of)
    return buffer.getvalue()


def _read(path: Path) -> Made:
    with np.load(path, allow_pickle=False) as found:
        arrays = dict(found)
    kind, start, first, words = (
        arrays.pop(f"of.{name}") for name in ("kind", "start", "first", "words")
    )
    whole = {name: int(array) if array.ndim == 0 else array for name, array in arrays.items()}
    language = _LANGUAGES[int(kind)](**whole)
    made = PrefixAllowedTokens(
        language, start=int(start), first=int(first[0]) if len(first) else None
    )
    return made, str(words) or None
