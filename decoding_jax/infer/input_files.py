"""Finds the files of inputs that a path, a pattern such as ``data/*.jsonl``, or a list names."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from decoding_jax.infer import files
from decoding_jax.storage import CloudPath, StoragePath, storage_path
from decoding_jax.text.inputs import unicode_fault

Paths = str | StoragePath | Sequence[str | StoragePath]
"""A path, a URL, a pattern of either, or a list of these."""

_SHOWN = 3  # names in an error


class InputFile(NamedTuple):
    """A file of inputs.

    Attributes:
      path: where it is.
      name: its name in records; None for the one file of a job whose path is no pattern.
    """

    path: StoragePath
    name: str | None


def find(paths: Paths) -> list[InputFile]:
    """Returns files of inputs: those of a list in its order, and those of a pattern sorted.

    A path that exists is no pattern, whatever characters it has.

    Raises:
      ValueError: if a path is not that of a file, a pattern matches none, a list is empty, or a
        file is named twice; the message is one line.

    Example:
      >>> folder = CloudPath("memory://examples/found")
      >>> for name in ("b.txt", "a.txt", "c.csv"):
      ...     (folder / name).write_bytes(b"Hello.")
      >>> [file.name for file in find("memory://examples/found/*.txt")]
      ['memory://examples/found/a.txt', 'memory://examples/found/b.txt']
    """
    if isinstance(paths, (str, Path, CloudPath)):
        matching = _matching(paths)
        if matching is None:
            return [InputFile(files.find_inputs(paths), None)]
        return [InputFile(path, _checked(str(path))) for path in matching]
    if not isinstance(paths, Sequence) or not all(
        isinstance(path, (str, Path, CloudPath)) for path in paths
    ):
        raise ValueError(f"path: got {paths!r}; takes a path, a pattern, or a list of these")
    found: dict[str, StoragePath] = {}
    for path in paths:
        matching = _matching(path)
        of_path = [(str(path), files.find_inputs(path))] if matching is None else []
        for name, file in of_path or [(str(file), file) for file in matching or ()]:
            if name in found:
                raise ValueError(f"path: got {name!r} twice; takes each file once")
            found[_checked(name)] = file
    if not found:
        raise ValueError("path: got an empty list; takes at least one file")
    return [InputFile(file, name) for name, file in found.items()]


def _checked(name: str) -> str:
    """Checks that the name of a file can be written to records, and returns it."""
    if unicode_fault(name) is not None:
        raise ValueError(f"path: got {name!r}; takes names of files in UTF-8")
    return name


def _matching(pattern: str | StoragePath) -> Sequence[StoragePath] | None:
    """The files that match a pattern, sorted; None for a path that is no pattern."""
    text = str(pattern)
    if not glob.has_magic(text):
        return None
    path = storage_path("path", pattern)
    if path.is_file():
        return None
    if isinstance(path, CloudPath):
        found: Sequence[StoragePath] = path.matches()
    else:
        found = sorted(p for name in glob.glob(text, recursive=True) if (p := Path(name)).is_file())
    if not found:
        raise ValueError(f"path: got {text!r}, which matches no file{_beside(path)}")
    return found


def _beside(pattern: StoragePath) -> str:
    """What is in the folder of a pattern, for the error if nothing matches."""
    folder = pattern.parent
    while glob.has_magic(str(folder)):
        if isinstance(folder, CloudPath) and "/" not in folder.key.strip("/"):
            return ""  # A pattern of buckets.
        folder = folder.parent
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return f"; the folder {str(folder)!r} is empty or missing"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"; the folder {str(folder)!r} has {', '.join(names[:_SHOWN])}{more}"
