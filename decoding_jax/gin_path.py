"""The folder of the library's gin files, which ``python -m decoding_jax.gin_path`` prints.

It is the folder ``gin`` of a checkout, and part of the package where a wheel is installed.
"""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder below which ``strategies/sample.gin`` and the other files are found.

    Example:
      >>> (folder() / "strategies" / "sample.gin").is_file()
      True
    """
    package = Path(__file__).resolve().parent
    in_wheel = package / "gin_files"
    return in_wheel if in_wheel.is_dir() else package.parent / "gin"


if __name__ == "__main__":
    print(folder())
