"""The methods of the networks of ``examples``, checked against each other."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from examples import NETWORKS

from decoding_jax.base import LanguageModel, SupportsKeep, SupportsSelect
from decoding_jax.models.gpt2 import GPT2Config
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.positions import RopeScaling
from decoding_jax.testing import check_model

VOCAB, WIDTH = 64, 32
LLAMA = NETWORKS["llama"].config
SOURCE = np.array([[5, 9, 2, 33, 1, 8, 7], [3, 0, 0, 0, 0, 0, 0], [4, 4, 7, 1, 0, 0, 0]], np.int32)
SOURCE_LENGTH = np.array([7, 1, 4], np.int32)


def network(name: str, dtype: str = "float32") -> Any:
    """A random network whose logits are far from uniform; one with an encoder is not yet bound."""
    kind, config = NETWORKS[name].kind, NETWORKS[name].config
    config = dataclasses.replace(config, dtype=dtype)
    shapes = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)).params)

    def spread(path: Any, leaf: jax.Array) -> jax.Array:
        label = jax.tree_util.keystr(path)
        noise = np.random.default_rng(len(label) + leaf.size).normal(0, 0.25, leaf.shape)
        return jnp.asarray(noise + label.endswith("['scale']"), dtype)

    return kind(jax.tree_util.tree_map_with_path(spread, shapes), config)


def bound(model: Any, rows: slice = slice(0, 3)) -> Any:
    if not hasattr(model, "bind"):
        return model
    return model.bind(jnp.asarray(SOURCE[rows]), jnp.asarray(SOURCE_LENGTH[rows]))


@partial(jax.jit, static_argnames=("lanes", "slots"))
def prefill(model: Any, tokens: Any, length: Any, lanes: int = 2, slots: int = 6) -> Any:
    return model.prefill(tokens, length, lanes=lanes, slots=slots, with_hidden=True)


extend = jax.jit(lambda model, *args: model.extend(*args))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tiers.of_table(NETWORKS, exhaustive=["llama"], release=["gpt2"]))
def test_verbs_do_what_they_say(name: str) -> None:
    model = network(name)

    def alone(row: int) -> Any:
        if not hasattr(model, "bind"):
            return model
        # Without the padding that longer inputs cause.
        length = int(SOURCE_LENGTH[row])
        source = jnp.asarray(SOURCE[row : row + 1, :length])
        return model.bind(source, jnp.asarray(SOURCE_LENGTH[row : row + 1]))

    ran = check_model(bound(model), tolerance=1e-5, row_model=alone)
    assert {"check_tree", "check_keep", "check_select", "check_out_of_range"} <= set(ran)


@pytest.mark.parametrize("name", NETWORKS)
def test_is_a_language_model(name: str) -> None:
    model = bound(network(name))
    assert isinstance(model, (LanguageModel, SupportsKeep, SupportsSelect))
    assert (model.vocab_size, model.ragged, model.tree) == (VOCAB, True, True)
    assert model.max_positions == getattr(NETWORKS[name].config, "max_positions", None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_is_finite_and_near_float32(name: str) -> None:
    tokens, length = np.array([[5, 6], [7, 63], [1, 0]]), np.array([2, 2, 1])
    new_tokens = np.arange(12, dtype=np.int32).reshape(3, 2, 2)
    got = {}
    for dtype in ("float32", "bfloat16"):
        model = bound(network(name, dtype))
        output, cache = prefill(model, tokens, length)
        assert output.hidden.dtype == dtype
        assert {leaf.dtype.name for leaf in jax.tree.leaves(cache.slots)} == {dtype}
        output, _ = extend(model, cache, new_tokens, 0)
        assert output.logits.dtype == jnp.float32
        got[dtype] = np.asarray(output.logits)
    # bfloat16 keeps 8 bits; the logits here have a standard deviation of about 1.5.
    assert np.std(got["float32"]) > 0.5
    assert np.abs(got["float32"] - got["bfloat16"]).mean() < 0.05


@pytest.mark.parametrize("name", NETWORKS)
def test_hidden_states_project_to_the_logits(name: str) -> None:
    model = bound(network(name))
    tokens, length = np.array([[5, 6], [7, 63], [1, 0]]), np.array([2, 2, 1])
    output, cache = prefill(model, tokens, length)
    assert output.hidden.shape == (3, 1, 2, WIDTH)
    last = output.hidden[jnp.arange(3), :, length - 1][:, :, None]
    hidden, kernel = np.asarray(last), np.asarray(_output_kernel(model))
    np.testing.assert_allclose(output.logits, hidden @ kernel, atol=1e-4)
    plain, _ = jax.eval_shape(lambda: model.prefill(tokens, length, lanes=1, slots=1))
    assert plain.hidden is None
    output, _ = extend(model, cache, np.ones((3, 2, 2), np.int32), 0)
    np.testing.assert_allclose(output.logits, np.asarray(output.hidden) @ kernel, atol=1e-4)
    np.testing.assert_allclose(output.logits, model.project(output.hidden), atol=1e-5)


def _output_kernel(model: Any) -> Any:
    params = model.params.get("decoder", model.params)
    if "logits_dense" in params:
        return params["logits_dense"]["kernel"]
    return params["token_embedder"]["embedding"].T


@pytest.mark.parametrize("name", NETWORKS)
def test_one_row_one_lane_one_slot(name: str) -> None:
    model = bound(network(name), slice(1, 2))
    _, cache = prefill(model, np.array([[7, 0]]), np.array([1]), lanes=1, slots=1)
    got, _ = extend(model, cache, np.array([[[9]]]), 0)
    want, _ = prefill(model, np.array([[7, 9]]), np.array([2]), lanes=1, slots=1)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)


@pytest.mark.release
@pytest.mark.optimized
@pytest.mark.parametrize(
    "name",
    tiers.of_table(NETWORKS, exhaustive=["t5"]),
)
def test_a_loop_of_scalar_starts_copies_no_cache(name: str) -> None:
    """In the compiled loop, arrays of the size of the slots are updated in place."""
    model, slots = bound(network(name), slice(0, 1)), 1009

    def run(model: Any, cache: Any) -> Any:
        def step(state: Any) -> Any:
            at, cache, token = state
            output, cache = model.extend(cache, token, at)
            return at + 1, cache, output.logits.argmax(-1).astype(jnp.int32)

        first = (jnp.int32(0), cache, jnp.ones((1, 1, 1), jnp.int32))
        return jax.lax.while_loop(lambda state: state[0] < slots, step, first)[2]

    _, cache = jax.eval_shape(
        lambda: model.prefill(jnp.ones((1, 3), jnp.int32), jnp.array([3]), lanes=1, slots=slots)
    )
    program = jax.jit(run).lower(model, cache).compile().as_text()
    body = re.search(r"while\(.*body=(%?[\w.-]+)", program)
    assert body is not None
    lines = _computation(program, body[1].lstrip("%"))
    whole = [line for line in lines if re.search(rf"= f32\[1,1,\d+,{slots},8\]", line)]
    assert any("scatter" in line or "update" in line for line in whole)
    copies = [line.strip() for line in whole if re.search(r"\} copy\(|transpose\(", line)]
    assert not copies


def _computation(program: str, name: str) -> list[str]:
    """The lines of one computation of an HLO text."""
    lines = program.splitlines()
    first = next(i for i, s in enumerate(lines) if re.match(rf"%?{re.escape(name)} ", s))
    last = next(i for i in range(first, len(lines)) if lines[i].startswith("}"))
    return lines[first:last]


def test_positions_beyond_the_table_are_clipped() -> None:
    model = network("gpt2")
    _, cache = prefill(model, np.array([[7]] * 3), np.array([1] * 3))
    tokens = np.full((3, 2, 1), 4, np.int32)
    got = [
        extend(model, cache, tokens, 0, None, np.int32(p))[0].logits for p in (31, 32, 2**31 - 1)
    ]
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[0], got[2])
    assert np.isfinite(got[0]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads = 4, got 3"),
        ({"head_dim": 7}, "head_dim: expected even numbers, got 7"),
        ({"window": 0}, "window: expected None, or 1 and above, got 0"),
        ({"window_pattern": ()}, "window_pattern: expected one entry or more, got ()"),
        (
            {"rounded_biases": True},
            "rounded_biases: expected False without linear_biases, got True",
        ),
    ],
)
def test_llama_config_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        LlamaConfig(**{**LLAMA.__dict__, **change})


def test_other_configs_refuse() -> None:
    with pytest.raises(ValueError, match=r"^num_heads: expected a divisor of emb_dim = 32, got 5$"):
        GPT2Config(VOCAB, WIDTH, num_heads=5, mlp_dim=4, num_layers=1)
    config = GPT2Config(VOCAB, WIDTH, num_heads=2, mlp_dim=4, num_layers=1)
    with pytest.raises(
        ValueError, match=r"^num_kv_heads: expected 4 with num_heads = 4, .* got 2$"
    ):
        dataclasses.replace(config, num_heads=4)
    with pytest.raises(ValueError, match=r"^head_dim: expected 8 with num_heads = 2, .* got 16$"):
        dataclasses.replace(config, emb_dim=16)
    assert dataclasses.replace(config, num_heads=4, num_kv_heads=0, head_dim=0).head_dim == 8
    kinds = "'dynamic', 'linear', 'llama3', 'longrope', 'yarn'"
    with pytest.raises(ValueError, match=rf"^kind: expected {kinds}, got 'ntk'$"):
        RopeScaling("ntk", 2.0)
    with pytest.raises(ValueError, match=r"^factor: expected 1 and above, got 0.5$"):
        RopeScaling("linear", 0.5)
    with pytest.raises(
        ValueError, match=r"^high_frequency_factor: expected more than .*, got 1.0$"
    ):
        RopeScaling("llama3", 2.0, high_frequency_factor=1.0)
    with pytest.raises(
        ValueError, match=r"^beta_fast: expected more than beta_slow = 1.0, .*, got 0.5$"
    ):
        RopeScaling("yarn", 2.0, beta_fast=0.5)
    with pytest.raises(
        ValueError, match=r"^attention_factor: expected None, or numbers above 0, got 0.0$"
    ):
        RopeScaling("yarn", 2.0, attention_factor=0.0)
    model = network("gpt2")
    _, cache = prefill(model, np.array([[7]] * 3), np.array([1] * 3))
    with pytest.raises(ValueError, match=r"^visible: expected at most the cache's 6 slots, got 7"):
        model.extend(cache, jnp.ones((3, 2, 1), jnp.int32), 0, jnp.ones((3, 2, 1, 7), bool))


@pytest.mark.parametrize("name", NETWORKS)
def test_early_exit_is_the_network_without_its_last_layers(name: str) -> None:
    """Layers that add zero can be dropped; dropping other layers changes the logits."""
    one = network(name)
    encoder = NETWORKS[name].encoder
    layers = "num_decoder_layers" if encoder else "num_layers"
    config = type(one.config)(**{**one.config.__dict__, layers: 2})
    decoder = one.params["decoder"] if encoder else one.params
    silent = jax.tree.map(jnp.zeros_like, decoder["layers_0"])
    two = {**decoder, "layers_1": silent}
    deep = type(one)({**one.params, "decoder": two} if encoder else two, config)
    tokens, length = np.array([[5, 6], [7, 63], [1, 0]]), np.array([2, 2, 1])
    want, _ = prefill(bound(deep), tokens, length)
    got, cache = prefill(bound(deep.early_exit(1)), tokens, length)
    np.testing.assert_array_equal(got.logits, want.logits)
    assert len(cache.slots) == 1
    again, _ = prefill(bound(deep).early_exit(1), tokens, length)
    np.testing.assert_array_equal(again.logits, got.logits)
    for number in (0, 3):
        with pytest.raises(
            ValueError, match=f"num_layers: expected 1 to the network's 2, got {number}"
        ):
            deep.early_exit(number)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_token_that_is_not_finite_reaches_only_those_that_see_it(name: str, value: float) -> None:
    """Token 63, as a draft between others, as a sibling in a tree, and as padding."""
    bad = VOCAB - 1
    sound = network(name)

    def spoil(path: Any, leaf: jax.Array) -> jax.Array:
        label = jax.tree_util.keystr(path)
        return leaf.at[bad].set(value) if "token_embedder" in label else leaf

    params = jax.tree_util.tree_map_with_path(spoil, sound.params)
    source = np.where(np.arange(7) < SOURCE_LENGTH[:, None], SOURCE, bad)
    tree = jnp.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]], bool)  # two children of the first
    answers = []
    for model in (sound, type(sound)(params, sound.config)):
        if hasattr(model, "bind"):
            model = model.bind(jnp.asarray(source), jnp.asarray(SOURCE_LENGTH))
        prompt = jnp.array([[1, 2, bad], [3, bad, bad], [4, 5, 6]])
        first, cache = prefill(model, prompt, jnp.array([2, 1, 3]))
        new_tokens = jnp.broadcast_to(jnp.array([7, bad, 9]), (3, 2, 3))
        start = jnp.zeros((3, 2), jnp.int32)
        visible = jnp.broadcast_to(tree, (3, 2, 3, 3))
        parts = (
            first,
            extend(model, cache, new_tokens, start)[0],
            extend(model, cache, new_tokens, start, visible)[0],
        )
        answers.append([np.asarray(part.logits)[..., :bad] for part in parts])
    (first, chain, nodes), (got_first, got_chain, got_nodes) = answers
    np.testing.assert_array_equal(got_first, first)
    np.testing.assert_array_equal(got_chain[:, :, 0], chain[:, :, 0])
    assert np.isnan(got_chain[:, :, 1:]).all()
    np.testing.assert_array_equal(got_nodes[:, :, ::2], nodes[:, :, ::2])
    assert np.isnan(got_nodes[:, :, 1]).all()
