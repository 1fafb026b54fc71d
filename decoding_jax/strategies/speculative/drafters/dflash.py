"""DFlash: a block of tokens drafted in one call, from the hidden states of the target.

Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv:2602.06036). The
distributions of a block's tokens do not depend on each other. Each drafted token is drawn from its
own, which is the ``q`` that the verifier compares with the target's.
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
from decoding_jax.strategies.speculative.drafters.base import HeadDrafter, Path, confidence
from decoding_jax.strategies.speculative.drafters.bigram import last_token
from decoding_jax.strategies.speculative.drafters.eagle import of_target


class BlockHead(Protocol):
    """A small network that drafts b - 1 tokens from the hidden states of a target; a pytree.

    Attributes:
      feature_layers: as in ``DraftHead``.
      vocab_size: V', the size of the draft's own vocabulary.
      block_size: b.
    """

    @property
    def feature_layers(self) -> tuple[int, ...]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def block_size(self) -> int: ...

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """Makes states ``[B, W, T, D']`` of the target's hidden states, ``[B, W, T, D]`` each."""
        ...

    def prefill(self, states: Array, length: Array, *, lanes: int, slots: int) -> Cache:
        """Creates the cache of the prompts' states ``[B, 1, P, D']``, with slots for new tokens."""
        ...

    def draft(
        self, cache: Cache, token: Array, states: Array, start: Array, length: Array
    ) -> tuple[Array, Cache]:
        """Writes states of new tokens to the cache, and drafts a block after the last token.

        Args:
          cache: from ``prefill`` or an earlier ``draft``.
          token: int32 ``[B, W]``, the last token, whose state is not known yet.
          states: ``[B, W, T, D']``, of new tokens.
          start: int32 ``[B, W]``, the slot of the first of them. Writes outside of the slots are
            dropped.
          length: int32 ``[B, W]``, the number of new tokens. The block sees the slots before the
            last of them.

        Returns:
          The logits ``[B, W, b - 1, V']`` of the tokens after the last one, and the cache.
        """
        ...


class DFlashState(NamedTuple):
    """The state of ``DFlash``.

    Attributes:
      cache: the head's cache, whose slot t has the target's state of new token t.
      seen: ``[B, W, K + 1, D']``, states that the target's last call gives.
      start: int32 ``[B, W]``, the slot of the first of them.
      logits: float32 ``[B, W, b - 1, V]``, of the block.
      first: int32 ``[B, W]``, the slot of the block's first drafted token.
    """

    cache: Cache
    seen: Array
    start: Array
    logits: Array
    first: Array


@pytree
@dataclasses.dataclass(frozen=True)
class DFlash(HeadDrafter):
    """Drafts a block of tokens in one call of a head that reads the target's hidden states.

    Chen et al. 2026, "DFlash" (arXiv:2602.06036). A block has b - 1 drafted tokens, of which the
    first K are used. ``load_drafter`` reads published heads.

    Attributes:
      head: the network, a ``BlockHead``, such as a ``models.DFlashHead``.
      vocab_size: the target's V.
      token_ids: as of ``Eagle``.
      greedy: as in ``ModelDrafter``.
      min_confidence: as in ``ModelDrafter``.

    Raises:
      ValueError: for a ``min_confidence`` outside 0 to 1; and where it is used, for K above b - 1.
    """

    head: Any
    vocab_size: int = fields.count()
    token_ids: Any = fields.field(default=None, shared_axes=None)
    greedy: bool = fields.switch(default=False)
    min_confidence: float = confidence()

    one_call = True  # for all tokens of a draft

    def init(  # type: ignore[override]
        self,
        prompt: Prompt,
        *,
        lanes: int,
        max_new_tokens: int,
        max_draft_tokens: int,
        features: tuple[Array, ...],
    ) -> DFlashState:
        """See ``FeatureDrafter.init``."""
        size = self.head.block_size - 1
        if max_draft_tokens > size:
            expected = f"at most {size}, the drafted tokens of the head's block"
            raise fields.error("num_draft_tokens", expected, max_draft_tokens)
        states, slots = self.head.fuse(features), max(max_new_tokens - 1, 1)
        shape = (states.shape[0], lanes)
        return DFlashState(
            cache=self.head.prefill(states, prompt.length, lanes=lanes, slots=slots),
            seen=jnp.zeros((*shape, max_draft_tokens + 1, states.shape[-1]), states.dtype),
            start=jnp.full(shape, -max_draft_tokens - 1, jnp.int32),  # Nothing is written yet.
            logits=jnp.zeros((*shape, size, self.vocab_size), jnp.float32),
            first=jnp.zeros(shape, jnp.int32),
        )

    def open(self, prompt: Prompt, *, slots: int, num_drafts: int = 1, **sizes: Any) -> DFlashState:
        """See ``TreeDrafter.open``. The cache holds the target's states alone, and no drafts."""
        return self.init(prompt, **sizes)

    def observe(self, state: DFlashState, features: tuple[Array, ...], start: Array) -> DFlashState:
        """See ``FeatureDrafter.observe``."""
        return state._replace(seen=self.head.fuse(features), start=start)

    def begin(self, state: DFlashState, path: Path) -> tuple[Array, DFlashState]:
        """See ``Drafter.begin``."""
        block = last_token(path), state.seen, state.start, path.length
        logits, cache = self.head.draft(state.cache, *block)
        model_calls.check_same_cache(state.cache, cache, "drafter.head", "draft")
        logits = of_target(logits, self.token_ids, self.vocab_size).astype(jnp.float32)
        state = state._replace(cache=cache, logits=logits, first=path.length)
        return logits[:, :, 0], state

    def next(self, state: DFlashState, token: Array, slot: Array) -> tuple[Array, DFlashState]:
        """See ``Drafter.next``: the logits after a token of the block, which they do not see."""
        return gather_position(state.logits, slot - state.first + 1), state

    def next_level(
        self,
        state: DFlashState,
        tokens: Array,
        start: Array,
        visible: Array | None,
        parent: Array | None = None,
    ) -> tuple[Array, DFlashState]:
        """See ``TreeDrafter.next_level``: the same logits after all tokens of a level."""
        level = (start - state.first) // tokens.shape[-1] + 1
        logits = gather_position(state.logits, level)[:, :, None]
        return jnp.broadcast_to(logits, (*tokens.shape, self.vocab_size)), state
