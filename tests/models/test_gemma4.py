"""Gemma 4, whose layers have two shapes and share keys: what its parts do beside the whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from families import FIXTURES

import decoding_jax
from decoding_jax import Prompt, models
from decoding_jax.models import load_model
from decoding_jax.models.positions import RopeScaling
from decoding_jax.testing import check_model

PROMPT = Prompt(np.array([[5, 6, 7, 9], [1, 0, 0, 0], [3, 8, 0, 0]]), np.array([4, 1, 2]))


def model_of(**settings: Any) -> Any:
    model = load_model(FIXTURES / "gemma4")
    return dataclasses.replace(model, config=dataclasses.replace(model.config, **settings))


@pytest.mark.release
def test_it_has_every_method_of_a_model() -> None:
    ran = check_model(model_of(), tolerance=1e-4)
    assert {"check_features", "check_tree", "check_keep", "check_select"} <= set(ran)


@jax.jit
def run_whole(model: Any, prompt: Prompt) -> Any:
    return model.prefill(*prompt, lanes=1, slots=1, with_hidden=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", tiers.values(3, exhaustive=[5], release=[1]))
def test_its_first_layers_give_their_own_outputs(count: int) -> None:
    """Of six layers, the last two read the keys of the third and the fourth."""
    model = model_of()
    output, cache = run_whole(model.with_features((count,)), PROMPT)
    first, own = run_whole(model.early_exit(count), PROMPT)
    assert (len(cache.prompt), len(own.prompt)) == (4, min(count, 4))
    x = np.asarray(output.features[0], np.float64)
    x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + model.config.norm_epsilon)
    want = x * np.asarray(model.params["final_norm"]["scale"])
    np.testing.assert_allclose(first.hidden, want, atol=1e-5)


@pytest.mark.release
@pytest.mark.parametrize(
    "kind", tiers.values("in chunks", exhaustive=["shared prefix", "reproducible"])
)
def test_texts_are_the_same_however_it_runs(kind: str) -> None:
    model, prompt = model_of(), PROMPT
    if kind == "shared prefix":
        tokens = np.concatenate([np.tile([3, 4, 5, 6], (3, 1)), PROMPT.tokens], 1)
        prompt = Prompt(tokens.astype(np.int32), PROMPT.length + 4)
    want = decoding_jax.greedy(model, prompt, max_new_tokens=8)
    other = {
        "in chunks": lambda: model_of(prefill_chunk=2),
        "shared prefix": lambda: models.with_shared_prefix(model, [3, 4, 5, 6]),
        "reproducible": lambda: models.reproducible(model),
    }[kind]()
    got = decoding_jax.greedy(other, prompt, max_new_tokens=8)
    np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.exhaustive
def test_few_key_value_heads_are_repeated_for_a_mesh() -> None:
    """Two in layers with the window and one in the others; their sums have another order."""
    model = model_of()
    wide = model.for_model_axis(4)
    assert (wide.config.num_kv_heads, wide.config.global_kv_heads) == (4, 4)
    got, want = run_whole(wide, PROMPT)[0], run_whole(model, PROMPT)[0]
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)


@pytest.mark.release
def test_narrow_weights_include_the_embeddings_of_each_layer() -> None:
    model = models.quantize(model_of(), "int8")
    table = model.params["per_layer_token_embedder"]["embedding"]
    assert isinstance(table, models.QuantizedArray)
    got = run_whole(model.early_exit(5), PROMPT)[0].logits
    want = run_whole(model_of().early_exit(5), PROMPT)[0].logits
    assert np.abs(got - want).mean() < 0.2 < jnp.std(want)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scan_layers": True}, "scan_layers: expected False, because the layers of Gemma 4 have"),
        ({"window": None}, "window: expected 1 and above, got None"),
        ({"qk_norm": False}, "qk_norm: expected True, because the factor of the logits is 1, got"),
        ({"rope_scaling": RopeScaling("yarn", 4.0)}, "rope_scaling: expected None or linear, got"),
        ({"num_kv_layers": 0}, "num_kv_layers: expected an int of 1 or more, got 0"),
        ({"global_head_dim": 5}, "global_head_dim: expected even numbers above 0, got 5"),
        ({"num_global_kv_heads": 3}, "num_global_kv_heads: expected a divisor of num_heads = 4"),
        ({"num_global_kv_heads": 0}, "num_global_kv_heads: expected an int of 1 or more, got 0"),
        ({"rotary_fraction": 1.5}, "rotary_fraction: expected 0 to 1, got 1.5"),
        ({"local_rope_theta": 0.0}, "local_rope_theta: expected numbers above 0, got 0.0"),
        ({"per_layer_dim": -3}, "per_layer_dim: expected an int of 0 or more, got -3"),
        ({"per_layer_vocab_size": 0}, "per_layer_vocab_size: expected an int of 1 or more, got 0"),
        ({"logit_soft_cap": 0.0}, "logit_soft_cap: expected None, or numbers above 0, got 0.0"),
    ],
)
def test_shapes_that_are_none_of_its_own(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        model_of(**settings)
