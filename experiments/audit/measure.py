"""How far counts are from a distribution, and how far chance alone would bring them."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

IMPOSSIBLE = 1e-12


def total_variation(counts: np.ndarray, distribution: np.ndarray) -> float:
    """Half the sum of the absolute differences between frequencies and probabilities.

    Args:
      counts: how often each outcome occurred, of any shape.
      distribution: the outcomes' probabilities, of the same shape.
    """
    return 0.5 * float(np.abs(counts / counts.sum() - distribution).sum())


def noise_floor(distribution: np.ndarray, samples: int) -> float:
    """The total variation that ``samples`` independent draws from ``distribution`` have on average.

    Each frequency is taken to be normally distributed.
    """
    return float(np.sqrt(distribution * (1 - distribution) / (2 * math.pi * samples)).sum())


def p_value(counts: np.ndarray, distribution: np.ndarray) -> float:
    """The p-value of Pearson's chi-square test, or 0 if an impossible outcome occurred.

    Outcomes that are expected fewer than five times are pooled, and a pool that is still so small
    is put with the rarest of the others.
    """
    counts, distribution = counts.ravel().astype(float), distribution.ravel()
    if counts[distribution < IMPOSSIBLE].any():
        return 0.0
    expected = distribution * counts.sum()
    kept = expected >= 5
    observed, wanted = list(counts[kept]), list(expected[kept])
    rest = counts[~kept].sum(), expected[~kept].sum()
    if rest[1] >= 5 or not wanted:
        observed.append(rest[0])
        wanted.append(rest[1])
    elif rest[1] > IMPOSSIBLE:
        rarest = int(np.argmin(wanted))
        observed[rarest] += rest[0]
        wanted[rarest] += rest[1]
    if len(wanted) < 2:
        return 1.0
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    return float(stats.chi2.sf(statistic, len(wanted) - 1))
