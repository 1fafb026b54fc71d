"""How far counts are from a distribution, and how far they must be to be found out."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, stats

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
    cells = _cells(expected)
    if not cells.any():
        return 1.0
    observed, wanted = np.bincount(cells, counts), np.bincount(cells, expected)
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    return float(stats.chi2.sf(statistic, len(wanted) - 1))


def detectable(distribution: np.ndarray, samples: int, level: float, power: float = 0.9) -> float:
    """The total variation from which ``p_value`` finds every deviation with a given power.

    A sampler that is a total variation of t away raises the statistic least where it takes
    from outcomes of half the mass and gives to the other half, in proportion to their
    probabilities. The statistic is then a noncentral chi-square with noncentrality ``4 t^2
    samples``. The mass of outcomes that are tested together is added, since what moves among them
    is not seen.

    Args:
      distribution: the outcomes' probabilities, of any shape.
      samples: the number of draws.
      level: the p-value below which a sampler is said to deviate.
      power: the probability of finding it.
    """
    expected = distribution.ravel() * samples
    cells = _cells(expected)
    freedom = cells.max()
    critical = stats.chi2.isf(level, freedom)
    noncentrality = optimize.brentq(
        lambda x: stats.ncx2.sf(critical, freedom, x) - power, 1e-9, 10 * critical + 100
    )
    possible = expected > IMPOSSIBLE * samples
    together = np.bincount(cells[possible])[cells] > 1
    unseen = float(distribution.ravel()[together & possible].sum())
    return 0.5 * math.sqrt(noncentrality / samples) + unseen


def _cells(expected: np.ndarray) -> np.ndarray:
    """Numbers the cells of the test, by how often each outcome is expected."""
    kept = expected >= 5
    cells = np.cumsum(kept) - 1
    if expected[~kept].sum() >= 5 or not kept.any():
        cells[~kept] = kept.sum()
    else:
        cells[~kept] = cells[kept][np.argmin(expected[kept])]
    return cells
