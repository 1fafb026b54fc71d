"""Code that all strategies share: the driver, the sequences, the stop conditions."""

from decoding_jax.loop.builders import (
    Static,
    StaticNumber,
    Steps,
    drafted_sampler,
    sampler,
    search,
    static_argnames,
    static_numbers,
    steps_of,
)
from decoding_jax.loop.driver import check_prompt, run
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
)
from decoding_jax.loop.strategy import Strategy, as_function
from decoding_jax.loop.streaming import Progress, stream, stream_progress

__all__ = [
    "Progress",
    "Sequences",
    "Static",
    "StaticNumber",
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
    "static_argnames",
    "static_numbers",
    "steps_of",
    "stream",
    "stream_progress",
]
