"""Finding gin files, and the files that come with them, by name from any folder."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from decoding_jax import gin_path
from decoding_jax.models.checkpoint.files import local_path


def find(name: str | Path, search_paths: Sequence[str] = ()) -> Path:
    """The file of that name: as given, in one of the search paths, or shipped with the library.

    Args:
      name: a path, or a path below one of the folders, such as ``strategies/sample.gin``.
      search_paths: folders that go before the library's own.

    Raises:
      ValueError: in one line, with the nearest names, if there is none; and for a URL.

    Example:
      >>> find("strategies/sample.gin").name
      'sample.gin'
      >>> find("greedy.gin")
      Traceback (most recent call last):
      ValueError: greedy.gin: no such file; nearest: strategies/greedy.gin
    """
    local_path("path", name)
    folders = [Path(), *(Path(p) for p in search_paths), gin_path.folder()]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    near = _nearest(str(name), folders[1:])
    hint = f"nearest: {', '.join(near)}" if near else f"looked in {', '.join(map(str, folders))}"
    raise ValueError(f"{name}: no such file; {hint}")


def _nearest(name: str, folders: Sequence[Path]) -> list[str]:
    """The names below the folders that are most like ``name``, or that end like it."""
    names = sorted(
        str(path.relative_to(folder))
        for folder in folders
        for path in folder.glob("**/*")
        if path.is_file() and path.suffix == Path(name).suffix
    )
    same_file = [n for n in names if Path(n).name == Path(name).name]
    return same_file or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
