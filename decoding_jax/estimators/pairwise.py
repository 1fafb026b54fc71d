"""chrF and BLEU of every text against every reference, on the device.

The scores are those of sacrebleu for one sentence and one reference, to within 1e-6 of their range
of 0 to 100. ``chrf`` and ``bleu`` take texts; ``chrf_of`` and ``bleu_of`` take arrays, with any
number of axes in front, inside ``jit`` or outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array
from decoding_jax.estimators import ngrams
from decoding_jax.estimators.ngrams import PaddedTexts

Utility = Callable[[Sequence[str], Sequence[str]], Array]
"""``(texts, references) -> scores [N, M]`` of all pairs, higher is better."""


def chrf(texts: Sequence[str], references: Sequence[str] | None = None) -> Array:
    """chrF of every text against every reference (Popovic 2015).

    Args:
      texts: N texts.
      references: M texts; None for the texts themselves.

    Returns:
      float32 ``[N, M]``, 0 to 100: sacrebleu's ``sentence_chrf`` with its defaults, which are
      characters without white space, n up to 6, beta = 2, and the mean over the orders that both
      texts have.

    Raises:
      ValueError: if ``texts`` is one string.

    Example:
      >>> chrf(["ab", "ac", ""]).round(2).tolist()
      [[100.0, 25.0, 0.0], [25.0, 100.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return _of_texts(ngrams.characters, chrf_of, texts, references)


def bleu(texts: Sequence[str], references: Sequence[str] | None = None) -> Array:
    """Sentence-BLEU of every text against every reference (Papineni et al. 2002).

    Args:
      texts: N texts.
      references: M texts; None for the texts themselves.

    Returns:
      float32 ``[N, M]``, 0 to 100: sacrebleu's ``sentence_bleu`` with its defaults, which are 13a
      tokens, n up to 4 or the text's length, and exponential smoothing: the i-th order without a
      match has precision 1 / (2^i total).

    Raises:
      ValueError: if ``texts`` is one string.
      ImportError: if sacrebleu, which splits texts into tokens, is not installed.
    """
    ids: dict[Hashable, int] = {}
    return _of_texts(partial(ngrams.words, ids=ids), bleu_of, texts, references)


@jax.jit
def chrf_of(texts: PaddedTexts, references: PaddedTexts | None = None) -> Array:
    """``chrf`` of arrays.

    Args:
      texts: characters ``[..., N, L]``, from ``ngrams.characters``.
      references: ``[..., M, L']``; None for the texts themselves.

    Returns:
      float32 ``[..., N, M]``.
    """
    order, beta_squared = 6, 4.0
    shared = ngrams.matches(texts, references, order=order)
    ours, theirs = _totals(texts, references, order)
    precision = shared / jnp.maximum(ours, 1)
    recall = shared / jnp.maximum(theirs, 1)
    orders = jnp.maximum(((ours > 0) & (theirs > 0)).astype(jnp.float32).sum(0), 1)
    precision, recall = precision.sum(0) / orders, recall.sum(0) / orders
    weighted = beta_squared * precision + recall
    score = (1 + beta_squared) * precision * recall / jnp.where(weighted > 0, weighted, 1)
    return 100 * score


@jax.jit
def bleu_of(texts: PaddedTexts, references: PaddedTexts | None = None) -> Array:
    """``bleu`` of arrays.

    Args:
      texts: tokens ``[..., N, L]``, from ``ngrams.words`` or of any vocabulary.
      references: ``[..., M, L']``, of the same vocabulary; None for the texts themselves.

    Returns:
      float32 ``[..., N, M]``.
    """
    order = 4
    shared = ngrams.matches(texts, references, order=order)
    ours, theirs = _totals(texts, references, order)
    exists = (ours > 0) & jnp.ones_like(shared, bool)
    halvings = jnp.cumsum((exists & (shared == 0)).astype(jnp.int32), 0)
    counts = jnp.where(shared > 0, shared, jnp.exp2(-halvings.astype(jnp.float32)))
    logs = jnp.where(exists, jnp.log(counts / jnp.maximum(ours, 1)), 0)
    mean = logs.sum(0) / jnp.maximum(exists.astype(jnp.float32).sum(0), 1)
    brevity = jnp.minimum(0, 1 - theirs[0] / jnp.maximum(ours[0], 1))
    return jnp.where(shared[0] > 0, 100 * jnp.exp(mean + brevity), 0)


def best(utilities: Array) -> Array:
    """The text with the highest mean utility: minimum Bayes risk decoding.

    Args:
      utilities: float32 ``[..., N, M]``, of N candidates against M samples, as from ``chrf``. A
        candidate with more utilities of NaN than another one is never chosen; the other utilities
        decide among candidates with equally many.

    Returns:
      int32 ``[...]``, the index of the candidate; the first of equally good ones.

    Example:
      >>> int(best(chrf(["a cat", "a hat", "the cat", "a cat"])))
      0
    """
    is_nan = jnp.isnan(utilities)
    num_nan = is_nan.sum(-1, dtype=jnp.int32)
    mean = jnp.where(is_nan, 0.0, utilities).mean(-1)
    eligible = num_nan == num_nan.min(-1, keepdims=True)
    mean = jnp.maximum(mean, jnp.finfo(mean.dtype).min)  # above all that are not eligible
    return jnp.argmax(jnp.where(eligible, mean, -jnp.inf), -1).astype(jnp.int32)


def _totals(texts: PaddedTexts, references: PaddedTexts | None, order: int) -> tuple[Array, Array]:
    """The numbers of n-grams: ``[order, ..., N, 1]`` and ``[order, ..., 1, M]``."""
    theirs = texts if references is None else references
    ours = ngrams.totals(texts.length, order=order)
    return ours[..., :, None], ngrams.totals(theirs.length, order=order)[..., None, :]


def _of_texts(
    encode: Callable[[Sequence[str]], PaddedTexts],
    score: Callable[[PaddedTexts, PaddedTexts | None], Array],
    texts: Sequence[str],
    references: Sequence[str] | None,
) -> Array:
    """Scores of texts. Their numbers are padded to powers of two, so few programs are compiled."""
    groups = [texts] if references is None else [texts, references]
    encoded = []
    for group in groups:
        tokens, length = encode(group)
        more = ngrams.power_of_two(max(len(group), 1)) - len(group)
        encoded.append(
            PaddedTexts(jnp.pad(tokens, [(0, more), (0, 0)]), jnp.pad(length, [(0, more)]))
        )
    found = np.asarray(score(encoded[0], *encoded[1:]))
    return jnp.asarray(found[: len(texts), : len(groups[-1])])
