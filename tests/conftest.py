"""Strict settings for every test: no silent promotion of ranks; eight devices on the CPU."""

import gc
import os
from collections.abc import Iterator

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="module")
def fresh_programs() -> Iterator[None]:
    """Drops each file's compiled programs: they map memory, of which a process has so many pieces.

    Linux allows 65,530 mappings (``vm.max_map_count``); beyond them XLA's CPU compiler crashes.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def default_keys() -> Iterator[None]:
    """T5X sets the process's default kind of keys; no test is to find what another has set."""
    before = jax.config.jax_default_prng_impl
    yield
    jax.config.update("jax_default_prng_impl", before)
