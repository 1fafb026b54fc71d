"""Every transform compared with its equation in plain NumPy, and properties of all transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
import transforms_reference as reference
from examples import TRANSFORMS, made
from transforms_reference import make_logits, make_prefix

from decoding_jax import transforms

KINDS = ["distinct", "ties", "masked", "nan"]
CASES = [(name, settings) for name, example in TRANSFORMS.items() for settings in example.cases]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(CASES)]


@jax.jit
def jitted(transform, logits, prefix):
    return transform(logits, prefix)


def close(got, want):
    got = np.asarray(got, np.float64)
    np.testing.assert_array_equal(got == -np.inf, want == -np.inf)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_every_transform_has_an_example():
    """But ``chain``, and the languages, which are no transforms."""
    names = {name for name in transforms.__all__ if name.islower()}
    assert names - {"chain"} == set(TRANSFORMS)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_equals_its_equation(name, settings):
    """With the smaller alphabet, n-grams and spans cross the end of the prompt."""
    example = TRANSFORMS[name]
    repeats = name in ("no_repeat_ngram", "banned_sequences", "thinking_budget")
    prefix = make_prefix(alphabet=3 if repeats else 11)
    for kind in KINDS:
        logits = make_logits(kind)
        for include in (None,) if example.prompt is None else (None, True, False):
            extra = {} if include is None else {"include_prompt": include}
            got = jitted(made(name, settings | extra), jnp.asarray(logits), prefix)
            counts = bool(example.prompt) if include is None else include
            close(got, reference.apply(example.equation, logits, prefix, counts, **settings))


# One or two of each module: operation by operation, each is dozens of programs.
SHOWN = ("no_repeat_ngram", "repetition_penalty", "temperature", "top_p")
EXHAUSTIVE = ("allowed_tokens", "banned_sequences", "min_length", "tournament_watermark")


@pytest.mark.parametrize(
    "name",
    tiers.values(
        *SHOWN,
        exhaustive=EXHAUSTIVE,
        release=[n for n in TRANSFORMS if TRANSFORMS[n].cases and n not in SHOWN + EXHAUSTIVE],
    ),
)
def test_jit_equals_eager(name):
    """With one value for each row, if there can be one."""
    transform, prefix = made(name, TRANSFORMS[name].cases[-1]), make_prefix(alphabet=3)
    logits = jnp.asarray(make_logits("masked"))
    eager, compiled = transform(logits, prefix), jitted(transform, logits, prefix)
    assert eager.dtype == compiled.dtype == jnp.float32
    np.testing.assert_array_equal(eager == -jnp.inf, compiled == -jnp.inf)
    np.testing.assert_allclose(eager, compiled, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in TRANSFORMS if TRANSFORMS[name].two])
def test_changing_a_number_does_not_retrace(name):
    traces = []

    @jax.jit
    def trace(transform):
        traces.append(name)
        return jax.tree.leaves(transform)

    for arguments in TRANSFORMS[name].two:
        trace(transforms.chain(getattr(transforms, name)(*arguments)))
    assert len(traces) == 1


def test_rows_do_not_depend_on_each_other():
    logits, prefix = jnp.asarray(make_logits("ties")), make_prefix(alphabet=3)
    transform = transforms.chain(
        transforms.repetition_penalty(1.3),
        transforms.no_repeat_ngram(2),
        transforms.top_k(7),
        transforms.typical(0.9),
        transforms.top_p(0.8),
    )
    whole = jitted(transform, logits, prefix)
    for b in range(reference.B):
        mine = jax.tree.map(lambda x: x[b : b + 1], prefix)  # noqa: B023
        alone = jitted(transform, logits[b : b + 1], mine)
        np.testing.assert_array_equal(alone[0], whole[b])


def test_tokens_beyond_the_lengths_are_not_read():
    one, other = make_prefix(alphabet=3), make_prefix(seed=1, alphabet=3)
    in_prompt = jnp.arange(reference.P)[None, :] < one.prompt_length[:, None]
    in_text = jnp.arange(reference.L)[None, None, None, :] < one.length[..., None]
    swapped = one._replace(
        prompt=jnp.where(in_prompt, one.prompt, other.prompt),
        tokens=jnp.where(in_text, one.tokens, other.tokens),
    )
    logits = jnp.asarray(make_logits())
    transform = transforms.chain(
        transforms.frequency_penalty(1.0, include_prompt=True),
        transforms.no_repeat_ngram(2),
        transforms.banned_sequences(((1, 2), (0, 0))),
    )
    np.testing.assert_array_equal(
        jitted(transform, logits, one), jitted(transform, logits, swapped)
    )


def test_a_prefix_with_no_room_for_new_tokens():
    prefix = make_prefix(alphabet=3)
    prefix = prefix._replace(tokens=prefix.tokens[..., :0], length=jnp.zeros_like(prefix.length))
    logits = make_logits()
    for name, settings in (
        ("repetition_penalty", {"penalty": 1.3}),
        ("no_repeat_ngram", {"n": 2}),
        ("banned_sequences", {"sequences": ((1, 2), (0, 1))}),
    ):
        got = jitted(getattr(transforms, name)(**settings), logits, prefix)
        close(got, reference.apply(TRANSFORMS[name].equation, logits, prefix, True, **settings))


@pytest.mark.parametrize("include", [True, False])
def test_tokens_outside_the_vocabulary_are_not_counted(include):
    """A prompt may contain ids of an input vocabulary larger than the output's, or -1."""
    prefix = make_prefix()
    prefix = prefix._replace(
        prompt=jnp.full_like(prefix.prompt, -1), tokens=jnp.full_like(prefix.tokens, 99)
    )
    logits = jnp.asarray(make_logits())
    for transform in (
        transforms.frequency_penalty(1.0, include_prompt=include),
        transforms.no_repeat_ngram(1, include_prompt=include),
    ):
        np.testing.assert_array_equal(jitted(transform, logits, prefix), logits)


def test_each_row_may_have_different_sequences():
    sequences = np.array([[[-1, 7], [1, 2]], [[0, 1], [-1, -1]], [[-1, -1], [-1, -1]]], np.int32)
    prefix, logits = make_prefix(alphabet=3), make_logits()
    got = jitted(transforms.banned_sequences(sequences), logits, prefix)
    for b, mine in enumerate([((7,), (1, 2)), ((0, 1),), ()]):
        want = reference.apply(
            TRANSFORMS["banned_sequences"].equation, logits, prefix, True, sequences=mine
        )
        close(got[b], want[b])


def test_no_sequences_ban_nothing():
    logits = jnp.asarray(make_logits())
    for empty in ((), np.zeros((0, 0), np.int32), np.zeros((3, 0, 2), np.int32)):
        transform = transforms.banned_sequences(empty)
        np.testing.assert_array_equal(transform(logits, make_prefix()), logits)


def test_bias_by_id_and_by_row():
    logits = make_logits()
    bias = np.zeros((reference.B, reference.V))
    bias[:, 3], bias[:, 7] = -np.inf, [1, 2, 3]
    transform = transforms.logit_bias({3: -np.inf, 7: np.array([1, 2, 3])})
    want = reference.apply(TRANSFORMS["logit_bias"].equation, logits, make_prefix(), bias=bias)
    close(jitted(transform, logits, make_prefix()), want)


def test_allowed_tokens_as_masks_and_sets():
    logits, prefix = jnp.asarray(make_logits()), make_prefix()
    want = transforms.allowed_tokens([1, 4])(logits, prefix)
    mask = np.isin(np.arange(reference.V), [1, 4])
    for same in ({4, 1}, mask, list(mask), np.stack([mask] * 3), jnp.array([4, 1, -1, 99])):
        np.testing.assert_array_equal(transforms.allowed_tokens(same)(logits, prefix), want)


@pytest.mark.exhaustive
def test_bfloat16_logits():
    logits = jnp.asarray(make_logits("masked")).astype(jnp.bfloat16)
    transform = transforms.chain(transforms.temperature(0.7), transforms.top_p(0.8))
    got = jitted(transform, logits, make_prefix())
    assert got.dtype == jnp.float32
    want = jitted(transform, logits.astype(jnp.float32), make_prefix())
    np.testing.assert_array_equal(got, want)


@pytest.mark.exhaustive
def test_infinite_logits_and_negative_zero():
    """Several logits may be +inf, which counts as the largest float; -0.0 ties with 0.0."""
    logits = jnp.array([[-0.0, 0.0, -0.0, -30.0], [jnp.inf, 0.0, jnp.inf, 1.0]])[:, None, None, :]
    for transform, rows in (
        (transforms.top_k(2), [[0, 1], [0, 2]]),
        (transforms.top_p(0.9), [[0, 1, 2], [0, 2]]),
        (transforms.top_p(0.3), [[0], [0]]),
        (transforms.temperature(0), [[0], [0]]),
        (transforms.typical(0.9), [[0, 1, 2], [0, 2]]),
    ):
        keep = np.asarray(jitted(transform, logits, make_prefix()))[:, 0, 0] > -np.inf
        assert [list(np.flatnonzero(row)) for row in keep] == rows


@jax.jit
def at_temperature(value, logits, prefix):
    return transforms.temperature(value)(logits, prefix)


@pytest.mark.parametrize("value", [1e-38, 1e-31, -1.0, 1e-29, np.inf])
def test_extreme_traced_temperatures_give_no_nan(value):
    logits = jnp.asarray(make_logits("masked"))
    got = at_temperature(jnp.float32(value), logits, make_prefix())
    assert not np.any(np.isnan(got) | (got == np.inf))
    rows = np.any(np.asarray(logits) > -np.inf, axis=-1)
    np.testing.assert_array_equal(np.any(np.asarray(got) > -np.inf, axis=-1), rows)
