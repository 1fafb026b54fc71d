"""What is estimated from a ``DecodeOutput``: expectations over sequences."""

from decoding_jax.estimators import without_replacement

__all__ = ["without_replacement"]
