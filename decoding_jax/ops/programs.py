"""The folder on disk in which commands keep compiled programs."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_programs() -> None:
    """Keeps compiled programs on disk for the next process, unless JAX is told where to.

    It is called before anything is compiled.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # There is no home directory.
        return
    jax.config.update("jax_compilation_cache_dir", str(home / "decoding_jax" / "programs"))
