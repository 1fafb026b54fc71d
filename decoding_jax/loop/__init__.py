"""Code that all strategies share: the driver, the sequences, the stop conditions."""

from decoding_jax.loop.inputs import check_prompt
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
)
from decoding_jax.loop.strategy import Strategy, as_function, run
from decoding_jax.loop.streaming import Progress, stream, stream_progress

__all__ = [
    "Progress",
    "Sequences",
    "Strategy",
    "append_token",
    "as_function",
    "check_lengths",
    "check_prompt",
    "empty_sequences",
    "run",
    "stream",
    "stream_progress",
]
