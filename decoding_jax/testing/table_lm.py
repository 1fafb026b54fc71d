"""A language model given as a table, whose logits show any misuse of its cache.

The distribution of the next token depends on the last two tokens of the path and on a checksum of
the whole path, prompt included. The checksum is that of ISBN-10: every token and every position has
a weight that is not 0 modulo 11, so it changes whenever one token is wrong, missing, or swapped
with its neighbour. The model computes with integers and gathers alone, so its logits do not depend,
to the bit, on the batch, the lanes, T, or how the rows are sharded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array, ModelOutput
from decoding_jax.pytrees import pytree

CHECKSUMS = 11
"""The number of values of a path's checksum."""


class TableCache(NamedTuple):
    """The tokens themselves. A slot that was never written holds token -1 at position -1.

    Attributes:
      prompt: int32 ``[B, P]``.
      length: int32 ``[B]``, of each prompt.
      tokens: int32 ``[B, W, S]``, in each slot.
      position: int32 ``[B, W, S]``, of each slot's token, counted from the prompt's first.
    """

    prompt: Array
    length: Array
    tokens: Array
    position: Array


@pytree
@dataclasses.dataclass(frozen=True)
class TableLM:
    """A language model in a table, with every method of ``base.LanguageModel``.

    A token's logits come only from what the mask lets it see: the visible slots are put in order
    of position, and the path that results is looked up. Whatever is not a path gives NaN: a slot
    never written, a token outside the vocabulary, two tokens at one position, a position left
    out, a token among its own ancestors, a position of ``max_positions`` or above, a token whose
    write was dropped. What is a path, but not the right one, gives other logits.

    Attributes:
      table: float32 ``[11, V + 1, V, V]``: logits given the path's checksum, the token before the
        last (V where there is none) and the last.
      features: float32 ``[11, V, D]``: hidden states given the path's checksum and last token.
      max_positions: as in ``LanguageModel``.
      ragged: False refuses a ``start`` that is not a scalar.
      tree: False refuses ``visible``.
      feature_layers: as in ``with_features``.

    Example:
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt, length = jnp.array([[1, 2, 3], [4, 0, 0]]), jnp.array([3, 1])
      >>> first, cache = model.prefill(prompt, length, lanes=2, slots=4)
      >>> output, cache = model.extend(cache, jnp.ones((2, 2, 3), jnp.int32), 0)
      >>> first.logits.shape, output.logits.shape
      ((2, 1, 1, 5), (2, 2, 3, 5))
    """

    table: Array
    features: Array
    max_positions: int | None = fields.field(static=True, default=None)
    ragged: bool = fields.field(static=True, default=True)
    tree: bool = fields.field(static=True, default=True)
    feature_layers: tuple[int, ...] = fields.field(static=True, default=())
    widens = True
    num_layers = 3

    @property
    def vocab_size(self) -> int:
        return self.table.shape[-1]

    @classmethod
    def random(
        cls,
        key: Array,
        vocab_size: int,
        *,
        sharpness: float = 1.0,
        zeros: float = 0.0,
        ties: bool = False,
        hidden_size: int = 4,
        max_positions: int | None = None,
    ) -> TableLM:
        """Draws a table of independent normal logits.

        Args:
          key: a typed key.
          vocab_size: V.
          sharpness: the standard deviation of the logits: 0 is uniform, 5 nearly deterministic.
          zeros: the probability that a token cannot follow a path (its logit is -inf). One token
            always can.
          ties: rounds the logits to whole numbers, so that many are equal.
          hidden_size: D.
          max_positions: as in ``LanguageModel``.

        Raises:
          ValueError: for an empty vocabulary or a probability outside [0, 1].
        """
        if vocab_size < 1:
            raise fields.error("vocab_size", "1 or more", vocab_size)
        if not 0 <= zeros <= 1:
            raise fields.error("zeros", "a probability from 0 to 1", zeros)
        contexts = (CHECKSUMS, vocab_size + 1, vocab_size)
        whole = (*contexts, vocab_size)
        shapes = (whole, whole, contexts, (CHECKSUMS, vocab_size, hidden_size))
        size = max(_FEWEST, *map(math.prod, shapes))
        drawn = _numbers(key, zeros, vocab_size, size=size)
        # NumPy does the rest, without a program for each shape, unless there is something traced.
        xp: Any = np if all(map(fields.is_readable, (*drawn, sharpness))) else jnp
        table, banned, spare, features = (
            xp.asarray(x)[: math.prod(shape)].reshape(shape)
            for x, shape in zip(drawn, shapes, strict=True)
        )
        table = xp.float32(sharpness) * table
        if ties:
            table = xp.round(table)
        banned = banned & (xp.arange(vocab_size).reshape(1, 1, 1, -1) != spare[..., None])
        table = xp.where(banned, xp.float32(-np.inf), table)
        table, features = jax.device_put((table, features))
        return cls(table, features, max_positions=max_positions)

    def lockstep(self) -> TableLM:
        """The same distributions without ragged rows and trees; either is then a ValueError."""
        return dataclasses.replace(self, ragged=False, tree=False)

    def with_features(self, layers: tuple[int, ...]) -> TableLM:
        """See ``base.SupportsFeatures.with_features``.

        The output of n layers is the hidden states, rolled by ``num_layers`` - n.
        """
        layers = fields.as_layers(layers, self.num_layers)
        return dataclasses.replace(self, feature_layers=layers)

    def features_of(self, hidden: Array) -> tuple[Array, ...]:
        """The outputs of ``feature_layers`` for hidden states."""
        return tuple(jnp.roll(hidden, self.num_layers - n, -1) for n in self.feature_layers)

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, TableCache]:
        """See ``base.LanguageModel.prefill``."""
        tokens, length = jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32)
        if tokens.ndim != 2 or length.shape != tokens.shape[:1]:
            raise ValueError(
                f"tokens and length: expected shapes [B, P] and [B], got {tokens.shape} and "
                f"{length.shape}"
            )
        if lanes < 1 or slots < 0:
            raise ValueError(
                f"lanes and slots: expected 1 or more and 0 or more, got {lanes} and {slots}"
            )
        empty = jnp.full((tokens.shape[0], lanes, slots), -1, jnp.int32)
        cache = TableCache(tokens, length, empty, empty)
        logits, _ = self._look_up(tokens, length)
        if not with_hidden and not self.feature_layers:
            return ModelOutput(logits[:, None, None]), cache
        counts = count_up(tokens.shape) + 1
        paths = jnp.broadcast_to(tokens[:, None], (*tokens.shape, tokens.shape[1]))
        hidden = self._look_up(paths, counts)[1][:, None]
        features = self.features_of(hidden)
        return ModelOutput(logits[:, None, None], hidden if with_hidden else None, features), cache

    def extend(
        self,
        cache: TableCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, TableCache]:
        """See ``base.LanguageModel.extend``. It always returns hidden states ``[B, W, T, D]``."""
        tokens = jnp.asarray(tokens, jnp.int32)
        lanes, slots = cache.tokens.shape[:2], cache.tokens.shape[2]
        if tokens.ndim != 3 or tokens.shape[:2] != lanes:
            raise ValueError(f"tokens: expected shape {list(lanes)} + [T], got {tokens.shape}")
        slot = self._slots(start, lanes)[..., None] + count_up(tokens.shape)
        if visible is None:
            seen = count_up((*tokens.shape, slots)) < slot[..., None]
            depth = slot
        else:
            seen = self._padded(visible, tokens.shape, slots)
            depth = jnp.sum(seen, -1, dtype=jnp.int32)
        if position is None:
            position = cache.length[:, None, None] + depth
        position = jnp.broadcast_to(jnp.asarray(position, jnp.int32), tokens.shape)
        cache = cache._replace(
            tokens=write(cache.tokens, slot, tokens), position=write(cache.position, slot, position)
        )
        path, sound = _order(cache, seen, tokens, position)
        sound = sound & (slot >= 0) & (slot < slots)
        logits, hidden = self._look_up(path, jnp.where(sound, position + 1, 0))
        return ModelOutput(logits, hidden, self.features_of(hidden)), cache

    def shared_keys(self, cache: TableCache, length: Array) -> tuple[TableCache, Array]:
        """See ``base.SupportsSharedKeys.shared_keys``."""
        return cache, length

    def keep(self, cache: TableCache, source: Array, start: Array | int) -> TableCache:
        """See ``base.SupportsKeep.keep``. A source outside [0, S) gives a slot never written."""
        source = jnp.asarray(source, jnp.int32)
        lanes, slots = cache.tokens.shape[:2], cache.tokens.shape[2]
        if source.ndim != 3 or source.shape[:2] != lanes:
            raise ValueError(f"source: expected shape {list(lanes)} + [M], got {source.shape}")
        target = self._slots(start, lanes)[..., None] + count_up(source.shape)
        exists = (source >= 0) & (source < slots)

        def moved(held: Array) -> Array:
            taken = jnp.take_along_axis(held, jnp.clip(source, 0, slots - 1), axis=2)
            return write(held, target, jnp.where(exists, taken, -1))

        return cache._replace(tokens=moved(cache.tokens), position=moved(cache.position))

    def select(self, cache: TableCache, lanes: Array) -> TableCache:
        """See ``base.SupportsSelect.select``."""
        lanes = jnp.asarray(lanes, jnp.int32)
        if lanes.shape != cache.tokens.shape[:2]:
            raise ValueError(f"lanes: expected shape {cache.tokens.shape[:2]}, got {lanes.shape}")
        return cache._replace(
            tokens=jnp.take_along_axis(cache.tokens, lanes[..., None], axis=1),
            position=jnp.take_along_axis(cache.position, lanes[..., None], axis=1),
        )

    def _slots(self, start: Array | int, lanes: tuple[int, ...]) -> Array:
        """``start`` as int32 ``[B, W]``."""
        start = jnp.asarray(start, jnp.int32)
        if start.ndim and not self.ragged:
            raise ValueError(f"start: expected a scalar for a model in lockstep, got {start.shape}")
        if start.shape not in ((), lanes):
            raise ValueError(f"start: expected a scalar or {list(lanes)}, got shape {start.shape}")
        return jnp.broadcast_to(start, lanes)

    def _padded(self, visible: Array, shape: tuple[int, ...], slots: int) -> Array:
        """``visible`` with a column for every slot: those it leaves out are not seen."""
        visible = jnp.asarray(visible)
        if not self.tree:
            raise ValueError("visible: expected None for a model with tree=False, got a mask")
        if visible.dtype != jnp.bool_ or visible.shape[:-1] != shape or visible.shape[-1] > slots:
            raise ValueError(
                f"visible: expected bool{list(shape)} + [at most {slots}], got "
                f"{visible.dtype}{list(visible.shape)}"
            )
        return jnp.pad(visible, ((0, 0), (0, 0), (0, 0), (0, slots - visible.shape[-1])))

    def _look_up(self, path: Array, count: Array) -> tuple[Array, Array]:
        """Logits ``[..., V]`` and hidden states ``[..., D]`` after the first ``count`` of ``path``.

        Args:
          path: int32 ``[..., n]``.
          count: int32 ``[...]``; outside 1 .. n the logits are NaN.
        """
        size, place = self.vocab_size, count_up(path.shape)
        real = place < count[..., None]
        sound = jnp.all(~real | ((path >= 0) & (path < size)), -1)
        sound = sound & (count >= 1) & (count <= path.shape[-1])
        if self.max_positions is not None:
            sound = sound & (count <= self.max_positions)
        weighted = (path % 10 + 1) * (place % 10 + 1)
        checksum = jnp.sum(jnp.where(real, weighted, 0), -1, dtype=jnp.int32) % CHECKSUMS

        def token_at(where: Array) -> Array:
            index = jnp.clip(where, 0, path.shape[-1] - 1)[..., None]
            return jnp.clip(jnp.take_along_axis(path, index, -1)[..., 0], 0, size - 1)

        last = token_at(count - 1)
        before = jnp.where(count >= 2, token_at(count - 2), size)
        logits = jnp.where(sound[..., None], self.table[checksum, before, last], jnp.nan)
        return logits, self.features[checksum, last]


_FEWEST = 2**15  # So many numbers are drawn at least, enough for 13 tokens, by one program.


@functools.partial(jax.jit, static_argnames="size")
def _numbers(
    key: Array, zeros: Array, vocab_size: Array, *, size: int
) -> tuple[Array, Array, Array, Array]:
    """The numbers of a table: which come first does not depend on how many there are.

    This holds for the default implementation of keys, whose numbers are functions of their places.
    """
    table, zero, spare, features = jax.random.split(key, 4)
    return (
        jax.random.normal(table, (size,), jnp.float32),
        jax.random.bernoulli(zero, jnp.asarray(zeros, jnp.float32), (size,)),
        jax.random.randint(spare, (size,), 0, vocab_size, jnp.int32),
        jax.random.normal(features, (size,), jnp.float32),
    )


def count_up(shape: tuple[int, ...]) -> Array:
    """0, 1, 2, ... along the last axis of an int32 array of this shape."""
    return jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)


def write(held: Array, slot: Array, values: Array) -> Array:
    """``held [B, W, S]`` with ``values [B, W, T]`` written to ``slot``, or dropped if outside."""
    slots = held.shape[2]
    slot = jnp.where((slot >= 0) & (slot < slots), slot, slots)  # a negative index would wrap
    one_lane = lambda row, at, new: row.at[at].set(new, mode="drop")  # noqa: E731
    return jax.vmap(jax.vmap(one_lane))(held, slot, values)


def _order(cache: TableCache, seen: Array, tokens: Array, position: Array) -> tuple[Array, Array]:
    """Puts what each token sees in order of position.

    Args:
      cache: with the tokens of this call already written.
      seen: bool ``[B, W, T, S]``: the slots that each token sees, itself apart.
      tokens: int32 ``[B, W, T]``.
      position: int32 ``[B, W, T]``.

    Returns:
      The path to each token, the prompt first and itself last, int32 ``[B, W, T, P + S]``; and
      bool ``[B, W, T]``: whether every position of it was held by exactly one token.
    """
    width = cache.prompt.shape[1] + cache.tokens.shape[2]
    slot_position = cache.position[:, :, None]
    place = count_up((*tokens.shape, width))
    held = seen[..., None, :] & (slot_position[..., None, :] == place[..., None])
    held_tokens = jnp.where(held, cache.tokens[:, :, None, None], 0)
    prompt = jnp.pad(cache.prompt, ((0, 0), (0, width - cache.prompt.shape[1])))
    end, length = position[..., None], cache.length[:, None, None, None]
    path = jnp.where(
        place < length, prompt[:, None, None], jnp.sum(held_tokens, -1, dtype=jnp.int32)
    )
    path = jnp.where(place == end, tokens[..., None], path)
    required = ((place >= length) & (place < end)).astype(jnp.int32)
    sound = jnp.all(jnp.sum(held, -1, dtype=jnp.int32) == required, -1)
    astray = seen & ((slot_position < 0) | (slot_position >= width))
    return path, sound & ~jnp.any(astray, -1) & (position >= length[..., 0])
