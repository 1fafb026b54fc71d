"""Estimators over several sequences: expectations, pass@k, choices, diversity, quality."""

from decoding_jax.estimators import (
    choice,
    confidence,
    control_variates,
    diversity,
    ngrams,
    pairwise,
    pruning,
    quality,
    repeated,
    watermarks,
    without_replacement,
)

__all__ = [
    "choice",
    "confidence",
    "control_variates",
    "diversity",
    "ngrams",
    "pairwise",
    "pruning",
    "quality",
    "repeated",
    "watermarks",
    "without_replacement",
]
