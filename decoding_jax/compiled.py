"""The strategies, compiled: ``jit`` with the model as an argument and what sets shapes static."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding_jax import strategies
from decoding_jax.ops.jit import jit

greedy = jit(strategies.greedy, ("max_new_tokens",))
sample = jit(strategies.sample, ("num_samples", "max_new_tokens"))
arithmetic_sample = jit(strategies.arithmetic_sample, ("num_samples", "points", "max_new_tokens"))
beam_search = jit(
    strategies.beam_search, ("beam_size", "num_return", "max_new_tokens", "early_stopping")
)

STRATEGIES: dict[str, Callable[..., Any]] = {
    "arithmetic_sample": arithmetic_sample,
    "beam_search": beam_search,
    "greedy": greedy,
    "sample": sample,
}
