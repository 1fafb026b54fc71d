"""Comparisons of a strategy's output: exact where that is possible, and statistical otherwise.

Every ``check_...`` takes NumPy arrays and raises an AssertionError of one line. Statistical tests
(chi-square) return p-values instead, since only the caller knows how many tests share one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import DecodeOutput
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
        raise ValueError(
            f"counts and prob: expected one shape [K], got {counts.shape} and {prob.shape}"
        )
    if abs(prob.sum() - 1) > 1e-6:
        raise ValueError(f"prob: expected a sum of 1, got {prob.sum()}")
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


def relative_gap(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The differences relative to 1 + size: 0 for equal infinities, and infinite for NaN."""
    with np.errstate(invalid="ignore"):
        gap = np.where(got == want, 0.0, np.abs(got - want) / (1 + np.abs(want)))
    return np.where(np.isnan(gap), np.inf, gap)


def check_close(
    name: str, got: np.ndarray, want: np.ndarray, row: int, tolerance: float = 1e-5
) -> None:
    """Checks that figures of a prompt's rows agree, relative to 1 + their size."""
    bad = relative_gap(got, want) > tolerance
    if bad.any():
        want = np.broadcast_to(want, got.shape)
        raise AssertionError(f"{name}: expected {want[bad][0]}, got {got[bad][0]} for prompt {row}")


def check_form(output: DecodeOutput, rows: int, samples: int, max_new_tokens: int) -> None:
    """Shapes, dtypes, lengths in range, and zeros after each end."""
    required = {
        "tokens": (np.int32, (rows, samples, max_new_tokens)),
        "length": (np.int32, (rows, samples)),
        "log_prob": (np.float32, (rows, samples)),
        "score": (np.float32, (rows, samples)),
        "finished": (np.bool_, (rows, samples)),
    }
    for name, (dtype, shape) in required.items():
        value = np.asarray(getattr(output, name))
        assert value.dtype == dtype and value.shape == shape, (  # noqa: PT018
            f"{name}: expected {np.dtype(dtype)}{list(shape)}, got {value.dtype}{list(value.shape)}"
        )
    tokens, length = np.asarray(output.tokens), np.asarray(output.length)
    outside = (length < 0) | (length > max_new_tokens)
    assert not outside.any(), f"length: {first(outside)} is {length[outside][0]}"
    after = (np.arange(max_new_tokens) >= length[..., None]) & (tokens != 0)
    assert not after.any(), f"tokens: {first(after)} is not 0 after the end"
    assert not np.isnan(output.score).any(), f"score: {first(np.isnan(output.score))} is NaN"


def check_outcomes(
    output: DecodeOutput, distributions: Sequence[Distribution], tolerance: float = 1e-5
) -> np.ndarray:
    """Checks that every sequence is possible, ends correctly, and has the model's log-probability.

    Args:
      output: of B rows; row b has distribution ``b % len(distributions)``.
      distributions: the exact distributions, one per prompt.
      tolerance: of ``log_prob``, relative to 1 + its size.

    Returns:
      Which outcome of its row's distribution each sequence is: int64 ``[B, N]``.
    """
    tokens, length = np.asarray(output.tokens), np.asarray(output.length)
    finished, log_prob = np.asarray(output.finished), np.asarray(output.log_prob, np.float64)
    index = np.zeros(length.shape, np.int64)
    for r, distribution in enumerate(distributions):
        rows = slice(r, None, len(distributions))
        flat = tokens[rows].reshape(-1, tokens.shape[-1])
        found = outcome_index(distribution, flat, length[rows].ravel())
        possible = distribution.prob[found] > 0
        for k in np.flatnonzero((found < 0) | ~possible)[:1]:
            text = flat[k, : length[rows].ravel()[k]].tolist()
            raise AssertionError(f"tokens: {text} is no possible output of prompt {r}")
        index[rows] = found.reshape(length[rows].shape)
        wrong = finished[rows] != distribution.finished[index[rows]]
        assert not wrong.any(), f"finished: wrong for {tokens[rows][wrong][0].tolist()}, prompt {r}"
        check_close("log_prob", log_prob[rows], distribution.log_prob[index[rows]], r, tolerance)
    return index


def distribution_p_values(index: np.ndarray, distributions: Sequence[Distribution]) -> list[float]:
    """Runs a chi-square test for each prompt and lane over the rows that repeat the prompt.

    Args:
      index: from ``check_outcomes``, ``[B, N]``; rows are independent.
      distributions: the exact distributions, one per prompt.
    """
    return [
        chi_square(
            count_outcomes(distribution, index[r :: len(distributions), lane]), distribution.prob
        ).p_value
        for r, distribution in enumerate(distributions)
        for lane in range(index.shape[1])
    ]


def independence_p_values(
    index: np.ndarray, distributions: Sequence[Distribution], lanes: bool = False
) -> list[float]:
    """Tests, for each prompt, that rows are independent, and optionally lanes of a row.

    Outcomes are merged, likeliest first, into at most six groups.

    Args:
      index: from ``check_outcomes``, ``[B, N]``.
      distributions: the exact distributions, one per prompt.
      lanes: whether to test lanes too.
    """
    p_values = []
    for r, distribution in enumerate(distributions):
        order = np.argsort(-distribution.prob, kind="stable")
        group = np.empty(len(order), np.int64)
        group[order] = np.minimum((np.cumsum(distribution.prob[order]) * 6).astype(np.int64), 5)
        merged = np.bincount(group, distribution.prob, minlength=6)
        drawn = group[index[r :: len(distributions)]]
        if lanes and drawn.shape[1] > 1:
            p_values.append(independent(drawn[:, 0], drawn[:, 1], merged / merged.sum()).p_value)
        half = len(drawn) // 2
        pairs = drawn[:half, 0], drawn[half : 2 * half, 0]
        p_values.append(independent(*pairs, merged / merged.sum()).p_value)
    return p_values


def check_prefix_counts(
    index: np.ndarray, distributions: Sequence[Distribution], spread: float
) -> None:
    """Checks that about N p of each row's N samples begin with any prefix of probability p.

    Args:
      index: from ``check_outcomes``, ``[B, N]``.
      distributions: the exact distributions, one per prompt.
      spread: the bound on the distance of the count from N p: 1 for a lattice, 2 for strata.
    """
    samples = index.shape[1]
    for r, distribution in enumerate(distributions):
        drawn = index[r :: len(distributions)]
        for size in range(1, distribution.tokens.shape[1] + 1):
            long_enough = distribution.length >= size
            prefixes = np.unique(distribution.tokens[long_enough, :size], axis=0)
            for prefix in prefixes:
                member = long_enough & (distribution.tokens[:, :size] == prefix).all(-1)
                expected = samples * distribution.prob[member].sum()
                gap = np.abs(member[drawn].sum(-1) - expected).max()
                assert gap < spread + 1e-3, (
                    f"samples: {expected:.3f} of {samples} are expected to begin with "
                    f"{prefix.tolist()} (prompt {r}), and a row differs by {gap:.3f}"
                )


def check_exact(
    index: np.ndarray, distributions: Sequence[Distribution], paths: Sequence[Distribution]
) -> None:
    """Checks that every row is the one correct sequence.

    Args:
      index: from ``check_outcomes`` with ``distributions``.
      distributions: the exact distributions, one per prompt.
      paths: the correct outcome of each prompt, from ``greedy_path``.
    """
    for r, (distribution, path) in enumerate(zip(distributions, paths, strict=True)):
        want = path.tokens[0, : path.length[0]].tolist()
        (right,) = outcome_index(distribution, path.tokens, path.length)
        wrong = index[r :: len(distributions)] != right
        if wrong.any():
            k = index[r :: len(distributions)][wrong][0]
            got = distribution.tokens[k, : distribution.length[k]].tolist()
            raise AssertionError(f"tokens: expected {want}, got {got} for prompt {r}")


def check_likeliest(
    index: np.ndarray, distributions: Sequence[Distribution], tolerance: float = 1e-5
) -> None:
    """Checks that no possible sequence is more probable under the model than any row's.

    Args:
      index: from ``check_outcomes`` with ``distributions``.
      distributions: the exact distributions, one per prompt.
      tolerance: the largest difference between log-probabilities that count as equal.
    """
    for r, distribution in enumerate(distributions):
        best = int(np.argmax(np.where(distribution.prob > 0, distribution.log_prob, -np.inf)))
        got = distribution.log_prob[index[r :: len(distributions)]]
        wrong = got < distribution.log_prob[best] - tolerance
        if wrong.any():
            text = distribution.tokens[best, : distribution.length[best]].tolist()
            raise AssertionError(
                f"tokens: expected a log-probability of {distribution.log_prob[best]:.5f}, which "
                f"{text} has, got {got[wrong][0]:.5f} for prompt {r}"
            )


def check_same(got: DecodeOutput, want: DecodeOutput, what: str, rounding: float = 0.0) -> None:
    """Checks that two outputs have equal tokens, lengths and ends, and equal log-probabilities.

    Args:
      got: one output.
      want: the other.
      what: the difference between the two runs, for the message.
      rounding: how far log-probabilities and scores may differ, relative to 1 + their size: 0
        for two calls of one compiled function. Another one may sum in another order.
    """
    for name in ("tokens", "length", "finished", "log_prob", "score"):
        x, y = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
        assert x.shape == y.shape, f"{what}: {name} has shape {x.shape}, not {y.shape}"
        wrong = x != y
        if rounding and x.dtype == np.float32:
            wrong = relative_gap(x, y) > rounding
        assert not wrong.any(), (
            f"{what}: {name} {first(wrong)} is {x[wrong][0]}, not {y[wrong][0]}; "
            f"{wrong.sum()} of {wrong.size} differ"
        )


def first(wrong: np.ndarray) -> str:
    """The index of the first True."""
    return str([int(i) for i in np.argwhere(wrong)[0]])
