"""Multi-token prediction: blocks trained with the target, each of which sees one token further.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (arXiv:2412.19437), section 2.2. The correspondence
of names:

=======================  =====================================================================
this module              DeepSeek-AI 2024
=======================  =====================================================================
``states`` of block k    h^(k-1), which for k = 1 are the target's last hidden states
``blocks[k - 1].extend`` equations 21 and 22: M_k, of a state and an embedding, and TRM_k
``blocks[k - 1].project``  equation 23, OutHead
=======================  =====================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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

_BLOCKS = "a sequence of blocks"


def _as_blocks(name: str, value: Any) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise fields.error(name, _BLOCKS, value) from None


class PredictionBlock(Protocol):
    """A block of multi-token prediction; a pytree.

    An entry of its cache is a pair of a state and a token, as in a ``DraftHead``, and ``extend`` is
    that of a ``DraftHead``. Block k takes the states that block k - 1 has after the token before.

    Attributes:
      feature_layers: the target's layer that ``fuse`` takes, as for
        ``SupportsFeatures.with_features``.
      vocab_size: V, the target's.
    """

    @property
    def feature_layers(self) -> tuple[int, ...]: ...
    @property
    def vocab_size(self) -> int: ...

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """The states ``[B, W, T, D]`` of the first block, of the target's hidden states."""
        ...

    def run_prompts(
        self, tokens: Array, states: Array, length: Array, *, lanes: int, slots: int
    ) -> tuple[Array, Cache]:
        """Runs the prompts' entries and creates the cache; see ``DraftHead.prefill``.

        Returns:
          The states ``[B, 1, P, D]`` after the tokens of the entries, and the cache.
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
        """See ``DraftHead.extend``."""
        ...

    def project(self, states: Array) -> Array:
        """The logits ``[..., V]`` of the token after each of ``states [..., D]``."""
        ...


class MultiTokenState(NamedTuple):
    """The state of ``MultiTokenPrediction``.

    Attributes:
      caches: the cache of each block, whose slot t has the entry of new token t.
      last: ``[B, W, N, D]``, the state of each block after the last token that is no draft.
      states: ``[B, W, N, C, D]``, the state of each block after the last token of each draft.
      drafted: int32 ``[B, W]``, the number of tokens of each draft.
      seen: ``[B, W, K + 1, D]``, states that the target's last call gives.
      start: int32 ``[B, W]``, the slot of the entry of the first of them.
    """

    caches: tuple[Cache, ...]
    last: Array
    states: Array
    drafted: Array
    seen: Array
    start: Array


@pytree
@dataclasses.dataclass(frozen=True)
class MultiTokenPrediction(HeadDrafter):
    """Drafts with the blocks of multi-token prediction that a target was trained with.

    DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (arXiv:2412.19437), section 2.2. Of N blocks,
    block k predicts the k-th drafted token from the state of block k - 1 and the token before. The
    last block drafts all further tokens from its own states, as serving engines use the one block
    of most published models. Each draft begins with a call of every block for the tokens that the
    target's last call accepted, so that no entry of a cache rests on a rejected token. A further
    token costs a call of one block if there are one or two, and of N - 1 blocks otherwise.
    ``load_drafter`` reads published blocks.

    Attributes:
      blocks: N blocks, each a ``PredictionBlock``, such as a ``models.MultiTokenBlock``.
      greedy: as in ``ModelDrafter``.
      min_confidence: as in ``ModelDrafter``.

    Raises:
      ValueError: for no block, or a ``min_confidence`` outside 0 to 1.
    """

    blocks: Sequence[Any] = fields.field(
        lambda name, value: _as_blocks(name, value), expected=_BLOCKS
    )
    greedy: bool = fields.switch(default=False)
    min_confidence: float = confidence()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.blocks:
            raise fields.error("blocks", "one block or more", self.blocks)

    @property
    def vocab_size(self) -> int:
        return self.blocks[0].vocab_size

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self.blocks[0].feature_layers

    @property
    def widens(self) -> bool:
        return all(getattr(block, "widens", False) for block in self.blocks)

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
    ) -> MultiTokenState:
        """See ``TreeDrafter.open``. A prompt of n tokens has n - k entries in block k.

        If n is less than k, the first new tokens have entries whose state is 0.
        """
        target = self.blocks[0].fuse(features)
        shape = (target.shape[0], lanes)
        states, caches, last = target, [], []
        for k, block in enumerate(self.blocks, 1):
            entries = jnp.roll(prompt.tokens, -k, 1), states, jnp.maximum(prompt.length - k, 0)
            states, cache = block.run_prompts(*entries, lanes=lanes, slots=slots)
            after = gather_position(states, jnp.maximum(prompt.length - k, 1)[:, None] - 1)
            last.append(jnp.where((prompt.length > k)[:, None, None], after, 0))
            caches.append(cache)
        each = jnp.broadcast_to(jnp.stack(last, 2), (*shape, len(last), target.shape[-1]))
        _, seen, start = first_states(target, prompt, lanes, num_drafts, max_draft_tokens)
        return MultiTokenState(
            caches=tuple(caches),
            last=each,
            states=jnp.repeat(each[:, :, :, None], num_drafts, 3),
            drafted=jnp.zeros(shape, jnp.int32),
            seen=seen,
            start=start,
        )

    def observe(
        self, state: MultiTokenState, features: tuple[Array, ...], start: Array
    ) -> MultiTokenState:
        """See ``FeatureDrafter.observe``."""
        return state._replace(seen=self.blocks[0].fuse(features), start=start + 1)

    def begin(self, state: MultiTokenState, path: Path) -> tuple[Array, MultiTokenState]:
        """See ``Drafter.begin``."""
        count = state.seen.shape[2]
        tokens = path.tokens_from(state.start, count)
        # Entries after the last token are of rejected ones, and are overwritten by drafted ones.
        end = jnp.clip(path.length - 1 - state.start, 0, count - 1)
        states, caches, last = state.seen, [], []
        for k in range(len(self.blocks)):
            out, cache = self._extend(state, k, tokens, states, state.start)
            states = jnp.concatenate([state.last[:, :, k, None], out[:, :, :-1]], 2)
            last.append(gather_position(out, end))
            caches.append(cache)
        each = jnp.stack(last, 2)
        state = state._replace(
            caches=tuple(caches),
            last=each,
            states=jnp.broadcast_to(each[:, :, :, None], state.states.shape),
            drafted=jnp.zeros_like(state.drafted),
        )
        return self._logits(each[:, :, 0]), state

    def next_level(
        self,
        state: MultiTokenState,
        tokens: Array,
        start: Array,
        visible: Array | None,
        parent: Array | None = None,
    ) -> tuple[Array, MultiTokenState]:
        """See ``TreeDrafter.next_level``: through every block that a later token needs.

        Block k needs no entry of a drafted token but for the tokens that block k predicts or that a
        later block does. The entries of blocks 2 to N - 1 that nothing needs are written too.
        """
        if parent is not None:
            index = parent[:, :, None, :, None]
            state = state._replace(states=jnp.take_along_axis(state.states, index, axis=3))
        final, drafted = len(self.blocks) - 1, state.drafted + 1
        before, caches = state.states, list(state.caches)
        after = [before[:, :, 0]]
        for k in range(min(1, final), final + 1):
            states = before[:, :, k - 1]
            if k == final:
                own = (drafted > final)[..., None, None]
                states = jnp.where(own, before[:, :, k], states)
            out, caches[k] = self._extend(state, k, tokens, states, start, visible)
            after[k:] = [out]
        states = jnp.stack(after, 2)
        chosen = jnp.minimum(drafted, final)[:, :, None, None, None]
        predicted = jnp.take_along_axis(states, chosen, 2)[:, :, 0]
        state = state._replace(caches=tuple(caches), states=states, drafted=drafted)
        return self._logits(predicted), state

    def _extend(self, state: MultiTokenState, k: int, *entries: Any) -> tuple[Array, Cache]:
        states, cache = self.blocks[k].extend(state.caches[k], *entries)
        model_calls.check_same_cache(state.caches[k], cache, f"drafter.blocks[{k}]", "extend")
        return states, cache

    def _logits(self, states: Array) -> Array:
        return meshes.gathered(self.blocks[0].project(states))
