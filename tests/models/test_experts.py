"""The products of a mixture's experts, by each of the ways of which a platform takes one."""

import jax
import numpy as np
import pytest

from decoding_jax.models import experts


@pytest.mark.parametrize("kind", ["float32", "int8", "two layers"])
def test_all_ways_multiply_each_row_by_its_expert(kind):
    """Of 5 experts one has no rows, and rows beyond the sizes are none's."""
    sizes, rows, width, features = np.array([3, 0, 70, 1, 5]), 81, 6, 4
    expert = np.repeat(np.arange(5), sizes)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, width)).astype(np.float32)
    kernel = draw.normal(size=(2, 5, width, features)).astype(np.float32)
    if kind == "int8":
        kernel = draw.integers(-127, 128, kernel.shape).astype(np.int8)
    want = np.einsum("md,mdf->mf", x[: len(expert)], kernel[1].astype(np.float32)[expert])
    given, one = sizes.astype(np.int32), kernel[1]
    layer, stack = (np.int32(1), kernel) if kind == "two layers" else (None, one)
    found = {
        "in_blocks": jax.jit(experts.in_blocks)(x, one, given),
        "ragged": jax.jit(experts.ragged)(x, one, given),
        "in_place": jax.jit(experts.in_place)(x, stack, given, layer),
    }
    for name, y in found.items():
        assert y.shape == (rows, features), name
        np.testing.assert_allclose(
            y[: len(expert)], want, rtol=2e-5, atol=2e-5 * np.abs(want).max()
        )
