"""The loop: one driver, stop conditions, lanes in lock step, streaming."""

from decoding_jax.loop.driver import Steps, check_prompt, run, stream
from decoding_jax.loop.lockstep import Lanes, LockstepInfo, check_lengths, grow

__all__ = [
    "Lanes",
    "LockstepInfo",
    "Steps",
    "check_lengths",
    "check_prompt",
    "grow",
    "run",
    "stream",
]
