"""Best-first and best-k search (Xu et al. 2022): a frontier of hypotheses of all lengths."""

from decoding_jax.strategies.best_first.best_k import (
    BestFirstSearch,
    BestKSearch,
    best_first_search,
    best_k_last,
    best_k_mean,
    best_k_search,
)
from decoding_jax.strategies.best_first.priority import Decay, MeanLogProb

__all__ = [
    "BestFirstSearch",
    "BestKSearch",
    "Decay",
    "MeanLogProb",
    "best_first_search",
    "best_k_last",
    "best_k_mean",
    "best_k_search",
]
