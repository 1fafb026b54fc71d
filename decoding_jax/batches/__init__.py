"""Batches of rows: inputs of any number, decoded a batch at a time, by any strategy.

A ``RowDecoder`` takes the tokens of inputs and gives the sequences of each. Where the strategy and
the model allow it, an input that has ended makes room for the next one.
"""

from decoding_jax.batches.call import Call, Limits, parse, read_drafter
from decoding_jax.batches.decoder import RowDecoder
from decoding_jax.batches.encode import bind_drafter, encode_batch, pad_tokens
from decoding_jax.batches.refilled import RowSteps

__all__ = [
    "Call",
    "Limits",
    "RowDecoder",
    "RowSteps",
    "bind_drafter",
    "encode_batch",
    "pad_tokens",
    "parse",
    "read_drafter",
]
