"""What a device reaches: its memory's bandwidth, and the peak of a large product."""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks.timing import interleaved


def describe() -> dict[str, Any]:
    """The device and the versions, as JSON takes them."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "memory_bytes": memory,
        "python": platform.python_version(),
        "jax": metadata.version("jax"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def reaches(quick: bool) -> dict[str, float]:
    """The bandwidth of a copy, in bytes read and written a second, and the operations a second of a
    product of square bfloat16 matrices of random numbers.

    Args:
      quick: whether the arrays are so small that they measure nothing.
    """
    numbers, size = (2**12, 64) if quick else (2**30, 8192)
    x = jnp.ones(numbers, jnp.bfloat16)
    copied = seconds_a_call(jax.jit(lambda x: -x), x)
    x, y = (jax.random.normal(key, (size, size)) for key in jax.random.split(jax.random.key(0)))
    y = (y / size**0.5).astype(jnp.bfloat16)
    product = seconds_a_call(jax.jit(lambda x: x @ y), x.astype(jnp.bfloat16))
    return {"bandwidth": 4 * numbers / copied, "product": 2 * size**3 / product}


def seconds_a_call(function: Callable[[Any], Any], x: Any, few: int = 4, many: int = 20) -> float:
    """Seconds of a call among many, each of the last one's result, without a wait between them."""

    def run(count: int) -> Callable[[], object]:
        def calls() -> None:
            y = x
            for _ in range(count):
                y = function(y)
            jax.block_until_ready(y)

        return calls

    seconds = interleaved({"few": run(few), "many": run(many)}, 7)
    pairs = zip(seconds["few"], seconds["many"], strict=True)
    # In the quick form, the difference can be less than its noise.
    return max(statistics.median(b - a for a, b in pairs) / (many - few), 1e-9)
