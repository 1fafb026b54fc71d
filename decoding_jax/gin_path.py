"""Finds the folder of the library's gin files; ``python -m decoding_jax.gin_path`` prints it.

In a checkout it is the folder ``gin``. In an installed wheel it is inside the package.
"""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """Returns the folder that contains ``strategies/sample.gin`` and the other gin files.

    Example:
      >>> (folder() / "strategies" / "sample.gin").is_file()
      True
    """
    package = Path(__file__).resolve().parent
    in_wheel = package / "gin_files"
    return in_wheel if in_wheel.is_dir() else package.parent / "gin"


if __name__ == "__main__":
    print(folder())
