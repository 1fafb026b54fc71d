"""A draft head given as a table, whose logits show any misuse of its cache or of features."""

from __future__ import annotations

import dataclasses
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
        target = self.target.with_features(self.feature_layers)
        hidden = jnp.roll(features[0], self.feature_layers[0] - target.num_layers, -1)
        agree = [
            (x == y).all(-1) for x, y in zip(features, target.features_of(hidden), strict=True)
        ]
        hidden = jnp.where(jnp.stack(agree).all(0)[..., None], hidden, jnp.nan)
        return self._state(hidden, jnp.zeros((*hidden.shape[:-1], target.vocab_size)))

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
        numbers, after = self._continued(tokens, states[:, 0], place)
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
        numbers, states = self._continued(tokens, states, place)
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

    def _continued(self, tokens: Array, states: Array, place: Array) -> tuple[Array, Array]:
        """The numbers ``[..., 2]`` of entries, and the states after their tokens."""
        table = self.target.features
        size, width = table.shape[1:]
        tokens = jnp.clip(tokens, 0, size - 1)
        known = table.reshape((1,) * tokens.ndim + (CHECKSUMS * size, width))
        same = (states[..., None, :width] == known).all(-1)
        before = jnp.where(same.any(-1), jnp.argmax(same, -1).astype(jnp.int32), -1)
        weight = (tokens % 10 + 1) * (place % 10 + 1)
        checksum = (jnp.maximum(before, 0) // size + weight) % CHECKSUMS
        last = jnp.maximum(before, 0) % size
        logits = self.draft.table[checksum, last, tokens]
        after = jnp.where(before < 0, -1, checksum * size + tokens)
        state = self._state(table[checksum, tokens], logits)
        state = jnp.where((before < 0)[..., None], jnp.nan, state)
        return jnp.stack([before, after], -1), state

    def _state(self, hidden: Array, logits: Array) -> Array:
        return jnp.concatenate([hidden, logits.astype(hidden.dtype)], -1)
