"""Splash attention, interpreted, is ``attention.attend_in_blocks``, and prompts on TPUs get it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from decoding_jax import models
from decoding_jax.models import attention, attention_choice, splash
from decoding_jax.models.attention import Part, Scale
from experiments.tpu_ledger import topology


def prompts(rows, heads, groups, size, depth, **rule):
    """Queries and keys of prompts of several lengths, and which of them are real."""
    draw = np.random.default_rng(1)
    normal = lambda *shape: draw.standard_normal(shape, np.float32).astype(jnp.bfloat16)  # noqa: E731
    query = jax.device_put(normal(rows, 1, heads, groups, size, depth))
    key, value = jax.device_put(tuple(normal(2, rows, heads, size, depth)))
    real = np.arange(size) < draw.integers(size // 2, size + 1, (rows, 1))
    position = np.arange(size, dtype=np.int32)[None, None]
    mask = jax.device_put(real[:, None, None])
    return query, Part(key, value, mask, position=position, **rule), real


CASES = {
    "causal, capped": ({"least_distance": 0}, (2, 1, 2, 384, 16), 3.0),
    "window": ({"least_distance": 0, "window": 40}, (2, 2, 1, 384, 16), None),
    "encoder": ({}, (2, 2, 1, 256, 16), None),
    "encoder with windows": ({"least_distance": -9, "window": 10}, (2, 1, 1, 384, 16), None),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_attention_of_the_definition(case):
    rule, shape, cap = CASES[case]
    query, part, real = prompts(*shape, **rule)
    part = part._replace(key=jnp.where(real[:, None, :, None], part.key, jnp.nan))
    assert splash.serves(query, [part])
    wide = part._replace(key=part.key.astype("float32"), value=part.value.astype("float32"))
    scale = Scale(0.25, cap)
    run = jax.jit(lambda query: splash.attend(query, [part], scale, interpret=True))
    plain = jax.jit(lambda query: attention.attend_in_blocks(query, [wide], scale))
    got, want = run(query), np.asarray(plain(query.astype(jnp.float32)))
    assert got.dtype == jnp.bfloat16
    got = np.asarray(got, np.float32)
    assert np.isfinite(got).all()
    shown = real[:, None, None, None, :, None]
    np.testing.assert_allclose(np.where(shown, got, 0), np.where(shown, want, 0), atol=0.01)


@pytest.mark.exhaustive
def test_its_gradient_is_that_of_the_definition():
    query, part, _ = prompts(1, 1, 2, 128, 16, least_distance=0)

    def loss(attend, query, key):
        out = attend(query, [part._replace(key=key)], Scale(0.25))
        return (out.astype(jnp.float32) ** 2).sum()

    ways = (functools.partial(splash.attend, interpret=True), attention.attend_in_blocks)
    got, want = (
        jax.grad(functools.partial(loss, way), argnums=(0, 1))(query, part.key) for way in ways
    )
    for a, b in zip(got, want, strict=True):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        np.testing.assert_allclose(a, b, atol=0.02 * float(jnp.abs(b).max()))


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_each_device_has_its_own_rows_and_heads():
    query, part, _ = prompts(2, 4, 1, 128, 16, least_distance=0)
    run = jax.jit(lambda query: splash.attend(query, [part], Scale(0.25), interpret=True))
    want = run(query)
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        run = jax.jit(lambda query: splash.attend(query, [part], Scale(0.25), interpret=True))
        np.testing.assert_array_equal(run(query), want)
        assert "all-gather" not in run.lower(query).compile().as_text()


CONFIG = models.LlamaConfig(
    vocab_size=17, emb_dim=32, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=32,
    num_layers=2, max_positions=2048, dtype="bfloat16",
)  # fmt: skip


def prefill(size, **changes):
    """The program of a prefill of two rows for TPUs, where equal layers share a kernel."""
    config = dataclasses.replace(CONFIG, **changes)
    model = jax.eval_shape(lambda key: models.Llama.init(config, key), jax.random.key(0))
    shapes = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((2, size), (2,))]
    run = jax.jit(lambda model, *given: model.prefill(*given, lanes=1, slots=8))
    return run.trace(model, *shapes).lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize(
    ("size", "changes", "kernels"),
    [
        (1024, {}, 1),
        (1024, {"scan_layers": True}, 1),
        (1024, {"window": 100, "window_pattern": (True, False)}, 2),
        (1024, {"attention": "xla"}, 0),
        (128, {}, 0),
        (128, {"attention": "pallas"}, 1),
        (1000, {}, 0),
        (1024, {"dtype": "float32"}, 0),
        (1024, {"prefill_chunk": 256}, 0),
        (1024, {"window": 9, "window_pattern": (True, False), "scan_layers": True}, 0),
    ],
)
def test_long_prompts_on_tpus_get_it(size, changes, kernels):
    assert prefill(size, **changes).count("@tpu_custom_call") == kernels


@pytest.mark.exhaustive
@pytest.mark.skipif(not topology.is_installed(), reason="libtpu is not installed (extra tpu)")
@pytest.mark.parametrize("depth", [64, pytest.param(128, marks=pytest.mark.exhaustive)])
def test_it_compiles_for_tpus(depth):
    """On a mesh, a chip has its own rows and heads, and exchanges nothing."""
    mesh = topology.mesh("v5e:2x4", (2, 4))
    place = NamedSharding(mesh, PartitionSpec("data"))
    shapes = [(2, 1, 8, 4, 4096, depth), (2, 8, 4096, depth), (2, 8, 4096, depth)]
    given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place) for shape in shapes]
    real = jax.ShapeDtypeStruct((2, 1, 1, 4096), jnp.bool_, sharding=place)

    def run(query, key, value, real):
        position = np.arange(4096, dtype=np.int32)[None, None]
        part = Part(key, value, real, position=position, least_distance=0, window=1500)
        return attention_choice.attend(query, [part], depth**-0.5, 50.0)

    with jax.set_mesh(mesh):
        lowered = jax.jit(run).lower(*given, real)
    text = topology.compile_for(lowered, topology.CHEAP).as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 1
    assert "while(" not in text
    assert f"bf16[2,4,4096,{depth}]" in text  # a row and two key-value heads of a chip
    assert not any(f" {kind}(" in text for kind in ("all-reduce", "all-to-all"))
