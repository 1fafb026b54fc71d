"""EAGLE: drafts from the hidden states of the target, which see further than its tokens do.

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"; Li et al.
2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test".
The correspondence of names, with those of EAGLE-3, section 3:

=====================  ==============================================
this module            Li et al. 2025
=====================  ==============================================
``features``           l, m and h, features of three layers
``head.fuse``          the layer FC, which makes g of l, m and h
``states``             g for tokens that the target has seen, else a
``head.extend``        the decoder layer, which makes a of g or a and e
``head.project``       the LM head of the draft
=====================  ==============================================
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, Cache, Prompt
from decoding_jax.loop import model_calls
from decoding_jax.ops.gather import gather_position
from decoding_jax.pytrees import pytree
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative.drafters.base import (
    HeadDrafter,
    Path,
    confidence,
    first_states,
)


class DraftHead(Protocol):
    """A small network that continues the hidden states of a target. A head is a pytree.

    An entry of its cache is a pair: a state and the token *after* the token of the state. Entries
    of a prompt are shared by the lanes of a row, and each lane has slots for others, as in the
    cache of a ``LanguageModel``.

    Attributes:
      feature_layers: the target's layers that ``fuse`` takes, as for
        ``SupportsFeatures.with_features``.
      vocab_size: V', the size of the draft's own vocabulary.
    """

    @property
    def feature_layers(self) -> tuple[int, ...]: ...
    @property
    def vocab_size(self) -> int: ...

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """Makes states ``[B, W, T, D']`` of the target's hidden states, ``[B, W, T, D]`` each."""
        ...

    def prefill(
        self, tokens: Array, states: Array, length: Array, *, lanes: int, slots: int
    ) -> Cache:
        """Runs the prompts' entries and creates the cache.

        Args:
          tokens: int32 ``[B, P]``, of each entry.
          states: ``[B, 1, P, D']``, of each entry.
          length: int32 ``[B]``, from 0 to P, the number of entries of each row.
          lanes: W.
          slots: S, the number of further entries that a lane can hold.
        """
        ...

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        states: Array,
        start: Array,
        visible: Array | None = None,
    ) -> tuple[Array, Cache]:
        """Runs T new entries of every lane, and writes entry t to slot ``start + t``.

        Args:
          cache: from ``prefill`` or an earlier ``extend``.
          tokens: int32 ``[B, W, T]``.
          states: ``[B, W, T, D']``.
          start: int32 ``[B, W]``. Writes outside ``[0, S)`` are dropped.
          visible: None for a chain, or bool ``[B, W, T, S]`` for a tree, as in
            ``LanguageModel.extend``.

        Returns:
          The states ``[B, W, T, D']`` of the entries' tokens, and the cache.
        """
        ...

    def project(self, states: Array) -> Array:
        """The logits ``[..., V']`` of the token after each of ``states [..., D']``."""
        ...


class EagleState(NamedTuple):
    """The state of ``Eagle``.

    Attributes:
      cache: the head's cache, whose slot t has the entry of new token t.
      state: ``[B, W, C, D']``, of the last token of each draft.
      seen: ``[B, W, K + 1, D']``, states that the target's last call gives.
      start: int32 ``[B, W]``, the slot of the entry of the first of them.
    """

    cache: Cache
    state: Array
    seen: Array
    start: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Eagle(HeadDrafter):
    """Drafts with a head that continues the target's own hidden states.

    Li et al. 2025, "EAGLE-3" (arXiv:2503.01840). The head takes the hidden states of some layers of
    the target for the tokens that it has seen, and its own states for drafted ones. Each block
    begins with one call of the head for all tokens that the last call of the target accepted, so
    that no entry of its cache rests on a state of its own; rejected entries are overwritten. K
    drafted tokens take K calls of the head. ``load_drafter`` reads published heads.

    Attributes:
      head: the network, a ``DraftHead``, such as a ``models.EagleHead``.
      vocab_size: the target's V.
      token_ids: int32 ``[V']``, the target's id of each token of the head's vocabulary; or None if
        the vocabularies are the same. The other tokens are never drafted.
      greedy: as in ``ModelDrafter``.
      min_confidence: as in ``ModelDrafter``.

    Raises:
      ValueError: for a ``min_confidence`` outside 0 to 1.
    """

    head: Any
    vocab_size: int = fields.count()
    token_ids: Any = fields.field(default=None, shared_axes=None)
    greedy: bool = fields.switch(default=False)
    min_confidence: float = confidence()

    def open(
        self,
        prompt: Prompt,
        *,
        lanes: int,
        slots: int,
        max_draft_tokens: int,
        features: tuple[Array, ...],
        num_drafts: int = 1,
        **sizes: Any,
    ) -> EagleState:
        """See ``TreeDrafter.open``. A prompt of n tokens has n - 1 entries."""
        states = self.head.fuse(features)
        entries = jnp.roll(prompt.tokens, -1, 1), states, prompt.length - 1
        cache = self.head.prefill(*entries, lanes=lanes, slots=slots)
        return EagleState(cache, *first_states(states, prompt, lanes, num_drafts, max_draft_tokens))

    def observe(self, state: EagleState, features: tuple[Array, ...], start: Array) -> EagleState:
        """See ``FeatureDrafter.observe``."""
        return state._replace(seen=self.head.fuse(features), start=start + 1)

    def begin(self, state: EagleState, path: Path) -> tuple[Array, EagleState]:
        """See ``Drafter.begin``."""
        count = state.seen.shape[2]
        tokens = path.tokens_from(state.start, count)
        states, cache = self._extend(state, tokens, state.seen, state.start)
        # Entries after the last token are of rejected ones, and are overwritten by drafted ones.
        last = jnp.clip(path.length - 1 - state.start, 0, count - 1)
        states = jnp.broadcast_to(gather_position(states, last)[:, :, None], state.state.shape)
        return self._logits(states[:, :, 0]), state._replace(cache=cache, state=states)

    def next_level(
        self,
        state: EagleState,
        tokens: Array,
        start: Array,
        visible: Array | None,
        parent: Array | None = None,
    ) -> tuple[Array, EagleState]:
        """See ``TreeDrafter.next_level``."""
        if parent is not None:
            states = jnp.take_along_axis(state.state, parent[..., None], axis=2)
            state = state._replace(state=states)
        states, cache = self._extend(state, tokens, state.state, start, visible)
        return self._logits(states), state._replace(cache=cache, state=states)

    def _extend(self, state: EagleState, *entries: Any) -> tuple[Array, Cache]:
        states, cache = self.head.extend(state.cache, *entries)
        model_calls.check_same_cache(state.cache, cache, "drafter.head", "extend")
        return states, cache

    def _logits(self, states: Array) -> Array:
        """The logits ``[..., V]`` after states."""
        return of_target(self.head.project(states), self.token_ids, self.vocab_size)


def of_target(logits: Array, token_ids: Any, vocab_size: int) -> Array:
    """Logits ``[..., V']`` of a head's vocabulary as ``[..., V]``; -inf for the other tokens.

    Args:
      logits: float ``[..., V']``.
      token_ids: int32 ``[V']``, as of ``Eagle``, or None.
      vocab_size: the target's V.

    Example:
      >>> of_target(jnp.array([2.0, 1.0]), [3, 0], 4).tolist()
      [1.0, -inf, -inf, 2.0]
    """
    logits = meshes.gathered(logits)
    if token_ids is None:
        return logits
    ids = jnp.asarray(token_ids, jnp.int32)
    full = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    return full.at[..., ids].set(logits, mode="drop")
