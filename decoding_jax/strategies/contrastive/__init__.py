"""Contrastive search: probable tokens whose hidden states differ from those of earlier tokens."""

from decoding_jax.strategies.contrastive.contrastive_search import (
    ContrastiveInfo,
    ContrastiveSearch,
    contrastive_search,
)

__all__ = ["ContrastiveInfo", "ContrastiveSearch", "contrastive_search"]
