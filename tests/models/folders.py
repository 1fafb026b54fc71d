"""Changed copies of the fixtures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from families import FIXTURES


def copy(family: str, to: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / family, to / family))


def edit(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> None:
    """Changes ``config.json``."""
    path = directory / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if k not in remove}))


def change(directory: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Changes the tensors."""
    path = directory / "model.safetensors"
    tensors = {k: v.copy() for k, v in safetensors.numpy.load_file(path).items()}
    change(tensors)
    safetensors.numpy.save_file(tensors, path)
