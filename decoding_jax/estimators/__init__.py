"""Estimators over several sequences: expectations, pass@k, choices, diversity, quality."""

from decoding_jax.estimators import (
    choice,
    diversity,
    ngrams,
    pairwise,
    pruning,
    quality,
    repeated,
    without_replacement,
)

__all__ = [
    "choice",
    "diversity",
    "ngrams",
    "pairwise",
    "pruning",
    "quality",
    "repeated",
    "without_replacement",
]
