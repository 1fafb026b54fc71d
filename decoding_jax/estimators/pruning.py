"""Minimum Bayes risk decoding that skips comparisons of candidates unlikely to be the best.

Cheng and Vlachos 2023, "Faster Minimum Bayes Risk Decoding with Confidence-based Pruning",
arXiv:2311.14919, algorithms 1 and 2. The number of samples that candidates are compared with grows
step by step. After each step, a bootstrap over these samples estimates how often each candidate is
at least as good as the best one so far. Candidates for which this is rare are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array
from decoding_jax.estimators.ngrams import power_of_two
from decoding_jax.estimators.pairwise import Utility
from decoding_jax.ops import precision, random


class Chosen(NamedTuple):
    """The result of a pruned search for the best candidate.

    Attributes:
      best: the index of the candidate.
      num_utilities: the number of pairs of texts that were compared.
      left: the indices of the candidates that were not dropped; the first index of equal texts.
    """

    best: int
    num_utilities: int
    left: tuple[int, ...]


def minimum_bayes_risk(
    key: Array,
    texts: Sequence[str],
    utility: Utility,
    *,
    references: Sequence[str] | None = None,
    alpha: float = 0.99,
    schedule: Sequence[int] | None = None,
    num_resamples: int = 500,
) -> Chosen:
    """The candidate with the highest mean utility, found with fewer comparisons.

    The samples are taken in a random order, so they may be dependent, as arithmetic samples are.
    Dependent samples vary less than the bootstrap assumes, so fewer candidates are dropped than
    could be. Equal texts are compared once.

    Args:
      key: a typed key, of the order and of the bootstrap.
      texts: the candidates.
      utility: ``(texts, references) -> scores [N, M]``, such as ``pairwise.chrf``, or your own
        network. Each step calls it with the candidates that are left and the new references. Of
        these candidates, those with more utilities of NaN than others are dropped at once.
      references: the samples that candidates are compared with; None for the candidates.
      alpha: from 0 to 1. A candidate is dropped if it is at least as good as the best so far in
        less than 1 - alpha of the resamples. With 1, no candidate is dropped, and all pairs are
        compared.
      schedule: the rising numbers of samples of the steps; None for 8, 16, 32 and so on up to all.
      num_resamples: the number of resamples of the bootstrap.

    Returns:
      The choice, and the number of utilities that were computed for it.

    Raises:
      ValueError: for a raw key, no texts or references, an alpha outside [0, 1], a schedule that
        does not rise within 1 to the number of references, no resamples, or a utility of another
        shape.

    Example:
      >>> from decoding_jax.estimators import pairwise
      >>> samples = [*(f"a cat sat on {i}" for i in range(20)), *"bcdefghijklm"]
      >>> chosen = minimum_bayes_risk(jax.random.key(0), samples, pairwise.chrf)
      >>> samples[chosen.best][:10], len(chosen.left) <= 20, chosen.num_utilities < 32 * 32
      ('a cat sat ', True, True)
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts: expected a list of one text or more, got {texts!r}")
    samples = list(texts if references is None else references)
    if isinstance(references, str) or not samples:
        raise ValueError(f"references: expected a list of one text or more, got {references!r}")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha: expected a number from 0 to 1, got {alpha}")
    if num_resamples < 1:
        raise ValueError(f"num_resamples: expected 1 or more, got {num_resamples}")
    steps = _steps(schedule, len(samples))
    keys = random.row_keys(key, len(steps) + 1)
    samples = [samples[i] for i in np.asarray(jax.random.permutation(keys[-1], len(samples)))]

    candidates = list(dict.fromkeys(texts))
    columns: dict[str, int] = {}
    scores, used = np.zeros((len(candidates), 0), np.float32), 0
    for step, count in enumerate(steps):
        new = [text for text in dict.fromkeys(samples[:count]) if text not in columns]
        if new:
            columns |= {text: len(columns) + i for i, text in enumerate(new)}
            scores = np.concatenate([scores, _scores(utility, candidates, new)], 1)
            used += len(candidates) * len(new)
        seen = scores[:, [columns[text] for text in samples[:count]]]
        num_nan = np.isnan(seen).sum(1)
        sound = np.flatnonzero(num_nan == num_nan.min())
        candidates, scores = [candidates[i] for i in sound], scores[sound]
        seen = np.where(np.isnan(seen[sound]), 0.0, seen[sound])
        if count == steps[-1]:
            break
        rows = power_of_two(len(candidates))
        padded = np.pad(seen, [(0, rows - len(candidates)), (0, 0)])
        wins = np.asarray(_wins(keys[step], padded, len(candidates), num_resamples))
        kept = np.flatnonzero(wins[: len(candidates)] >= (1 - alpha) * num_resamples - 1e-6)
        candidates, scores, seen = [candidates[i] for i in kept], scores[kept], seen[kept]
        if len(candidates) == 1:
            break
    index = list(texts).index(candidates[int(seen.mean(1, dtype=np.float64).argmax())])
    return Chosen(index, used, tuple(list(texts).index(text) for text in candidates))


def _steps(schedule: Sequence[int] | None, count: int) -> list[int]:
    if schedule is None:
        return [*(n for n in (2**i for i in range(3, 64)) if n < count), count]
    steps = [int(number) for number in schedule]
    rising = all(a < b for a, b in zip([0, *steps], [*steps, count + 1], strict=True))
    if not steps or not rising:
        raise ValueError(
            f"schedule: expected rising numbers from 1 to the number of references, {count}, got"
            f" {list(schedule)}"
        )
    return steps


def _scores(utility: Utility, texts: list[str], references: list[str]) -> np.ndarray:
    found = np.asarray(utility(texts, references), np.float32)
    if found.shape != (len(texts), len(references)):
        raise ValueError(
            f"utility: expected scores [N, M], {[len(texts), len(references)]} here, got shape"
            f" {list(found.shape)}"
        )
    return found


@partial(jax.jit, static_argnames=("num_resamples",))
def _wins(key: Array, scores: Array, count: Array, num_resamples: int) -> Array:
    """The number of resamples of the columns in which a row's mean is at least the best row's.

    Args:
      key: a typed key.
      scores: float32 ``[N, r]``.
      count: the rows from this one on are padding.
      num_resamples: the number of resamples.

    Returns:
      int32 ``[N]``.
    """
    exists = jnp.arange(scores.shape[0], dtype=jnp.int32) < count
    means = jnp.where(exists, scores.mean(-1), -jnp.inf)
    # Scores less those of the best row: equal rows win by 0 exactly, in any order of summation.
    ahead = scores - scores[jnp.argmax(means)][None]
    columns = scores.shape[1]
    picked = jax.random.randint(key, (num_resamples, columns), 0, columns, jnp.int32)
    resample = jnp.arange(num_resamples, dtype=jnp.int32)[:, None]
    times = jnp.zeros((num_resamples, columns), jnp.float32).at[resample, picked].add(1.0)
    ahead = jnp.matmul(ahead, times.T, precision=precision.of(ahead, times))
    return (ahead >= 0).sum(-1, dtype=jnp.int32)
