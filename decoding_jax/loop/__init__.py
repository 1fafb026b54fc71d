"""Code that all strategies share: the driver, the sequences, the stop conditions."""

from decoding_jax.loop.driver import Steps, check_prompt, run
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
)
from decoding_jax.loop.strategy import (
    Static,
    StaticNumber,
    drafted_sampler,
    sampler,
    search,
    static_argnames,
    static_numbers,
    steps_of,
)
from decoding_jax.loop.streaming import Progress, stream, stream_progress

__all__ = [
    "Progress",
    "Sequences",
    "Static",
    "StaticNumber",
    "Steps",
    "append_token",
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
