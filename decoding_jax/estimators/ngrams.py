"""The n-grams that texts share, counted exactly on the device for all pairs at once.

Texts become padded arrays of integers on the host. The n-grams are then named as in the algorithm
of Karp, Miller and Rosenberg 1972 ("Rapid identification of repeated patterns in strings, trees
and arrays"): an n-gram is identified by the name of its first n - 1 tokens together with its last
token, and equal pairs are neighbours after a sort. Nothing is hashed, so different n-grams never
have the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax.base import Array
from decoding_jax.estimators.quality import imported


class PaddedTexts(NamedTuple):
    """Texts as integers.

    Attributes:
      tokens: int32 ``[..., N, L]``, any integers; entries beyond a text's length are not read.
      length: int32 ``[..., N]``.
    """

    tokens: Array
    length: Array


def characters(texts: Sequence[str]) -> PaddedTexts:
    """The characters of texts without white space, as their code points.

    Args:
      texts: N texts.

    Returns:
      ``[N, L]``, where L is a power of two and at least 32, so that few programs are compiled.

    Example:
      >>> characters(["a b", ""]).length.tolist()
      [2, 0]
    """
    _check(texts)
    return _padded([[ord(c) for c in "".join(text.split())] for text in texts])


def words(texts: Sequence[str], ids: dict[Hashable, int] | None = None) -> PaddedTexts:
    """The words of texts in sacrebleu's default tokenization (13a), numbered.

    Args:
      texts: N texts.
      ids: the number of each word, to which new words are added; by default empty. Pass the same
        dictionary for all texts that are compared.

    Returns:
      ``[N, L]``, as from ``characters``.

    Raises:
      ImportError: if sacrebleu is not installed.
    """
    _check(texts)
    ids = {} if ids is None else ids
    tokenize = imported("sacrebleu.metrics").BLEU().tokenizer
    split = [tokenize(text.rstrip()).split() for text in texts]
    return _padded([[ids.setdefault(word, len(ids)) for word in text] for text in split])


@partial(jax.jit, static_argnames=("order", "table_size"))
def matches(
    texts: PaddedTexts, references: PaddedTexts | None, *, order: int, table_size: int = 2**24
) -> Array:
    """The number of n-grams that each text shares with each reference.

    An n-gram that occurs a times in the text and b times in the reference counts min(a, b) times,
    as in BLEU and chrF. The occurrences of an n-gram in a text are numbered. The n-grams that two
    texts share are then the intersection of two sets, and all intersections are one product of
    matrices of 0 and 1, which is exact in the arithmetic of any device.

    Args:
      texts: ``[..., N, L]``.
      references: ``[..., M, L']`` with the same first axes, or None for the texts themselves.
      order: the largest n.
      table_size: the largest number of entries of a table of texts and n-grams; the n-grams that do
        not fit are counted with further tables.

    Returns:
      float32 ``[order, ..., N, M]``, for n from 1 to ``order``.

    Example:
      >>> texts = characters(["abab", "bab"])
      >>> matches(texts, None, order=2)[1].tolist()  # ab, ba, ab; ba, ab
      [[3.0, 2.0], [2.0, 2.0]]
    """
    count = texts.tokens.shape[-2]
    rows = texts if references is None else _joined(texts, references)

    def pairs(shared: Array) -> Array:
        left, right = shared[:count], shared if references is None else shared[count:]
        return left @ right.T

    def one(rows: PaddedTexts) -> Array:
        return _matches(rows, order, table_size, pairs)

    for _ in range(rows.length.ndim - 1):
        one = jax.vmap(one)
    return jnp.moveaxis(one(rows), -3, 0)


def totals(length: Array, *, order: int) -> Array:
    """The number of n-grams of texts of these lengths: float32 ``[order, ..., N]``.

    Example:
      >>> totals(jnp.array([3, 0]), order=2).tolist()
      [[3.0, 0.0], [2.0, 0.0]]
    """
    found = [jnp.maximum(length - n, 0) for n in range(order)]
    return jnp.stack(found).astype(jnp.float32)


def _matches(
    rows: PaddedTexts, order: int, table_size: int, pairs: Callable[[Array], Array]
) -> Array:
    """``pairs`` of the table of texts and n-grams, summed over all n-grams, for each order."""
    tokens, length = rows
    num_rows, width = tokens.shape
    size = tokens.size
    place = jnp.arange(size, dtype=jnp.int32)
    row = place // width
    block = min(size, max(table_size // num_rows, 1))

    def step(carry: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], Array]:
        names, last = carry  # of the n - 1 tokens from each place, and the token after them
        valid = (jnp.arange(width, dtype=jnp.int32)[None] + n <= length[:, None]).ravel()
        # Invalid places come last: names are below ``size``.
        by_name = lax.sort((jnp.where(valid, names, size), last.ravel(), place), num_keys=2)
        sorted_place = by_name[2]
        sorted_row = row[sorted_place]
        new_name = _changes(by_name[0]) | _changes(by_name[1])
        # A name is the first index of its n-grams in this order. The k-th one of a text has the
        # k-th index after it, which no other n-gram has.
        name = lax.cummax(jnp.where(new_name, place, 0))
        first_of_row = lax.cummax(jnp.where(new_name | _changes(sorted_row), place, 0))
        element = name + place - first_of_row
        sorted_valid = valid[sorted_place]

        def add(total: Array, start: Array) -> tuple[Array, None]:
            inside = sorted_valid & (element >= start) & (element < start + block)
            column = jnp.where(inside, element - start, block)
            table = jnp.zeros((num_rows, block), jnp.float32)
            return total + pairs(table.at[sorted_row, column].set(1.0, mode="drop")), None

        empty = jax.eval_shape(pairs, jax.ShapeDtypeStruct((num_rows, block), jnp.float32))
        starts = jnp.arange(0, size, block, dtype=jnp.int32)
        total, _ = lax.scan(add, jnp.zeros(empty.shape, jnp.float32), starts)
        names = jnp.zeros(size, jnp.int32).at[sorted_place].set(name)
        return (names, jnp.roll(last, -1, 1)), total

    start = (jnp.zeros(size, jnp.int32), jnp.asarray(tokens, jnp.int32))
    return lax.scan(step, start, jnp.arange(1, order + 1, dtype=jnp.int32))[1]


def _changes(values: Array) -> Array:
    """Whether a value differs from the one before it."""
    return jnp.concatenate([jnp.ones(1, bool), values[1:] != values[:-1]])


def _joined(texts: PaddedTexts, references: PaddedTexts) -> PaddedTexts:
    """The texts and then the references, as wide as the wider ones."""
    tokens = [jnp.asarray(s.tokens, jnp.int32) for s in (texts, references)]
    width = max(t.shape[-1] for t in tokens)
    wide = [jnp.pad(t, [(0, 0)] * (t.ndim - 1) + [(0, width - t.shape[-1])]) for t in tokens]
    lengths = [jnp.asarray(s.length, jnp.int32) for s in (texts, references)]
    return PaddedTexts(jnp.concatenate(wide, -2), jnp.concatenate(lengths, -1))


def _padded(rows: Sequence[Sequence[int]]) -> PaddedTexts:
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), power_of_two(max(32, *lengths, 0))), np.int32)
    for row, found in zip(tokens, rows, strict=True):
        row[: len(found)] = found
    return PaddedTexts(jnp.asarray(tokens), jnp.asarray(lengths))


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below a positive number.

    Example:
      >>> [power_of_two(n) for n in (1, 3, 4)]
      [1, 4, 4]
    """
    return 1 << (int(number) - 1).bit_length()


def _check(texts: Any) -> None:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"texts: expected a list of texts, got {texts!r}")
