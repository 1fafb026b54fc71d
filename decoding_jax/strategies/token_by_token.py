"""Token-by-token decoding: every sequence grows by one token a step, which a strategy chooses.

Greedy decoding, sampling and arithmetic sampling are strategies of this loop. All sequences have
the same number of slots in the cache, so each step writes to one slot of every lane, in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Cache, DecodeOutput, LanguageModel, Prefix, Prompt
from decoding_jax.loop import model_calls, stopping
from decoding_jax.loop.counters import per_lane
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
    new_values,
)
from decoding_jax.loop.strategy import Strategy
from decoding_jax.ops.logits import log_prob_of


class TokenByTokenInfo(NamedTuple):
    """Statistics of a token-by-token strategy.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
    """

    model_calls: Array


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      cache: the model's cache.
      sequences: the sequences decoded so far.
      token: int32 ``[B, W]``, the last token of each sequence, which is not in the cache yet.
      chooser: what the strategy chooses by, such as random keys; None for nothing.
      step: int32, a scalar or ``[B]``, the number of tokens that have been chosen for each
        sequence.
      sample_log_prob: as in ``DecodeOutput``.
    """

    cache: Cache
    sequences: Sequences
    token: Array
    chooser: Any
    step: Array
    sample_log_prob: Array | None


class TokenByToken(Strategy):
    """A strategy that chooses one token for each sequence from its transformed logits."""

    @property
    def lanes(self) -> int:
        """W, the number of sequences of a row."""
        return 1

    @property
    def records_sample_log_prob(self) -> bool:
        """Whether the output has ``sample_log_prob``."""
        return False

    def start(self, key: Any, batch_size: int) -> Any:
        """The ``State.chooser`` before the first token, such as the keys of all lanes."""
        return None

    def choose(self, chooser: Any, logits: Array, step: Array) -> tuple[Array, Any]:
        """Chooses a token of each sequence.

        Args:
          chooser: from ``start`` or the step before.
          logits: float32 ``[B, W, V]``, transformed. A sequence whose logits are all -inf ends
            without the token.
          step: int32, a scalar or ``[B, W]``, the number of tokens before.

        Returns:
          The tokens, int32 ``[B, W]``, and the chooser of the next step.
        """
        raise NotImplementedError

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``: the first tokens are chosen from the logits of the prompts."""
        batch, size = prompt.tokens.shape
        limit = check_lengths(model, size, self.max_new_tokens)
        slots = max(limit - 1, 1)  # the last token is never fed
        logits, cache = model_calls.prefill(model, prompt, lanes=self.lanes, slots=slots)
        empty = empty_sequences(stopping.limits(self.stop, batch, limit), self.lanes, limit)
        recorded = None
        if self.records_sample_log_prob:
            recorded = jnp.zeros(empty.tokens.shape, jnp.float32)
        chooser = self.start(key, batch)
        state = State(cache, empty, empty.length, chooser, jnp.int32(0), recorded)
        logits = jnp.broadcast_to(logits, (batch, self.lanes, *logits.shape[2:]))
        return self.advance(logits, prompt, state)

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``: the last tokens are fed, and the next ones chosen."""
        token, start = state.token[..., None], per_lane(state.step - 1, self.lanes)
        output, cache = model_calls.extend(model, state.cache, token, start)
        return self.advance(output.logits, prompt, state._replace(cache=cache))

    def advance(self, logits: Array, prompt: Prompt, state: State) -> State:
        """Chooses a token from ``logits [B, W, 1, V]`` and appends it to sequences not done."""
        old = state.sequences
        path = Prefix(*prompt, old.tokens[:, :, None], old.length[..., None])
        allowed = model_calls.allowed_logits(logits, path, self.stop, self.transform)
        allowed, logits = allowed[:, :, 0], logits[:, :, 0]
        token, chooser = self.choose(state.chooser, allowed, per_lane(state.step, self.lanes))
        new = append_token(old, token, logits, allowed, self.stop, old.tokens.shape[-1])
        recorded = state.sample_log_prob
        if recorded is not None:
            recorded = new_values(old, new, log_prob_of(allowed, token), recorded)
        return State(state.cache, new, token, chooser, state.step + 1, recorded)

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.sequences.done.all(-1)

    def settled(self, state: State) -> Array:
        """See ``Strategy.settled``."""
        return state.sequences.length

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        sequences = state.sequences
        return DecodeOutput(
            tokens=sequences.tokens,
            length=sequences.length,
            log_prob=sequences.log_prob,
            score=sequences.log_prob,
            finished=sequences.finished,
            info=TokenByTokenInfo(state.step),
            sample_log_prob=state.sample_log_prob,
        )
