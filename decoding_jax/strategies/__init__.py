"""Strategies, one algorithm a file, as plain functions of a model and a prompt.

These are the undecorated functions, for use under a ``jit`` of one's own; ``decoding_jax`` has the
compiled ones. Each file also has ``steps``, which takes its strategy apart for streaming.
"""

from decoding_jax.strategies.arithmetic import arithmetic_sample
from decoding_jax.strategies.greedy import greedy
from decoding_jax.strategies.sampling import sample

__all__ = ["arithmetic_sample", "greedy", "sample"]
