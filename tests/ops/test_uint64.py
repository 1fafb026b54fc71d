"""Compared with Python's integers on all pairs of edge cases and 500 pairs of random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.ops import uint64

pytestmark = pytest.mark.optimized

_EDGES = [0, 1, 2, 2**16 - 1, 2**16, 2**31, 2**32 - 1, 2**32, 2**33 + 5, 2**63, 2**64 - 1]
_RNG = np.random.default_rng(0)
_BITS, _SHIFTS = _RNG.integers(0, 2**64, 1000, np.uint64), _RNG.integers(0, 64, 1000)
_RANDOM = [int(v) >> int(s) for v, s in zip(_BITS, _SHIFTS, strict=True)]
X = [a for a in _EDGES for _ in _EDGES] + _RANDOM[:500]
Y = [b for _ in _EDGES for b in _EDGES] + _RANDOM[500:]


def pairs(values):
    return jnp.asarray(np.stack([uint64.from_int(v) for v in values]))


def test_from_int_and_to_ints_are_inverse() -> None:
    assert uint64.to_ints(pairs(X)).tolist() == X


def test_operations_on_two_numbers() -> None:
    @jax.jit
    def run(x, y):
        return (
            uint64.add(x, y),
            uint64.subtract(x, y),
            uint64.multiply_high(x, y),
            uint64.multiply_words(x[:, 1], y[:, 1]),
            uint64.less(x, y),
        )

    added, subtracted, high, words, less = run(pairs(X), pairs(Y))
    assert uint64.to_ints(added).tolist() == [(x + y) % 2**64 for x, y in zip(X, Y, strict=True)]
    assert uint64.to_ints(subtracted).tolist() == [
        (x - y) % 2**64 for x, y in zip(X, Y, strict=True)
    ]
    assert uint64.to_ints(high).tolist() == [x * y >> 64 for x, y in zip(X, Y, strict=True)]
    assert uint64.to_ints(words).tolist() == [
        (x % 2**32) * (y % 2**32) for x, y in zip(X, Y, strict=True)
    ]
    assert less.tolist() == [x < y for x, y in zip(X, Y, strict=True)]


def test_scale_is_the_exact_fraction_of_a_width_of_up_to_two_to_the_64() -> None:
    numerators = [0, 1, 3, 2**16, 2**30, 2**31 - 1, 2**31, 1_234_567_891]
    last = [x for x in X for _ in numerators]
    numerator = numerators * len(X)
    result = jax.jit(uint64.scale)(pairs(last), jnp.asarray(np.array(numerator, np.uint32)))
    expected = [(x + 1) * n // 2**31 % 2**64 for x, n in zip(last, numerator, strict=True)]
    assert uint64.to_ints(result).tolist() == expected
