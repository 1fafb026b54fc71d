"""What all strategies share: the driver, the sequences, the stop conditions."""

from decoding_jax.loop.driver import Steps, check_prompt, run, stream, stream_until_done
from decoding_jax.loop.sequences import Lanes, check_lengths, empty_lanes

__all__ = [
    "Lanes",
    "Steps",
    "check_lengths",
    "check_prompt",
    "empty_lanes",
    "run",
    "stream",
    "stream_until_done",
]
