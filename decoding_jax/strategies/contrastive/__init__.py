"""Contrastive search: probable tokens that differ from what has been said."""

from decoding_jax.strategies.contrastive.algorithm import ContrastiveInfo, contrastive_search

__all__ = ["ContrastiveInfo", "contrastive_search"]
