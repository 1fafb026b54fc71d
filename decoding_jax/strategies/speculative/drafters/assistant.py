"""Assistants: drafts by a network with queries alone, which read the target's keys and values.

Google DeepMind 2026, "Gemma 4 Multi-Token Prediction" (ai.google.dev/gemma/docs/mtp/mtp). An
assistant has no cache. It continues the target's last hidden state, as a block of multi-token
prediction does, and attends to what the target's last layers of each kind have in their cache, from
the position of the last token for all tokens of a draft.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol, Self

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, Prompt
from decoding_jax.ops.gather import gather_position
from decoding_jax.pytrees import pytree
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative.drafters.base import (
    HeadDrafter,
    Path,
    confidence,
    first_states,
)
from decoding_jax.strategies.speculative.drafters.bigram import last_token


class AssistantHead(Protocol):
    """A small network that reads the keys and values of a target. A head is a pytree.

    Attributes:
      feature_layers: a tuple of one number, that of the target's layers: its last hidden state
        (see ``SupportsFeatures.with_features``).
      vocab_size: V, the target's.
    """

    @property
    def feature_layers(self) -> tuple[int, ...]: ...
    @property
    def vocab_size(self) -> int: ...

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """The states ``[B, W, T, D]``, of the target's hidden states."""
        ...

    def draft(self, tokens: Array, states: Array, keys: Any) -> tuple[Array, Array]:
        """Runs tokens, each of which sees all of the keys, and none of the others.

        Args:
          tokens: int32 ``[B, W, T]``.
          states: ``[B, W, T, D]``, the state before each of the tokens.
          keys: from ``SupportsSharedKeys.shared_keys``.

        Returns:
          The logits ``[B, W, T, V]`` after the tokens, and their states ``[B, W, T, D]``.
        """
        ...


class AssistantState(NamedTuple):
    """The state of ``Assistant``.

    Attributes:
      state: ``[B, W, C, D]``, of the last token of each draft.
      seen: ``[B, W, K + 1, D]``, states that the target's last call gives.
      start: int32 ``[B, W]``, the number of new tokens before the first of them.
    """

    state: Array
    seen: Array
    start: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Assistant(HeadDrafter):
    """Drafts with a head that reads the target's last hidden state and its keys and values.

    A draft begins with the last token and the target's state before it, and goes on with the head's
    own states. No entry is written anywhere: a drafted token is known to those after it by the
    state alone. K drafted tokens take K calls of the head. ``load_drafter`` reads the assistants of
    Gemma 4.

    Attributes:
      head: the network, an ``AssistantHead``, such as a ``models.Gemma4Assistant``.
      greedy: as in ``ModelDrafter``.
      min_confidence: as in ``ModelDrafter``.
      keys: what the head reads during a block, from ``with_keys``.

    Raises:
      ValueError: for a ``min_confidence`` outside 0 to 1.
    """

    head: Any
    greedy: bool = fields.switch(default=False)
    min_confidence: float = confidence()
    keys: Any = fields.field(default=None, shared_axes=None)

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    def with_keys(self, keys: Any) -> Self:
        """See ``KeyDrafter.with_keys``."""
        return dataclasses.replace(self, keys=keys)

    def open(
        self,
        prompt: Prompt,
        *,
        lanes: int,
        max_draft_tokens: int,
        features: tuple[Array, ...],
        num_drafts: int = 1,
        **sizes: Any,
    ) -> AssistantState:
        """See ``TreeDrafter.open``."""
        states = self.head.fuse(features)
        return AssistantState(*first_states(states, prompt, lanes, num_drafts, max_draft_tokens))

    def observe(
        self, state: AssistantState, features: tuple[Array, ...], start: Array
    ) -> AssistantState:
        """See ``FeatureDrafter.observe``."""
        return state._replace(seen=self.head.fuse(features), start=start)

    def begin(self, state: AssistantState, path: Path) -> tuple[Array, AssistantState]:
        """See ``Drafter.begin``: begins with the state of the token before the last one."""
        before = jnp.clip(path.length - 2 - state.start, 0, state.seen.shape[2] - 1)
        known = gather_position(state.seen, before)[:, :, None]
        logits, new = self._draft(last_token(path)[..., None], known)
        return logits[:, :, 0], state._replace(state=jnp.broadcast_to(new, state.state.shape))

    def next_level(
        self,
        state: AssistantState,
        tokens: Array,
        start: Array,
        visible: Array | None,
        parent: Array | None = None,
    ) -> tuple[Array, AssistantState]:
        """See ``TreeDrafter.next_level``."""
        before = state.state
        if parent is not None:
            before = jnp.take_along_axis(before, parent[..., None], axis=2)
        logits, new = self._draft(tokens, before)
        return logits, state._replace(state=new)

    def _draft(self, tokens: Array, states: Array) -> tuple[Array, Array]:
        logits, new = self.head.draft(tokens, states, self.keys)
        return meshes.gathered(logits), new.astype(states.dtype)
