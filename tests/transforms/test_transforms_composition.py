"""Chains, the shapes of settings, and the one-line error of each bad setting."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import TRANSFORMS, made
from transforms_reference import make_logits, make_prefix

from decoding_jax import transforms


@jax.jit
def run(transform, logits, prefix=None):
    return transform(logits, prefix)


def test_an_empty_chain_changes_nothing():
    logits = jnp.asarray(make_logits())
    assert transforms.chain()(logits, make_prefix()) is logits


@pytest.mark.exhaustive
def test_a_chain_applies_in_the_order_given():
    logits, prefix = jnp.asarray(make_logits()), make_prefix()
    one, other = transforms.top_k(3), transforms.top_p(0.5)
    forward = run(transforms.chain(one, other), logits, prefix)
    np.testing.assert_array_equal(forward, run(other, run(one, logits, prefix), prefix))
    nested = run(transforms.chain(transforms.chain(one), other), logits, prefix)
    np.testing.assert_array_equal(forward, nested)


@pytest.mark.exhaustive
def test_top_p_applies_to_the_tokens_that_top_k_kept():
    logits = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))[None, None, None, :]
    kept = run(transforms.chain(transforms.top_k(2), transforms.top_p(0.55)), logits)
    np.testing.assert_array_equal(kept[0, 0, 0] > -jnp.inf, [True, False, False, False])
    kept = run(transforms.chain(transforms.top_p(0.55), transforms.top_k(2)), logits)
    np.testing.assert_array_equal(kept[0, 0, 0] > -jnp.inf, [True, True, False, False])


def test_plain_functions_join_a_chain_and_pass_through_jit():
    traces = []

    def shift(logits, prefix):
        traces.append(1)
        return logits + prefix.length[..., None].astype(jnp.float32)

    logits, prefix = jnp.asarray(make_logits()), make_prefix()
    for value in (1.0, 2.0):
        got = run(transforms.chain(shift, transforms.temperature(value)), logits, prefix)
        want = (logits + prefix.length[..., None].astype(jnp.float32)) / value
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize("name", transforms.__all__)
def test_every_transform_is_a_frozen_pytree_of_one_name(name):
    public = getattr(transforms, name)
    if name in ("chain", "Automaton", "CompressedAutomaton", "StackAutomaton", "Trie"):
        return
    assert dataclasses.is_dataclass(public)
    assert public.__dataclass_params__.frozen
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", public.__name__).lower()
    assert getattr(transforms, snake) is (transforms.chain if snake == "chain" else public)
    assert name in (snake, public.__name__)


def test_transforms_survive_tree_operations():
    transform = transforms.chain(
        transforms.temperature(0.7),
        transforms.no_repeat_ngram(3, include_prompt=False),
        transforms.logit_bias({4: 1.0, 2: -1.0}),
    )
    leaves, structure = jax.tree.flatten(transform)
    assert all(leaf.dtype == np.float32 for leaf in leaves)
    assert len(leaves) == 3
    assert repr(jax.tree.unflatten(structure, leaves)) == repr(transform)
    doubled = jax.tree.map(lambda x: x * 2, transform)
    np.testing.assert_allclose(doubled.transforms[0].value, 1.4, rtol=1e-6)
    assert repr(doubled.transforms[1]) == repr(transform.transforms[1])
    jax.tree.unflatten(structure, [object()] * 3)
    for anything in (0, -1.0, None, (), object()):
        jax.tree.unflatten(jax.tree.structure(transforms.top_k(3)), [anything])


def test_no_two_transforms_share_a_structure():
    """If two had the same structure, jit could run the program of one for the other."""
    one_of_each = [made(name) for name in TRANSFORMS if TRANSFORMS[name].two]
    structures = [jax.tree.structure(t) for t in one_of_each]
    structures += [jax.tree.structure(transforms.chain(t)) for t in one_of_each]
    for i, one in enumerate(structures):
        assert [one == other for other in structures] == [i == j for j in range(len(structures))]


def test_settings_under_vmap():
    """A sweep over a setting is a vmap over the transform."""
    logits, prefix = jnp.asarray(make_logits()), make_prefix()
    values = jnp.array([0.3, 0.6, 0.9])
    swept = jax.jit(jax.vmap(run, (0, None, None)))(transforms.top_p(values), logits, prefix)
    for value, got in zip([0.3, 0.6, 0.9], swept, strict=True):
        np.testing.assert_array_equal(got, run(transforms.top_p(value), logits, prefix))


BAD = [
    (
        lambda: transforms.banned_sequences([()]),
        "banned_sequences.sequences: expected sequences of one",
    ),
    (
        lambda: transforms.banned_sequences([(1, -2)]),
        "banned_sequences.sequences: expected sequences of token",
    ),
    (
        lambda: transforms.logit_bias({-1: 2.0}),
        "logit_bias.bias: expected token ids of 0 or more as keys,",
    ),
    (lambda: transforms.chain(3), "chain: expected functions of (logits, prefix), got 3"),
    # Arrays of JAX that are not traced.
    (
        lambda: transforms.temperature(jnp.float32(-1)),
        "temperature.value: expected a finite number of 0 or",
    ),
    (
        lambda: transforms.temperature(jnp.bfloat16(-2)),
        "temperature.value: expected a finite number of 0 or",
    ),
    (
        lambda: transforms.top_k(jnp.float32(2)),
        "top_k.k: expected an int of 1 or more, or one for each",
    ),
    (
        lambda: transforms.logit_bias({1: jnp.float32(np.inf)}),
        "logit_bias.bias: expected {token id: number} or [V],",
    ),
    (
        lambda: transforms.forced_first_token(jnp.int32(-2)),
        "forced_first_token.token: expected a token id of 0 or",
    ),
    (
        lambda: transforms.allowed_tokens(jnp.array([1, -2])),
        "allowed_tokens.tokens: expected token ids of 0 or",
    ),
    (
        lambda: transforms.banned_sequences(jnp.array([[5, -1]])),
        "banned_sequences.sequences: expected ids padded with -1 on the left, got",
    ),
    (
        lambda: transforms.banned_sequences(jnp.array([[1.0]])),
        "banned_sequences.sequences: expected token ids of 0 or more, or -1 for none,",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD, ids=[m for _, m in BAD])
def test_a_bad_number_gets_one_line(build, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        build()
    assert "\n" not in str(error.value)


BAD_SHAPES = [
    (
        lambda: transforms.temperature([1.0, 2.0]),
        "temperature.value: expected a scalar or [B] = [3], got",
    ),
    (
        lambda: transforms.top_p(np.ones((3, 1))),
        "top_p.p: expected a scalar or [B] = [3], got shape [3,",
    ),
    (
        lambda: transforms.min_length(np.ones(2, int), 1),
        "min_length.min_new_tokens: expected a scalar or [B] =",
    ),
    (
        lambda: transforms.min_length(1, np.ones((2, 1), int)),
        "min_length.eos_ids: expected 1 axes that all rows",
    ),
    (
        lambda: transforms.banned_sequences(np.ones((2, 1, 1), int)),
        "banned_sequences.sequences: expected 2 axes that all rows share, or 3",
    ),
    (lambda: transforms.logit_bias({11: 1.0}), "logit_bias.bias: expected ids from 0 to 10, the"),
    (
        lambda: transforms.logit_bias({1: [1.0, 2.0]}),
        "logit_bias.bias[1]: expected a scalar or [B] = [3],",
    ),
    (
        lambda: transforms.logit_bias(np.ones(7)),
        "logit_bias.bias: expected a number for each of the",
    ),
    (
        lambda: transforms.logit_bias(np.ones((2, 11))),
        "logit_bias.bias: expected 1 axes that all rows share,",
    ),
    (
        lambda: transforms.allowed_tokens(np.ones(7, bool)),
        "allowed_tokens.tokens: expected a number for each of",
    ),
    (
        lambda: transforms.allowed_tokens(np.ones(7)),
        "allowed_tokens.tokens: expected ids or a bool mask, got",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD_SHAPES, ids=[m for _, m in BAD_SHAPES])
def test_a_bad_shape_gets_one_line_when_traced(build, message):
    transform = build()
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        jax.eval_shape(transform, jnp.asarray(make_logits()), make_prefix())
    assert "\n" not in str(error.value)
