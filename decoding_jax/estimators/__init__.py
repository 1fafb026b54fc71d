"""Estimators over several sequences: expectations, diversity, quality."""

from decoding_jax.estimators import diversity, quality, without_replacement

__all__ = ["diversity", "quality", "without_replacement"]
