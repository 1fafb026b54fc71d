"""What a TPU runs to write lanes at slots of their own gives the bits of a scatter."""

import jax
import ml_dtypes
import numpy as np
import pytest

from decoding_jax.models.caches import select_slots, write
from decoding_jax.testing import same_bits

B, W, N, H, S, T, D = 3, 2, 2, 2, 7, 3, 4
# In order, past the end, before the first slot, and wholly outside.
START = np.array([[0, 4], [5, 6], [-1, 9]], np.int32)


def random(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("layer", [None, 1])
def test_slots_are_selected_as_they_are_scattered(layer):
    stack = () if layer is None else (N,)
    slots = random(B, W, *stack, H, S, D, seed=0)
    new = random(B, W, H, T, D, seed=1)
    new[0, 0, 0, 1] = np.nan
    layer = None if layer is None else np.int32(layer)
    got = jax.jit(select_slots)(slots, new, START, layer)
    assert same_bits(got, jax.jit(write)(slots, new, START, layer))
    assert not same_bits(got, slots)
