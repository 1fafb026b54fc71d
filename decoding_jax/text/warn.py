"""Warnings that name the line of the caller's code."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside of this package, once for each text and line.

    Args:
      message: one line.
      category: the category, by which the warning can be turned off.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
