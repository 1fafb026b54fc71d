"""Batches of rows: inputs of any number, decoded a batch at a time, by any strategy.

A ``RowDecoder`` takes the tokens of inputs and gives the sequences of each. Where the strategy and
the model allow it, an input that has ended makes room for the next one.
"""

from decoding_jax.batches.decoder import RowDecoder
from decoding_jax.batches.refilled import RowSteps
from decoding_jax.batches.row_inputs import (
    bind_drafter,
    check_drafter,
    encode_batch,
    pad_tokens,
    read_drafter,
)

__all__ = [
    "RowDecoder",
    "RowSteps",
    "bind_drafter",
    "check_drafter",
    "encode_batch",
    "pad_tokens",
    "read_drafter",
]
