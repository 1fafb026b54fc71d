"""Checkpoints are read straight into the shards of a mesh, with layers stacked or not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from machine import need_devices

from decoding_jax import sharding
from decoding_jax.models import (
    GPT2,
    T5,
    GPT2Config,
    Llama,
    LlamaConfig,
    T5Config,
    load_model,
    save_model,
    save_t5x,
)
from decoding_jax.models.checkpoint.directory import Tensors
from decoding_jax.models.stack import with_scanned_layers, with_separate_layers

MODELS = {
    "llama": (
        Llama,
        LlamaConfig(
            vocab_size=24, emb_dim=8, num_heads=4, num_kv_heads=2, head_dim=2, mlp_dim=12,
            num_layers=2, max_positions=32, qkv_bias=True,
        ),
    ),
    "gpt2": (
        GPT2,
        GPT2Config(
            vocab_size=24, emb_dim=8, num_heads=4, mlp_dim=12, num_layers=2, max_positions=4
        ),
    ),
    "t5": (
        T5,
        T5Config(
            vocab_size=24, emb_dim=8, num_heads=4, head_dim=2, mlp_dim=12, num_encoder_layers=2,
            num_decoder_layers=3, mlp_activations=("gelu", "linear"),
        ),
    ),
}  # fmt: skip


def random_model(name):
    """A model with random parameters, drawn without compiling its initialisation."""
    kind, config = MODELS[name]
    abstract = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), abstract)


def mesh():
    return jax.make_mesh((2, 4), ("data", "model"))


def check_equal(found, expected):
    assert found.config == expected.config
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_into_its_shards(name, scan_layers, tmp_path):
    model = random_model(name)
    save_model(model, tmp_path)
    found = load_model(tmp_path, mesh=mesh(), scan_layers=scan_layers)
    if scan_layers:
        model = with_scanned_layers(model)
    expected = sharding.shard(model, mesh())
    if name == "llama":
        assert expected.config.num_kv_heads == 4  # two heads, each of them twice
    check_equal(found, dataclasses.replace(expected, config=found.config))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.sharding == y.sharding


def test_no_tensor_is_read_whole(tmp_path, monkeypatch):
    save_model(random_model("gpt2"), tmp_path)
    largest = 0
    slices = Tensors.slices

    class Counted:
        def __init__(self, tensor):
            self.tensor = tensor

        def __getitem__(self, index):
            nonlocal largest
            piece = self.tensor[index]
            largest = max(largest, piece.size if piece.ndim > 1 else 0)
            return piece

    monkeypatch.setattr(Tensors, "slices", lambda *args: Counted(slices(*args)))
    load_model(tmp_path, mesh=mesh())
    config = MODELS["gpt2"][1]
    assert largest == config.vocab_size * config.emb_dim // 4


@pytest.mark.parametrize(
    ("scan_layers", "stored_scanned"),
    tiers.combinations([(False, True), (True, False), (False, False), (True, True)]),
)
def test_a_t5x_checkpoint_is_read_into_its_shards(scan_layers, stored_scanned, tmp_path):
    config = dataclasses.replace(
        MODELS["t5"][1], biases_per_layer=True, num_encoder_layers=3, mlp_dim=16
    )
    abstract = jax.eval_shape(lambda: T5.init(config, jax.random.key(0)))
    draw = np.random.default_rng(1)
    model = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), abstract)
    save_t5x(model, tmp_path, scan_layers=stored_scanned)
    found = load_model(tmp_path, mesh=mesh(), scan_layers=scan_layers)
    if scan_layers:
        model = with_scanned_layers(model)
    expected = sharding.shard(model, mesh())
    assert found.config.scan_layers == scan_layers
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


@pytest.mark.parametrize("name", MODELS)
def test_stacked_parameters_are_saved_and_unstacked(name, tmp_path):
    model = random_model(name)
    save_model(with_scanned_layers(model), tmp_path)
    check_equal(with_separate_layers(with_scanned_layers(model)), model)
    for found, expected in zip(
        jax.tree.leaves(load_model(tmp_path)), jax.tree.leaves(model), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        (
            (2,),
            ("rows",),
            r"mesh: expected a mesh with the axes 'data' and .*, got the axes \('rows',\)",
        ),
        ((8,), ("model",), "mesh: expected a divisor of num_heads = 4, got model=8"),
    ],
)
def test_a_mesh_that_does_not_serve(shape, axes, message, tmp_path):
    save_model(random_model("gpt2"), tmp_path)
    with pytest.raises(ValueError, match=f"^{message}"):
        load_model(tmp_path, mesh=jax.make_mesh(shape, axes))
    with pytest.raises(ValueError, match=f"^{message}"):
        sharding.shard(random_model("gpt2"), jax.make_mesh(shape, axes))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"data": 4, "model": 4},
            r"mesh: expected at most the 8 that there are, got .*, which is 16 devices",
        ),
        ({"data": 0}, r"mesh: expected sizes of axes of 1 and above, got {'data': 0}"),
        ({"rows": 2}, r"mesh: expected a mesh with the axes .*, got the axes \('rows',\)"),
    ],
)
def test_sizes_that_make_no_mesh(sizes, message):
    need_devices(8)
    with pytest.raises(ValueError, match=f"^{message}"):
        sharding.as_mesh(sizes)


def test_rules_of_ones_own():
    params = {"table": jnp.ones((4, 6)), "other": jnp.ones(3)}
    with pytest.raises(
        ValueError, match=r"^rules: expected a pattern for every array, got none that matches other"
    ):
        sharding.shard(params, mesh(), {"table": jax.P("model", None)})
    with pytest.raises(
        ValueError, match=r"^mesh: expected a divisor of 6, the size of .*, got model=4"
    ):
        sharding.shard(params, mesh(), {"table": jax.P(None, "model"), "*": jax.P()})
    placed = sharding.shard(params, mesh(), {"table": jax.P("model", None), "*": jax.P()})
    assert placed["table"].sharding.spec == jax.P("model", None)
    assert placed["other"].sharding.spec == jax.P()
