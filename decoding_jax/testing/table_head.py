"""Draft heads given as tables, whose logits show any misuse of their cache or of features."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.pytrees import pytree
from decoding_jax.testing.table_lm import CHECKSUMS, TableLM, count_up, write


class HeadCache(NamedTuple):
    """Each entry as a pair of numbers: of the path before its token, and of the path with it.

    Attributes:
      prompt: int32 ``[B, P, 2]``.
      length: int32 ``[B]``, the number of a prompt's entries.
      slots: int32 ``[B, W, S, 2]``, -1 where nothing was written.
    """

    prompt: Array
    length: Array
    slots: Array


@pytree
@dataclasses.dataclass(frozen=True)
class TableHead:
    """A ``strategies.speculative.DraftHead`` for a ``TableLM``, and a ``PredictionBlock``.

    A state is a hidden state of the target, which tells the checksum and the last token of a path,
    and logits. An entry continues the path by its token, and looks up the logits after it. They are
    NaN unless every entry before it continues the one before that, and the features of all layers
    agree: a missing or a stale entry in the cache, or features of another token, are seen at once.

    Attributes:
      target: the target.
      draft: a table model of the same vocabulary, which gives the logits; the target itself makes
        the head predict as it does.
      token_ids: int32 ``[V']``, the tokens that the head drafts.
      feature_layers: as in ``DraftHead``.
      depth: k, of block k of multi-token prediction, whose first entry has token k of the prompt,
        or of the text where the prompt is shorter; 1 for a head.
    """

    target: TableLM
    draft: TableLM
    token_ids: Any = fields.field(shared_axes=None)
    feature_layers: tuple[int, ...] = fields.field(static=True, default=(0, 2, 3))
    depth: int = fields.field(static=True, default=1)
    widens = True

    @property
    def vocab_size(self) -> int:
        return self.token_ids.shape[-1]

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``DraftHead.fuse``."""
        hidden = hidden_of(self.target, self.feature_layers, features)
        return self._state(hidden, jnp.zeros((*hidden.shape[:-1], self.target.vocab_size)))

    def prefill(
        self, tokens: Array, states: Array, length: Array, *, lanes: int, slots: int
    ) -> HeadCache:
        """See ``DraftHead.prefill``."""
        return self.run_prompts(tokens, states, length, lanes=lanes, slots=slots)[1]

    def run_prompts(
        self, tokens: Array, states: Array, length: Array, *, lanes: int, slots: int
    ) -> tuple[Array, HeadCache]:
        """See ``PredictionBlock.run_prompts``."""
        place = count_up(tokens.shape) + self.depth
        numbers, after = self.continued(tokens, states[:, 0], place)
        empty = jnp.full((tokens.shape[0], lanes, slots, 2), -1, jnp.int32)
        return after[:, None], HeadCache(numbers, length, empty)

    def extend(
        self,
        cache: HeadCache,
        tokens: Array,
        states: Array,
        start: Array,
        visible: Array | None = None,
    ) -> tuple[Array, HeadCache]:
        """See ``DraftHead.extend``. Of a tree, the entry before is the last slot that is seen."""
        slot = start[..., None] + count_up(tokens.shape)
        depth = slot if visible is None else visible.sum(-1, dtype=jnp.int32)
        place = cache.length[:, None, None] + depth + self.depth
        numbers, states = self.continued(tokens, states, place)
        before, after = (write(cache.slots[..., i], slot, numbers[..., i]) for i in range(2))
        # The entry before slot 0 is the prompt's last one, if it has any. Otherwise, the first
        # slots may be those before the first entry.
        last = jnp.maximum(cache.length - 1, 0)[:, None]
        last = jnp.take_along_axis(cache.prompt[..., 1], last, 1)
        has_any = cache.length[:, None] > 0
        last = jnp.where(has_any, last, before[:, :, 0])
        absent = jnp.cumprod((before < 0).astype(jnp.int32), -1) == 1
        absent &= (count_up(before.shape) < self.depth - 1) & ~has_any[..., None]
        if visible is None:
            earlier = jnp.concatenate([last[..., None], after[:, :, :-1]], -1)
            is_first = jnp.concatenate([absent[..., :1] & False, absent[..., :-1]], -1)
            sound = absent | (((before == earlier) | is_first) & (before >= 0))
            follows = jnp.cumprod(sound.astype(jnp.int32), -1)
            sound = jnp.take_along_axis(follows, jnp.clip(slot, 0, before.shape[-1] - 1), -1) == 1
        else:
            parent = jnp.where(visible, count_up(visible.shape), 0).max(-1)
            sound = jnp.take_along_axis(after, parent, -1) == numbers[..., 0]
        states = jnp.where(sound[..., None], states, jnp.nan)
        return states, cache._replace(slots=jnp.stack([before, after], -1))

    def project(self, states: Array) -> Array:
        """See ``DraftHead.project``."""
        logits = states[..., self.target.features.shape[-1] :]
        return jnp.take(logits, jnp.asarray(self.token_ids), axis=-1, mode="clip")

    def continued(self, tokens: Array, states: Array, place: Array) -> tuple[Array, Array]:
        """The numbers ``[..., 2]`` of entries, and the states after their tokens."""
        table = self.target.features
        size, width = table.shape[1:]
        tokens = jnp.clip(tokens, 0, size - 1)
        before = numbers_of(self.target, states[..., :width])
        checksum = continued(jnp.maximum(before, 0) // size, tokens, place)
        last = jnp.maximum(before, 0) % size
        logits = self.draft.table[checksum, last, tokens]
        after = jnp.where(before < 0, -1, checksum * size + tokens)
        state = self._state(table[checksum, tokens], logits)
        state = jnp.where((before < 0)[..., None], jnp.nan, state)
        return jnp.stack([before, after], -1), state

    def _state(self, hidden: Array, logits: Array) -> Array:
        return jnp.concatenate([hidden, logits.astype(hidden.dtype)], -1)


@pytree
@dataclasses.dataclass(frozen=True)
class TableAssistant:
    """A ``strategies.speculative.AssistantHead`` for a ``TableLM``.

    A state is that of a ``TableHead``, and the number of tokens that were drafted up to it. The
    logits after the first token of a draft are NaN unless the keys are of the path to it, to which
    its state belongs.

    Attributes:
      head: the table, whose ``token_ids`` are all tokens.
    """

    head: TableHead
    widens = True

    vocab_size = property(operator.attrgetter("head.vocab_size"))
    feature_layers = property(operator.attrgetter("head.feature_layers"))

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``AssistantHead.fuse``."""
        state = self.head.fuse(features)
        return jnp.concatenate([state, jnp.zeros_like(state[..., :1])], -1)

    def draft(self, tokens: Array, states: Array, keys: Any) -> tuple[Array, Array]:
        """See ``AssistantHead.draft``."""
        cache, length = keys
        target, drafted = self.head.target, states[..., -1]
        place = (cache.length[:, None] + length - 1)[..., None] + drafted.astype(jnp.int32)
        numbers, after = self.head.continued(tokens, states[..., :-1], place)
        seen: Any = target.extend(cache, tokens[..., :1], length - 1)[0].hidden
        sound = (numbers[..., 1] == numbers_of(target, seen)) | (drafted > 0)
        after = jnp.where(sound[..., None], after, jnp.nan)
        return self.head.project(after), jnp.concatenate([after, drafted[..., None] + 1], -1)


class BlockCache(NamedTuple):
    """The number of the path to each token that the target has seen; -1 where there is none.

    Attributes:
      prompt: int32 ``[B, P]``.
      length: int32 ``[B]``, of each prompt.
      slots: int32 ``[B, W, S]``.
    """

    prompt: Array
    length: Array
    slots: Array


@pytree
@dataclasses.dataclass(frozen=True)
class TableBlockHead:
    """A ``strategies.speculative.BlockHead`` for a ``TableLM``.

    A state is a hidden state of the target, which tells the checksum and the last token of a path.
    The logits of a block are looked up by the path to the last token. They are NaN unless the state
    of every token before it continues that of the one before, and the features of all layers agree.

    Attributes:
      target: the target.
      table: a table model of the same vocabulary, which gives the logits.
      block_size: as in ``BlockHead``.
      feature_layers: as in ``BlockHead``.
    """

    target: TableLM
    table: TableLM
    block_size: int = fields.field(static=True, default=5)
    feature_layers: tuple[int, ...] = fields.field(static=True, default=(0, 2, 3))
    widens = True

    vocab_size = property(operator.attrgetter("target.vocab_size"))

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``BlockHead.fuse``."""
        return hidden_of(self.target, self.feature_layers, features)

    def prefill(self, states: Array, length: Array, *, lanes: int, slots: int) -> BlockCache:
        """See ``BlockHead.prefill``."""
        empty = jnp.full((states.shape[0], lanes, slots), -1, jnp.int32)
        return BlockCache(numbers_of(self.target, states[:, 0]), length, empty)

    def draft(
        self, cache: BlockCache, token: Array, states: Array, start: Array, length: Array
    ) -> tuple[Array, BlockCache]:
        """See ``BlockHead.draft``."""
        size = self.vocab_size
        numbers = numbers_of(self.target, states)
        slots = write(cache.slots, start[..., None] + count_up(numbers.shape), numbers)
        last = jnp.take_along_axis(cache.prompt, cache.length[:, None] - 1, 1)[..., None]
        path = jnp.concatenate([jnp.broadcast_to(last, (*token.shape, 1)), slots], -1)
        place = cache.length[:, None, None] + count_up(slots.shape)
        before, after = path[..., :-1], path[..., 1:]
        follows = continued(before // size, after % size, place) == after // size
        follows &= (before >= 0) & (after >= 0)
        sound = (follows | (count_up(slots.shape) >= length[..., None] - 1)).all(-1)
        found = jnp.take_along_axis(path, length[..., None] - 1, -1, mode="clip")[..., 0]
        checksum = continued(found // size, token, cache.length[:, None] + length - 1)
        ahead = jnp.arange(self.block_size - 1, dtype=jnp.int32)[None, None]
        checksum = (checksum[..., None] + ahead) % CHECKSUMS
        logits = self.table.table[checksum, (found % size)[..., None], token[..., None]]
        return jnp.where(sound[..., None, None], logits, jnp.nan), cache._replace(slots=slots)


def hidden_of(target: TableLM, layers: tuple[int, ...], features: tuple[Array, ...]) -> Array:
    """The hidden states ``[..., D]`` whose outputs of layers these are; NaN where they disagree."""
    target = target.with_features(layers)
    hidden = jnp.roll(features[0], layers[0] - target.num_layers, -1)
    agree = [(x == y).all(-1) for x, y in zip(features, target.features_of(hidden), strict=True)]
    return jnp.where(jnp.stack(agree).all(0)[..., None], hidden, jnp.nan)


def numbers_of(target: TableLM, hidden: Array) -> Array:
    """``checksum * V + last token`` of the paths of hidden states ``[..., D]``; -1 for others."""
    size, width = target.features.shape[1:]
    known = target.features.reshape((1,) * (hidden.ndim - 1) + (CHECKSUMS * size, width))
    same = (hidden[..., None, :] == known).all(-1)
    return jnp.where(same.any(-1), jnp.argmax(same, -1).astype(jnp.int32), -1)


def continued(checksum: Array, token: Array, place: Array) -> Array:
    """The checksum of a path with one more token, which is number ``place`` of it, from 0."""
    return (checksum + (token % 10 + 1) * (place % 10 + 1)) % CHECKSUMS
