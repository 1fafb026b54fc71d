"""Two-level top-k equals ``lax.top_k``, indices included, and does not move sharded rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from decoding_jax.ops.top_k import top_k

pytestmark = pytest.mark.optimized


compiled = jax.jit(top_k, static_argnums=1)


@pytest.mark.parametrize("size", [5, 640, 641, 9999])
@pytest.mark.parametrize("kind", ["normal", "ties", "mostly banned", "all banned"])
def test_equal_to_lax(size, kind):
    draw = np.random.default_rng(size)
    values = draw.standard_normal((3, size), np.float32)
    if kind == "ties":
        values = np.abs(np.round(values))  # no -0.0, which XLA puts below 0.0
    if kind == "mostly banned":
        values[draw.random(values.shape) >= 3 / size] = -np.inf
    if kind == "all banned":
        values = np.full_like(values, -np.inf)
    for k in (1, 5):
        got, want = compiled(values, k), lax.top_k(values, k)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.exhaustive
def test_leading_axes_and_vmap():
    values = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 700), np.float32))
    want = lax.top_k(values, 4)[1]
    np.testing.assert_array_equal(top_k(values, 4)[1], want)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(lambda row: top_k(row, 4)[1]))(values), want)


def test_sharded_rows_stay_where_they_are():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    values = np.random.default_rng(0).standard_normal((8, 5000), np.float32)
    spread = jax.device_put(values, rows)
    run = jax.jit(lambda x: top_k(x * 2, 4))
    with jax.set_mesh(mesh):
        program = run.lower(spread).compile().as_text()
    assert not [line for line in program.splitlines() if "all-gather" in line]
    np.testing.assert_array_equal(run(spread)[1], lax.top_k(values, 4)[1])


@pytest.mark.parametrize("k", [0, 6])
def test_a_bad_k_is_refused(k):
    with pytest.raises(
        ValueError, match=f"^k: expected 1 to 5, the size of the last axis, got {k}$"
    ):
        top_k(jnp.arange(5.0), k)
