"""The strategies, compiled: ``jit`` with the model as an argument and what sets shapes static."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding_jax import strategies
from decoding_jax.ops.jit import jit

_BEAMS = ("beam_size", "num_return", "max_new_tokens", "early_stopping")

greedy = jit(strategies.greedy, ("max_new_tokens",))
sample = jit(strategies.sample, ("num_samples", "max_new_tokens"))
arithmetic_sample = jit(strategies.arithmetic_sample, ("num_samples", "points", "max_new_tokens"))
beam_search = jit(strategies.beam_search, _BEAMS)
beam_sample = jit(strategies.beam_sample, _BEAMS)
constrained_beam_search = jit(strategies.constrained_beam_search, _BEAMS)
diverse_beam_search = jit(strategies.diverse_beam_search, (*_BEAMS, "num_groups"))
stochastic_beam_search = jit(strategies.stochastic_beam_search, ("beam_size", "max_new_tokens"))
speculative_sample = jit(
    strategies.speculative_sample,
    ("num_samples", "num_draft_tokens", "num_drafts", "max_new_tokens"),
)

_SEARCH = (
    "budget",
    "num_return",
    "max_new_tokens",
    "branching",
    "frontier_size",
    "fallback",
)
best_first_search = jit(strategies.best_first_search, _SEARCH)
best_k_search = jit(strategies.best_k_search, ("k", *_SEARCH))

STRATEGIES: dict[str, Callable[..., Any]] = {
    "arithmetic_sample": arithmetic_sample,
    "beam_sample": beam_sample,
    "beam_search": beam_search,
    "best_first_search": best_first_search,
    "best_k_search": best_k_search,
    "constrained_beam_search": constrained_beam_search,
    "diverse_beam_search": diverse_beam_search,
    "greedy": greedy,
    "sample": sample,
    "speculative_sample": speculative_sample,
    "stochastic_beam_search": stochastic_beam_search,
}
