"""The strategies, compiled: ``jit`` with the model as an argument and what sets shapes static."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding_jax import strategies
from decoding_jax.ops.jit import jit

greedy = jit(strategies.greedy, ("max_new_tokens",))
sample = jit(strategies.sample, ("num_samples", "max_new_tokens"))
arithmetic_sample = jit(strategies.arithmetic_sample, ("num_samples", "points", "max_new_tokens"))

STRATEGIES: dict[str, Callable[..., Any]] = {
    "arithmetic_sample": arithmetic_sample,
    "greedy": greedy,
    "sample": sample,
}
