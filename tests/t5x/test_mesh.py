"""T5X's mesh is in context while T5X traces a native model."""

import warnings

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from machine import need_devices

from decoding_jax.models import GPT2, GPT2Config
from decoding_jax.sharding.meshes import axis_size
from decoding_jax.t5x.mesh import current_mesh, on_mesh, on_t5x_mesh


@pytest.fixture
def mesh():
    """A mesh entered as T5X enters its own."""
    need_devices(8)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            yield mesh


def draft(num_heads):
    config = GPT2Config(vocab_size=8, emb_dim=12, num_heads=num_heads, mlp_dim=8, num_layers=1)
    abstract = jax.eval_shape(lambda: GPT2.init(config, jax.random.key(0)))
    return jax.tree.map(lambda x: jax.device_put(np.ones(x.shape, np.float32)), abstract)


def test_axes_are_seen_inside_only(mesh):
    sizes = on_t5x_mesh(lambda: (axis_size("data"), axis_size("model")))
    assert current_mesh() == mesh
    assert sizes() == (2, 4)
    assert axis_size("data") is None


def test_without_a_mesh():
    assert current_mesh() is None
    assert on_t5x_mesh(lambda: axis_size("data"))() is None
    model = draft(4)
    assert on_mesh(model) is model


def test_a_draft_is_sharded_inside_of_a_trace(mesh, caplog):
    found, drafts = {}, {heads: draft(heads) for heads in (4, 3)}

    @jax.jit
    def predict(x):
        for heads, model in drafts.items():
            found[heads] = on_mesh(model).params["layers_0"]["mlp"]["up"]["kernel"]
        return x

    jax.eval_shape(predict, 1.0)
    assert found[4].sharding.spec == jax.P(None, "model")
    assert found[3].sharding.is_fully_replicated
    assert "copied to every device: mesh: expected a divisor of num_heads = 3, got model=4" in (
        caplog.text
    )
