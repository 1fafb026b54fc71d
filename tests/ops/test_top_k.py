"""Two-level top-k equals ``lax.top_k``, indices included, and does not move sharded rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from decoding_jax.ops.top_k import top_k

pytestmark = pytest.mark.optimized


@pytest.mark.parametrize("size", [5, 640, 641, 9999])
@pytest.mark.parametrize("kind", ["normal", "ties", "mostly banned", "all banned"])
def test_equal_to_lax(size, kind):
    values = jax.random.normal(jax.random.key(size), (3, size))
    if kind == "ties":
        values = jnp.abs(jnp.round(values))  # no -0.0, which XLA puts below 0.0
    if kind == "mostly banned":
        keep = jax.random.uniform(jax.random.key(1), values.shape) < 3 / size
        values = jnp.where(keep, values, -jnp.inf)
    if kind == "all banned":
        values = jnp.full_like(values, -jnp.inf)
    for k in (1, 5):
        got, want = top_k(values, k), lax.top_k(values, k)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.exhaustive
def test_leading_axes_and_vmap():
    values = jax.random.normal(jax.random.key(0), (2, 3, 700))
    want = lax.top_k(values, 4)[1]
    np.testing.assert_array_equal(top_k(values, 4)[1], want)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(lambda row: top_k(row, 4)[1]))(values), want)


def test_sharded_rows_stay_where_they_are():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    values = jax.random.normal(jax.random.key(0), (8, 5000))
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
