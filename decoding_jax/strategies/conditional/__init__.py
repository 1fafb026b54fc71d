"""Independent draws from the model's texts of a language, by rejection that learns."""

from decoding_jax.strategies.conditional.conditional_sample import (
    ConditionalSample,
    conditional_sample,
)

__all__ = [
    "ConditionalSample",
    "conditional_sample",
]
