"""Code that all strategies share: the driver, the sequences, the stop conditions."""

from decoding_jax.loop.builders import (
    Static,
    Steps,
    drafted_sampler,
    sampler,
    search,
    strategy_of,
)
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
    "Static",
    "Steps",
    "Strategy",
    "append_token",
    "as_function",
    "check_lengths",
    "check_prompt",
    "drafted_sampler",
    "empty_sequences",
    "run",
    "sampler",
    "search",
    "strategy_of",
    "stream",
    "stream_progress",
]
