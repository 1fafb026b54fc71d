"""Estimates of the experiment on arithmetic sampling: variances, best scores, diversity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from decoding_jax.estimators.diversity import ngrams, words


def label(pair: Sequence[float | None]) -> str:
    """The name of a temperature and a top-k.

    Example:
      >>> label((0.5, None)), label((1.0, 40))
      ('temperature 0.5', 'temperature 1, top-k 40')
    """
    temperature, top_k = pair
    name = f"temperature {temperature:g}"
    return name if top_k is None else f"{name}, top-k {top_k:g}"


def diversity_of(texts: Sequence[str]) -> float:
    """The sum for n from 1 to 4 of the share of n-grams that are distinct: 0 to 4.

    Example:
      >>> diversity_of(["a b c d", "a b c d"])
      2.0
    """
    split = [words(text) for text in texts]
    total = 0.0
    for n in range(1, 5):
        grams = [gram for tokens in split for gram in ngrams(tokens, n)]
        total += len(set(grams)) / max(len(grams), 1)
    return round(total, 4)


def variance_independent(scores: np.ndarray, count: int) -> np.ndarray:
    """The variance of the mean of N independent samples of each input: float64 ``[n]``.

    It is the variance of one sample over N, and all samples ``[n, runs, samples]`` estimate that.
    """
    return scores.reshape(len(scores), -1).var(-1, ddof=1) / count


def variance_lattice(scores: np.ndarray, count: int) -> np.ndarray:
    """The variance of the mean of a lattice of N, from runs of larger lattices: float64 ``[n]``.

    Every M/N-th sample of a lattice of M is a lattice of N, so M/N means come from each run. They
    depend on each other, and runs do not: the mean of their squares, less the mean product of two
    different runs' means, is an unbiased estimate. For N = M it is the sample variance over runs.
    These lattices are those of ``estimators.repeated.pass_at_k_of_lattice``: their samples follow
    their codes until they are alone among M, and those of a call for N until alone among N.

    Args:
      scores: float64 ``[n, R, M]``, R at least 2.
      count: N, a divisor of M.
    """
    return variance_of_parts(parts_of(scores, count).mean(-1))


def parts_of(scores: np.ndarray, count: int) -> np.ndarray:
    """The lattices of N in lattices of M: ``[n, R, M]`` as ``[n, R, M/N, N]``."""
    inputs, runs, size = scores.shape
    return scores.reshape(inputs, runs, count, size // count).swapaxes(2, 3)


def variance_of_parts(means: np.ndarray) -> np.ndarray:
    """The variance of means of which those of one run depend on each other: float64 ``[n]``.

    Args:
      means: float64 ``[n, R, P]``, of P parts of each of R runs.
    """
    runs = means.shape[1]
    centred = means - means.mean((1, 2), keepdims=True)
    whole = centred.mean(-1)
    products = whole.sum(1) ** 2 - (whole**2).sum(1)
    return (centred**2).mean((1, 2)) - products / (runs * (runs - 1))


def oracle_independent(scores: np.ndarray, count: int) -> np.ndarray:
    """The expected best score of N of each input's independent samples: float64 ``[n]``.

    The mean over all choices of N of them, by the order statistics.
    """
    pooled = np.sort(scores.reshape(len(scores), -1), axis=-1)
    size = pooled.shape[1]
    weights = [math.comb(i, count - 1) / math.comb(size, count) for i in range(size)]
    return pooled @ np.asarray(weights)


def oracle_lattice(scores: np.ndarray, count: int) -> np.ndarray:
    """The mean best score of the lattices of N in lattices of M: float64 ``[n]``.

    They are those of ``variance_lattice``.
    """
    inputs, runs, size = scores.shape
    return scores.reshape(inputs, runs, count, size // count).max(2).mean((1, 2))


def ratio_of_deviations(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The ratio of the standard deviations of means over inputs, for ``interval``."""
    return np.sqrt(np.maximum(ours.sum(-1), 0) / theirs.sum(-1))


def halved(ratio: Sequence[float]) -> str:
    """Whether the interval of a ratio says that it is below one half."""
    _, low, high = ratio
    return "yes" if high < 0.5 else "no" if low > 0.5 else "open"
