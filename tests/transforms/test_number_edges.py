"""Edge cases of float32: NaN in wide vocabularies, overflow, thresholds that are met exactly."""

import jax
import numpy as np
import pytest
from examples import TRANSFORMS, made
from transforms_reference import make_prefix

from decoding_jax import transforms

SIZE = 131
MADE = {
    **{name: made(name) for name, example in TRANSFORMS.items() if example.two},
    "temperature": transforms.temperature(0.7),
    "greedy": transforms.temperature(0),
    "top_k": transforms.top_k(9),
    "top_p": transforms.top_p(0.6),
    "typical": transforms.typical(0.6),
    "min_p": transforms.min_p(0.1),
    "epsilon": transforms.epsilon(0.01),
    "eta": transforms.eta(0.01),
    "no_repeat_ngram": transforms.no_repeat_ngram(1),
    "banned_sequences": transforms.banned_sequences(((7,), (1, 2))),
    "logit_bias": transforms.logit_bias(np.linspace(-1, 1, SIZE)),
    "allowed_tokens": transforms.allowed_tokens(tuple(range(0, SIZE, 2))),
}


@jax.jit
def apply(transform, logits):
    return transform(logits, make_prefix(vocab_size=SIZE))


def as_logits(rows):
    """``[R, V]`` as ``[3, 2, 2, V]``, the shape of the prefix; further rows repeat the last."""
    rows = np.asarray(rows, np.float32)
    return np.concatenate([rows, np.repeat(rows[-1:], 12 - len(rows), 0)]).reshape(3, 2, 2, -1)


def kept(transform, rows):
    out = np.asarray(apply(transform, as_logits(rows))).reshape(12, -1)
    return out[: len(rows)] > -np.inf


@pytest.mark.exhaustive
@pytest.mark.optimized
@pytest.mark.parametrize("name", MADE)
def test_a_nan_in_a_wide_vocabulary_counts_as_banned(name):
    """The NaN has a different index in each of 12 rows; in 11 of them it is after the maximum."""
    logits = np.random.default_rng(0).normal(size=(12, SIZE))
    logits[:, 5] = 9.0
    rows, places = np.arange(12), np.linspace(0, SIZE - 1, 12).astype(int)
    spoiled, banned = logits.copy(), logits.copy()
    spoiled[rows, places] = np.nan
    banned[rows, places] = -np.inf
    got = apply(MADE[name], as_logits(spoiled))
    want = np.asarray(apply(MADE[name], as_logits(banned)))
    if name in ("forced_first_token", "forced_last_token"):  # these allow even a banned token
        want = np.where(np.isnan(want), -np.inf, want)
    np.testing.assert_array_equal(got, want)


def test_a_temperature_that_overflows_keeps_the_order_and_the_differences():
    logits = [
        [1e30, 2e30, -np.inf, 0],
        [-2e30, -1e30, -np.inf, -np.inf],
        [2e30, 2e30, 1e30, np.nan],
        [np.inf, 3.0, np.inf, 1.0],
        [-np.inf, -np.inf, -np.inf, -np.inf],
        [3.0, 2.0, -np.inf, 1.0],
    ]
    got = np.asarray(apply(transforms.temperature(1e-9), as_logits(logits))).reshape(12, 4)
    assert not np.isnan(got).any()
    inf = np.inf
    np.testing.assert_array_equal(got[0], [-inf, 0, -inf, -inf])
    np.testing.assert_array_equal(got[1], [-inf, 0, -inf, -inf])
    np.testing.assert_array_equal(got[2], [0, 0, -inf, -inf])
    np.testing.assert_array_equal(got[3], [0, -inf, 0, -inf])
    np.testing.assert_array_equal(got[4], [-inf] * 4)
    np.testing.assert_allclose(got[5], [3e9, 2e9, -inf, 1e9], rtol=1e-6)


@pytest.mark.release
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, marks=[] if size in (49, 1000) else [pytest.mark.exhaustive])
        for size in (3, 7, 49, 117, 234, 327, 335, 365, 383, 1000)
    ],
)
def test_a_probability_that_equals_its_threshold_is_kept(size):
    flat = [np.full(size, offset) for offset in (0.0, -3.3, 1e4)]
    for transform in (
        transforms.epsilon(1 / size),
        transforms.eta(1.0),
        transforms.min_p(1.0),
        transforms.typical(1.0),
        transforms.top_p(1.0),
    ):
        assert kept(transform, flat).all()
    # The first token has 2 / size of the mass, and each other one 1 / size.
    steps = [np.log(np.r_[2.0, np.ones(size - 2)] / size)]
    assert kept(transforms.epsilon(1 / size), steps).all()
    assert kept(transforms.min_p(0.5), steps).all()
    assert kept(transforms.epsilon(1.00002 / size), steps).sum() == 1
    assert kept(transforms.min_p(0.50001), steps).sum() == 1
