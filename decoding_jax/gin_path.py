"""Finds gin files, and the data files beside them, by name from any working directory.

``python -m decoding_jax.gin_path`` prints the folder of the library's own, which
is ``gin`` in a checkout, and inside the package in an installed wheel.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from decoding_jax.storage import local_path


def folder() -> Path:
    """Returns the folder that contains ``strategies/sample.gin`` and the other gin files.

    Example:
      >>> (folder() / "strategies" / "sample.gin").is_file()
      True
    """
    package = Path(__file__).resolve().parent
    in_wheel = package / "gin_files"
    return in_wheel if in_wheel.is_dir() else package.parent / "gin"


def find(name: str | Path, search_paths: Sequence[str] = ()) -> Path:
    """Returns the path of a file.

    The file is searched for in the working directory, then in the search paths, then in the
    library's own folder of gin files.

    Args:
      name: a path, or a path relative to one of these folders, such as ``strategies/sample.gin``.
      search_paths: folders that are searched before the library's own.

    Raises:
      ValueError: if there is no such file, in one line with the nearest names, or if ``name`` is a
        URL.

    Example:
      >>> find("strategies/sample.gin").name
      'sample.gin'
      >>> find("greedy.gin")
      Traceback (most recent call last):
      ValueError: greedy.gin: no such file; nearest: strategies/greedy.gin
    """
    local_path("path", name)
    folders = [Path(), *(Path(p) for p in search_paths), folder()]
    for path in folders:
        if (path / name).is_file():
            return path / name
    near = _nearest(str(name), folders[1:])
    hint = f"nearest: {', '.join(near)}" if near else f"looked in {', '.join(map(str, folders))}"
    raise ValueError(f"{name}: no such file; {hint}")


def _nearest(name: str, folders: Sequence[Path]) -> list[str]:
    """The paths below the folders that have the file name of ``name``, or else a similar path."""
    paths = sorted(
        str(path.relative_to(folder))
        for folder in folders
        for path in folder.glob("**/*")
        if path.is_file() and path.suffix == Path(name).suffix
    )
    same_name = [path for path in paths if Path(path).name == Path(name).name]
    return same_name or difflib.get_close_matches(name, paths, n=3, cutoff=0.6)


if __name__ == "__main__":
    print(folder())
