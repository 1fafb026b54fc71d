"""The search for the shortest prefix is exact, including ties, at any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import transforms
from decoding_jax.ops import gpu, vocab
from decoding_jax.ops.shortest_prefix import shortest_prefix

pytestmark = pytest.mark.optimized


@jax.jit
def nucleus(logits, p, hint=None):
    masses = vocab.integer_masses(vocab.below_max(logits))
    target = vocab.fraction_of(masses, p)
    return shortest_prefix(logits, masses, target, hint=hint)


@jax.jit
def first_k(logits, k):
    one_each = jnp.where(logits > -jnp.inf, 1, 0)
    return shortest_prefix(logits, (one_each,), (k,))


def sorted_nucleus(logits, p):
    """The nucleus by a float64 sort. No cumulative mass of these tests is close to p."""
    keep = np.zeros(logits.shape, bool)
    for row, out in zip(logits.astype(np.float64), keep, strict=True):
        weights = np.exp(row - row.max())
        order = np.argsort(-row, kind="stable")
        size = 1 + np.sum(np.cumsum(weights[order] / weights.sum()) < p)
        out[order[:size]] = row[order[:size]] > -np.inf
    return keep


def sorted_k(logits, k):
    keep = np.zeros(logits.shape, bool)
    for row, n, out in zip(logits, k, keep, strict=True):
        order = np.argsort(-row, kind="stable")[:n]
        out[order] = row[order] > -np.inf
    return keep


def hard_rows(size=1000, seed=0):
    """Difficult rows for a search: ties of all kinds, huge ranges, zeros of both signs, masks."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=size)
    rows = [
        normal,
        np.round(normal),
        np.zeros(size),
        np.where(normal < 0, -0.0, 0.0),
        np.where(normal > 1, 5.0, -np.inf),
        -2.0 * np.log1p(rng.permutation(size)),
        np.where(np.arange(size) == 700, 1e30, normal),
        normal * 1e-30,
        normal * 1e-3 + 1000.0,
        1e30 * np.round(normal),
        np.where(normal < 2.5, -1e30, normal * 1e-6),
        np.where(np.arange(size) == size - 1, 0.0, -np.inf),
    ]
    return np.stack(rows).astype(np.float32)


def test_top_k_of_hard_rows():
    rows = hard_rows()
    for k in (1, 2, 7, 100, 500, 999, 1000, 5000):
        per_row = np.full(len(rows), k, np.int32)
        got = first_k(rows, per_row)
        np.testing.assert_array_equal(got, sorted_k(rows, per_row))
    per_row = np.arange(1, 1 + len(rows), dtype=np.int32) * 41
    np.testing.assert_array_equal(first_k(rows, per_row), sorted_k(rows, per_row))


@pytest.mark.exhaustive
def test_top_p_of_hard_rows():
    rows = hard_rows()
    for p in (0.0, 0.1003, 0.4999, 0.9001, 0.9997):
        got = nucleus(rows, jnp.float32(p))
        np.testing.assert_array_equal(got, sorted_nucleus(rows, p), err_msg=str(p))


@pytest.mark.exhaustive
def test_the_steps_of_a_gpu_find_the_same_tokens(monkeypatch):
    monkeypatch.setattr(gpu, "either", lambda on_gpu, elsewhere: on_gpu())
    rows = np.concatenate([hard_rows(), hard_rows(seed=1)[:, ::-1]])
    lowest, highest = np.finfo(np.float32).min, np.finfo(np.float32).max
    rows = np.concatenate([rows, np.where(rows == rows.max(-1, keepdims=True), highest, lowest)])
    per_row = np.arange(1, 1 + len(rows), dtype=np.int32) * 20
    found = jax.jit(first_k.__wrapped__)(rows, per_row)
    np.testing.assert_array_equal(found, sorted_k(rows, per_row))
    found = jax.jit(nucleus.__wrapped__)(rows, jnp.float32(0.9001))
    np.testing.assert_array_equal(found, sorted_nucleus(rows, 0.9001))


@pytest.mark.exhaustive
def test_a_wrong_hint_does_not_change_the_result():
    rows = hard_rows()[:6]
    want = nucleus(rows, jnp.float32(0.9))
    for hint in (-np.inf, -1e9, 0.0, 1e9, np.inf, np.nan):
        hints = np.full(len(rows), hint, np.float32)
        np.testing.assert_array_equal(nucleus(rows, jnp.float32(0.9), hints), want)


def test_a_fraction_of_equal_masses():
    """n / 10 of ten equal tokens is n tokens, although float32 rounds n / 10 up for some n."""
    for n in range(1, 11):
        keep = nucleus(jnp.zeros((1, 10)), jnp.float32(n / 10))
        np.testing.assert_array_equal(keep[0], np.arange(10) < n)


@pytest.mark.exhaustive
def test_top_p_at_a_vocabulary_of_256000():
    """The same set as by a float64 sort: flat and peaked rows, ties, a different p in each row."""
    rng = np.random.default_rng(0)
    size = 256_000
    normal = rng.normal(size=size)
    rows = np.stack(
        [
            normal,
            normal * 3,
            np.round(normal * 64) / 64,
            -2.0 * np.log1p(rng.permutation(size)),
            -1.0 * np.log1p(rng.permutation(size)),
            np.where(normal > 0, normal, -np.inf),
        ]
    ).astype(np.float32)
    p = np.array([0.9, 0.95, 0.5, 0.9, 0.7, 0.99], np.float32)
    kept = jax.jit(transforms.top_p(p))(rows[:, None, None, :], None)
    got = np.asarray(kept)[:, 0, 0] > -np.inf
    for row, fraction, keep in zip(rows, p, got, strict=True):
        np.testing.assert_array_equal(keep, sorted_nucleus(row[None], float(fraction))[0])


@pytest.mark.exhaustive
def test_integer_masses_are_the_softmax():
    """Each token to 2**-40 of the total, besides the rounding of float32 differences up to 36."""
    rows = np.random.default_rng(1).normal(size=(2, 256_000)).astype(np.float32) * 4
    high, low = vocab.integer_masses(vocab.below_max(jnp.asarray(rows)))
    high, low = np.asarray(high, np.float64), np.asarray(low, np.float64)
    assert np.all(high.sum(-1) < 2**31)
    assert np.all(low.sum(-1) < 2**31)
    masses = high * 2.0 ** vocab.low_bits(256_000) + low
    probabilities = np.exp(rows.astype(np.float64))
    probabilities /= probabilities.sum(-1, keepdims=True)
    masses /= masses.sum(-1, keepdims=True)
    np.testing.assert_allclose(masses, probabilities, rtol=4e-6, atol=2.0**-40)
