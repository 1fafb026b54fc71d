"""A network with scanned layers computes what the same network computes layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from decoding_jax.models import (
    GPT2,
    T5,
    GPT2Config,
    Llama,
    LlamaConfig,
    T5Config,
    T5Decoder,
    T5DecoderConfig,
)
from decoding_jax.models.stack import stack_layers, with_scanned_layers

SHAPE = {"vocab_size": 11, "emb_dim": 8, "num_heads": 2, "mlp_dim": 12}
T5_SHAPE = {**SHAPE, "head_dim": 4, "num_encoder_layers": 2, "num_decoder_layers": 3}
MODELS = {
    "llama": (
        Llama,
        LlamaConfig(
            **SHAPE, num_kv_heads=1, head_dim=4, num_layers=3, max_positions=32, prefill_chunk=2
        ),
    ),
    "gpt2": (GPT2, GPT2Config(**SHAPE, num_layers=3)),
    "t5_decoder": (T5Decoder, T5DecoderConfig(**SHAPE, head_dim=4, num_layers=3)),
    "t5": (T5, T5Config(**T5_SHAPE)),
    "t5_biases_per_layer": (T5, T5Config(**T5_SHAPE, biases_per_layer=True)),
}
TOKENS = np.array([[1, 2, 3], [4, 0, 0]], np.int32)
LENGTH = np.array([3, 1], np.int32)
# Two tokens of a tree: the second of them sees slot 0 and the first.
VISIBLE = np.zeros((2, 2, 2, 5), bool)
VISIBLE[:, :, :, 0] = True
VISIBLE[:, :, 1, 3] = True


@jax.jit
def run(model):
    """The logits of a prefill and of calls in place, at own slots, after moves, and of a tree."""
    if isinstance(model, T5):
        model = model.bind(TOKENS, LENGTH)
    tokens = jnp.array([[[5, 6], [7, 8]], [[9, 1], [2, 3]]], jnp.int32)
    first, cache = model.prefill(TOKENS, LENGTH, lanes=2, slots=5)
    in_place, cache = model.extend(cache, tokens, 0)
    cache = model.select(cache, jnp.array([[1, 1], [1, 0]], jnp.int32))
    cache = model.keep(cache, jnp.array([[[1], [0]], [[0], [1]]], jnp.int32), 1)
    at_own_slots, cache = model.extend(cache, tokens, jnp.array([[1, 2], [2, 1]], jnp.int32))
    tree, cache = model.extend(cache, tokens, jnp.full((2, 2), 3, jnp.int32), VISIBLE)
    return [x.logits for x in (first, in_place, at_own_slots, tree)]


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values("llama", exhaustive=["t5_biases_per_layer"], release=["gpt2", "t5", "t5_decoder"]),
)
def test_scanned_layers_compute_the_same(name):
    kind, config = MODELS[name]
    abstract = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))
    draw = np.random.default_rng(0)
    model = jax.tree.map(lambda x: jnp.array(draw.normal(size=x.shape), jnp.float32), abstract)
    scanned = with_scanned_layers(model)
    for found, expected in zip(run(scanned), run(model), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    # The parameters that the network makes itself have the stacked shapes.
    own = jax.eval_shape(lambda: kind.init(scanned.config, jax.random.key(0)))
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, scanned)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_early_exit_of_scanned_layers(name):
    kind, config = MODELS[name]
    abstract = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))
    model = jax.tree.map(lambda x: np.ones(x.shape, np.float32), abstract)
    found = with_scanned_layers(model).early_exit(2)
    expected = with_scanned_layers(model.early_exit(2))
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, expected)


def test_stacks_wherever_layers_are():
    params = {"a": {"layers_0": np.zeros(2), "layers_1": np.ones(2)}, "b": np.ones(1)}
    stacked = stack_layers(params)
    assert stacked["a"]["layers"].tolist() == [[0, 0], [1, 1]]
    assert stacked["b"] is params["b"]
