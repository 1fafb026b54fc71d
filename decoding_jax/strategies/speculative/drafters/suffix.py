"""Suffix drafts: what follows the longest suffix of a text that occurs in it or in a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.ops.gather import gather_last
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.drafters.base import Path
from decoding_jax.strategies.speculative.drafters.prompt_lookup import PromptLookup, last_tokens
from decoding_jax.strategies.speculative.stages import count_leading

_SORTED = 64  # tokens by which the suffixes of a corpus are sorted
_BETWEEN, _AFTER, _BEFORE = -1, -2, -3  # two texts; the end of the corpus; the beginning of a text


@pytree
@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts in which suffixes are found: their tokens, and the orders of their suffixes.

    Corpora of one padded size share compiled programs. ``jax.device_put`` keeps one on the device.

    Attributes:
      tokens: int32 ``[N]``, the texts one after another, with -1 between them and -2 at the end.
      forward: int32 ``[N]``, the indices of the tokens in the order of what begins there.
      backward: int32 ``[N]``, the same for the tokens in reverse.
      count: int32, the number of tokens and of the -1 between them; what is beyond is padding.

    Example:
      >>> corpus = Corpus.of([[5, 6, 7], [6, 7, 8]])
      >>> corpus.tokens.tolist()
      [5, 6, 7, -1, 6, 7, 8, -2]
      >>> corpus.forward[: corpus.count].tolist()
      [3, 0, 1, 4, 2, 5, 6]
    """

    tokens: Any = fields.field(shared_axes=None)
    forward: Any = fields.field(shared_axes=None)
    backward: Any = fields.field(shared_axes=None)
    count: Any = fields.field(shared_axes=None)

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], padded_size: int | None = None) -> Corpus:
        """Makes the corpus of some texts, in NumPy: about 2 s for a million tokens.

        Args:
          texts: the tokens of each.
          padded_size: N; by default, the next power of two.

        Raises:
          ValueError: for texts without tokens, or not of token ids, or an N that is too small.
        """
        texts = list(texts)
        for text in texts:
            ids = np.asarray(text)
            if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
                raise fields.error("texts", "a list of token ids for each text", text)
            if ids.size and not 0 <= ids.min() <= ids.max() < 2**31:
                worst = ids.min() if ids.min() < 0 else ids.max()
                raise fields.error("texts", "token ids of 0 and above, of 32 bits", worst)
        parts = [part for text in texts if len(text) for part in ([_BETWEEN], text)]
        if not parts:
            raise fields.error("texts", "one token or more", texts)
        tokens = np.concatenate([np.asarray(part, np.int32) for part in parts])[1:]
        count = len(tokens)
        size = padded_size or 1 << count.bit_length()
        if size < count:
            raise fields.error("padded_size", f"{count} or more, the number of tokens", size)
        padding = (0, size - count)
        return cls(
            np.pad(tokens, padding, constant_values=_AFTER),
            np.pad(_suffix_order(tokens), padding),
            np.pad(_suffix_order(tokens[::-1]), padding),
            np.int32(count),
        )


def _suffix_order(tokens: np.ndarray) -> np.ndarray:
    """The indices of tokens in the order of the tokens from there on, int32.

    Manber and Myers 1993, "Suffix Arrays: A New Method for On-Line String Searches": an order by m
    tokens gives one by 2 m. Suffixes that agree in the first ``_SORTED`` tokens are in any order.
    """
    rank = np.unique(tokens, return_inverse=True)[1]
    compared = 1
    while True:
        following = np.full(len(rank), -1)
        following[:-compared] = rank[compared:]
        order = np.lexsort((following, rank))
        sorted_ranks, sorted_following = rank[order], following[order]
        new = np.diff(sorted_ranks, prepend=-1) != 0
        new |= np.diff(sorted_following, prepend=-2) != 0
        rank = np.empty_like(rank)
        rank[order] = np.cumsum(new) - 1
        compared *= 2
        if compared >= min(_SORTED, len(rank)) or new.all():
            return order.astype(np.int32)


def _checked_corpus(name: str, value: Any) -> Corpus:
    if not isinstance(value, Corpus):
        raise fields.error(name, "a Corpus, such as Corpus.of makes of lists of tokens", value)
    return value


@pytree
@dataclasses.dataclass(frozen=True)
class SuffixDrafter(PromptLookup):
    """Copies drafts from the text and from a corpus, by the longest suffix that occurs in either.

    Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications"
    (arXiv:2411.04975); Hu et al. 2024, "SAM Decoding: Speculative Decoding via Suffix Automaton"
    (arXiv:2411.10666). They keep a suffix tree and an automaton on the host; here the corpus is
    sorted beforehand, and its suffixes are found by binary search on the device.

    The longest match of up to ``size`` tokens is used. Of equally long matches, one in the text is
    preferred to one in the corpus, and the latest of those in the text (see ``PromptLookup``). Of
    those in the corpus, sorted by what follows, the one in the middle is used: if more than half
    of them go on with the same tokens, these are drafted.

    Attributes:
      size: the maximum length of a match, 1 or more. The longest match in a corpus is found for
        sizes up to 64, by which it is sorted.
      source: further tokens of each row, as for ``PromptLookup``.
      corpus: a ``Corpus``, such as of documents, code, or earlier outputs; or None.

    Raises:
      ValueError: for a size below 1, or a corpus that is no ``Corpus``.

    Example:
      >>> from decoding_jax import Prompt
      >>> corpus = Corpus.of([[7, 8, 9, 5], [3, 7, 8, 9, 6], [1, 8, 9, 5]])
      >>> prompt = Prompt(jnp.array([[7, 8]]), jnp.array([2]))
      >>> path = Path(prompt, jnp.array([[[9]]]), jnp.array([[1]]))
      >>> SuffixDrafter(corpus=corpus).guess((), path, 2).tolist()
      [[[6, -1]]]
    """

    size: int = fields.count(default=16)
    corpus: Corpus | None = fields.field(
        _checked_corpus, expected="a Corpus", shared_axes=None, default=None
    )

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """See ``Guesser.guess``."""
        draft, matched = self.copied(path, count)
        if self.corpus is None:
            return draft
        found, length = _find(self.corpus, last_tokens(path, self.size), count)
        # A match that nothing follows is none.
        length = jnp.where(found[..., 0] >= 0, length, 0)
        return jnp.where((length > matched)[..., None], found, draft)


def _find(corpus: Corpus, suffix: Array, count: int) -> tuple[Array, Array]:
    """What follows the longest suffix that occurs in a corpus.

    Args:
      corpus: the corpus.
      suffix: int32 ``[B, W, n]``, the last tokens, the last one first; -1 where there are fewer.
      count: the number of tokens to return.

    Returns:
      int32 ``[B, W, count]``, padded with -1, and the length of the match, int32 ``[B, W]``.
    """
    tokens, forward, backward = (
        jnp.asarray(x, jnp.int32) for x in (corpus.tokens, corpus.forward, corpus.backward)
    )
    total = jnp.asarray(corpus.count, jnp.int32)
    size = suffix.shape[-1]

    def text(start: Array, number: int) -> Array:
        index = start[..., None] + jnp.arange(number, dtype=jnp.int32)[None, None]
        return tokens.at[index].get(mode="fill", fill_value=_AFTER)

    def reversed_text(place: Array) -> Array:
        first = total - backward.at[jnp.minimum(place, total - 1)].get(mode="clip") - size
        index = first[..., None] + jnp.arange(size, dtype=jnp.int32)[None, None]
        inside = jnp.where(index >= 0, tokens.at[index].get(mode="clip"), _AFTER)
        return inside[..., ::-1]

    # The neighbours of the reversed suffix in the order of reversed texts have the longest match.
    suffix = jnp.where(suffix >= 0, suffix, _BEFORE)
    every = jnp.full(suffix.shape[:2], size, jnp.int32)
    place = _bound(reversed_text, total, tokens.size, suffix, every, False)
    neighbours = [reversed_text(jnp.maximum(place - 1, 0)), reversed_text(place)]
    length = jnp.maximum(*(count_leading(other == suffix) for other in neighbours))

    index = length[..., None] - 1 - jnp.arange(size, dtype=jnp.int32)[None, None]
    pattern = jnp.take_along_axis(suffix, jnp.maximum(index, 0), axis=-1)
    read = lambda place: text(forward.at[place].get(mode="clip"), size)  # noqa: E731
    low, high = (
        _bound(read, total, tokens.size, pattern, length, after) for after in (False, True)
    )
    middle = forward.at[(low + high) // 2].get(mode="clip")
    found = text(middle + length, count)
    return jnp.where(jnp.cumprod((found >= 0).astype(jnp.int32), axis=-1) > 0, found, -1), length


def _bound(
    read: Callable[[Array], Array],
    total: Array,
    most: int,
    pattern: Array,
    length: Array,
    after: bool,
) -> Array:
    """The number of sorted texts that are below a pattern, int32 ``[B, W]``.

    Args:
      read: from places in the order, int32 ``[B, W]``, to the first tokens there, ``[B, W, n]``.
      total: int32, the number of texts.
      most: the largest possible number.
      pattern: int32 ``[B, W, n]``.
      length: int32 ``[B, W]``, the number of tokens that are compared.
      after: whether to count the texts that begin with the pattern too.
    """
    compared = jnp.arange(pattern.shape[-1], dtype=jnp.int32)[None, None] < length[..., None]

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        text = read(middle)
        differs = compared & (text != pattern)
        first = lax.argmax(differs, differs.ndim - 1, jnp.int32)
        below = gather_last(text, first) < gather_last(pattern, first)
        below = jnp.where(differs.any(-1), below, after) & (low < high)
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    bounds = jnp.zeros(length.shape, jnp.int32), jnp.broadcast_to(total, length.shape)
    return lax.fori_loop(0, most.bit_length(), halve, bounds)[0]
