"""What a test needs of the machine that it runs on."""

import jax
import pytest


def need_devices(count: int) -> None:
    """Skips the test that runs where JAX has fewer devices; a CPU has eight in the tests."""
    if jax.device_count() < count:
        pytest.skip(f"needs {count} devices, and there are {jax.device_count()}")
