"""T5X model classes that decode with this library's networks. Importing them requires T5X."""

from decoding_jax.t5x.models.native import (
    NativeDecoderOnlyModel,
    NativeEncoderDecoderModel,
    as_native,
)
from decoding_jax.t5x.models.speculative import (
    SpeculativeDecoderOnlyModel,
    SpeculativeEncoderDecoderModel,
    as_speculative,
)

__all__ = [
    "NativeDecoderOnlyModel",
    "NativeEncoderDecoderModel",
    "SpeculativeDecoderOnlyModel",
    "SpeculativeEncoderDecoderModel",
    "as_native",
    "as_speculative",
]
