"""Tests of samples against exact distributions (chi-square), and comparisons to the bit."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.testing.certificate.enumeration import Distribution


class Fit(NamedTuple):
    """The result of a goodness-of-fit test.

    Attributes:
      statistic: Pearson's X^2; infinite if an impossible outcome was observed.
      degrees: degrees of freedom; 0 if one cell has all the probability.
      p_value: the probability of a statistic at least this large under the distribution.
      samples: the number of samples.
    """

    statistic: float
    degrees: int
    p_value: float
    samples: int


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable exceeds a value: Q(degrees / 2, statistic / 2).

    The relative error in float32 is under 1e-3 down to 1e-10; the far tail is 0.

    Example:
      >>> round(chi_square_tail(3.841, 1), 4)
      0.05
    """
    if degrees == 0:
        return 1.0
    half = jnp.asarray([degrees / 2, statistic / 2], jnp.float32)
    return float(jax.scipy.special.gammaincc(half[0], half[1]))


def chi_square(counts: np.ndarray, prob: np.ndarray, *, min_expected: float = 5.0) -> Fit:
    """Tests counts against a distribution.

    Cells are pooled, smallest first, until each is expected to hold ``min_expected`` samples, so
    that the statistic is close to its limit distribution (Cochran 1954, Biometrics 10).

    Args:
      counts: int ``[K]``, the number of times that each outcome was observed.
      prob: float64 ``[K]``, the distribution, which sums to 1.
      min_expected: the smallest expected count of a pooled cell.

    Returns:
      The fit. Its p-value is 0 if an outcome of probability 0 was observed.

    Raises:
      ValueError: if the shapes differ or the distribution does not sum to 1.

    Example:
      >>> fit = chi_square(np.array([480, 520]), np.array([0.5, 0.5]))
      >>> fit.statistic, fit.degrees
      (1.6, 1)
    """
    counts, prob = np.asarray(counts, np.int64), np.asarray(prob, np.float64)
    if counts.shape != prob.shape or counts.ndim != 1:
        raise ValueError(f"counts and prob: got shapes {counts.shape}, {prob.shape}; takes one [K]")
    if abs(prob.sum() - 1) > 1e-6:
        raise ValueError(f"prob: got a sum of {prob.sum()}; takes a distribution, which sums to 1")
    total = int(counts.sum())
    if np.any(counts[prob == 0]):
        return Fit(float("inf"), int(np.sum(prob > 0)) - 1, 0.0, total)
    cells: list[list[float]] = []
    seen = expected = 0.0
    for k in np.argsort(prob, kind="stable"):
        seen, expected = seen + counts[k], expected + total * prob[k]
        if expected >= min_expected:
            cells.append([seen, expected])
            seen = expected = 0.0
    if expected > 0 and cells:
        cells[-1][0] += seen
        cells[-1][1] += expected
    statistic = float(sum((o - e) ** 2 / e for o, e in cells))
    degrees = max(len(cells) - 1, 0)
    return Fit(statistic, degrees, chi_square_tail(statistic, degrees), total)


def outcome_index(distribution: Distribution, tokens: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The index of each sample among a distribution's outcomes, int64 ``[n]``; -1 if it is none.

    Args:
      distribution: the outcomes of one row.
      tokens: int32 ``[n, L]``, zero after the end.
      length: int32 ``[n]``.
    """
    known = {
        (row.tobytes(), int(n)): k
        for k, (row, n) in enumerate(zip(distribution.tokens, distribution.length, strict=True))
    }
    both = np.column_stack([tokens, length]).astype(np.int32)
    distinct, where = np.unique(both, axis=0, return_inverse=True)
    found = [known.get((row[:-1].tobytes(), int(row[-1])), -1) for row in distinct]
    return np.array(found, np.int64)[where.ravel()]


def count_outcomes(distribution: Distribution, index: np.ndarray) -> np.ndarray:
    """The number of times that each outcome occurs in ``index`` (without -1): int64 ``[K]``."""
    return np.bincount(index, minlength=len(distribution.prob))


def independent(first: np.ndarray, second: np.ndarray, distribution: np.ndarray) -> Fit:
    """Tests that pairs of draws are independent draws from one distribution: K * K cells.

    Args:
      first: int ``[n]``, outcomes from 0 to K - 1.
      second: int ``[n]``, the draw paired with each of ``first``.
      distribution: float64 ``[K]``.
    """
    size = len(distribution)
    counts = np.bincount(first * size + second, minlength=size * size)
    return chi_square(counts, np.outer(distribution, distribution).ravel())


def same_bits(got: object, want: object) -> bool:
    """Whether two trees of arrays are equal in structure and to the bit (0.0 and -0.0 differ).

    Example:
      >>> same_bits((jnp.zeros(2), None), (jnp.zeros(2), None))
      True
    """
    if str(jax.tree.structure(got)) != str(jax.tree.structure(want)):
        return False
    pairs = zip(
        map(np.asarray, jax.tree.leaves(got)), map(np.asarray, jax.tree.leaves(want)), strict=True
    )
    return all((x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()) for x, y in pairs)
