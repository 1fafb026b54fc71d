"""Power sampling by Metropolis-Hastings: whole texts whose ends are drawn again and again.

Karan & Du 2025, "Reasoning with Sampling: Your Base Model is Smarter Than You Think",
arXiv:2510.14901, Algorithm 1. ``power_sample`` has the same target, by particles.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import codes, fields, rows
from decoding_jax.base import (
    Array,
    Cache,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
)
from decoding_jax.loop import as_function, model_calls, stopping
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
    new_values,
    per_lane,
    write,
)
from decoding_jax.loop.strategy import Strategy
from decoding_jax.ops import exact, random
from decoding_jax.ops.gather import gather_last, where_lanes
from decoding_jax.ops.logits import log_total
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import carried

BLOCKS = 16
"""The number of blocks of a text of full length, by default: that of the paper."""


class MetropolisInfo(NamedTuple):
    """What the chains did.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
      num_proposals: int32 ``[B, N]``, how many ends were proposed.
      acceptance: float32 ``[B, N]``, the share of them that was accepted; NaN without any.
    """

    model_calls: Array
    num_proposals: Array
    acceptance: Array


class Text(NamedTuple):
    """One text of each chain.

    Attributes:
      tokens: int32 ``[B, N, L]``, undefined from ``length`` on.
      length: int32 ``[B, N]``.
      finished: bool ``[B, N]``, ended by a stop condition.
      done: bool ``[B, N]``, whether no token may follow, whatever the horizon.
      log_prob: float32 ``[B, N, L]``, of each token under the model; NaN where the model's logits
        were, which ends a text.
      log_mass: float32 ``[B, N, L]``, the logarithm of ``sum_v p(v)^alpha`` where each token was
        drawn.
    """

    tokens: Array
    length: Array
    finished: Array
    done: Array
    log_prob: Array
    log_mass: Array


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      cache: the model's cache.
      first_logits: float32 ``[B, V]``, after the prompts.
      kept: the texts at which the chains are.
      drawn: the texts that are proposed. The tokens before ``pivot`` are those of ``kept``; where
        the cache has lost them, they are fed again.
      pivot: int32 ``[B, N]``, the first token that is drawn anew. If it is the length of ``kept``,
        the text is extended by a block, and nothing is to be accepted.
      proposed: int32 ``[B, N]``, the number of ends that were accepted or rejected.
      accepted: int32 ``[B, N]``.
      closed: bool ``[B, N]``, whether the chain has ended.
      is_nan: bool ``[B, N]``, whether it ended where the model's logits were NaN.
      keys: typed keys ``[B, N]``.
      calls: int32, a scalar or ``[B]``.
      visited: the states of the transform, arrays ``[B, N, L]``: entry i is that after i tokens of
        the text that is proposed; None for a transform without states.
    """

    cache: Cache
    first_logits: Array
    kept: Text
    drawn: Text
    pivot: Array
    proposed: Array
    accepted: Array
    closed: Array
    is_nan: Array
    keys: Array
    calls: Array
    visited: Any


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class MetropolisSample(Strategy):
    """Samples whole texts by a power of their probability, ``p(x)^alpha``, by Metropolis-Hastings.

    N chains a row grow by blocks of tokens, which are drawn at a temperature of 1 / alpha. After
    each block, every chain makes ``num_steps`` steps: a place of its text is chosen evenly, the
    text is drawn anew from there to the end of the block, and the new end is accepted with the
    probability at which ``p(x)^alpha`` of the texts so far stays as it is,

    ``min(1, (|x| / |x'|) prod_t M(x'_<t) / M(x_<t))`` with ``M(x_<t) = sum_v p(v | x_<t)^alpha``,

    where t runs over the places after the chosen one. The ratio of the lengths is that of the
    chances to choose the place; the paper's texts are equally long. The more steps, the closer
    each text is to the target, if any text is likely enough to be proposed. Chains are independent.

    Each model call feeds one token of every chain. No key or value is copied: an end is written
    over the one before, and what is still needed of a text after a rejection is fed again.

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row. ``score`` is ``log_prob``, and ``info`` is a ``MetropolisInfo``.

    Attributes:
      num_samples: N, the number of chains of a row.
      alpha: the power, above 0: a number or float32 ``[B]``. 1 is ``sample``.
      num_steps: the number of proposals after each block.
      block_size: the number of tokens of a block; by default, a 16th of ``max_new_tokens``.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the power; it is a part of p.
      stop: when a sequence ends.

    Raises:
      ValueError: for a raw key, a prompt of wrong shapes, ``num_samples`` or ``num_steps`` below 1,
        an ``alpha`` of 0 or less, a length that the model cannot hold, or a model that is not
        ``ragged``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = metropolis_sample(
      ...     model, prompt, jax.random.key(1), num_samples=8, max_new_tokens=4, block_size=2)
      >>> output.tokens.shape, int(output.info.num_proposals[0, 0])
      ((1, 8, 4), 20)
    """

    num_samples: int = fields.count()
    alpha: Any = fields.number(
        "a finite number above 0", lambda x: (x > 0) & (x < jnp.inf), default=4.0
    )
    num_steps: int = fields.count(default=10)
    block_size: int | None = fields.count(default=None)

    draws: ClassVar[bool] = True

    def check(self, model: LanguageModel) -> None:
        """See ``Strategy.check``.

        Raises:
          ValueError: for a model that is not ragged.
        """
        if not model.ragged:
            raise ValueError(
                "model: expected one with ragged=True, since ends are drawn from different places, "
                "got one whose rows advance in step"
            )

    def block(self, max_new_tokens: int) -> int:
        """The number of tokens of a block."""
        return self.block_size or -(-max_new_tokens // BLOCKS)

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``. The first tokens are drawn by the first step."""
        self.check(model)
        batch, size = prompt.tokens.shape
        lanes, limit = self.num_samples, check_lengths(model, size, self.max_new_tokens)
        output, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=max(limit - 1, 1))
        empty = empty_sequences(stopping.limits(self.stop, batch, limit), lanes, limit)
        recorded = jnp.zeros(empty.tokens.shape, jnp.float32)
        states = carried.begin(self.transform, prompt, lanes)
        visited = None
        if states is not None:
            visited = jax.tree.map(lambda x: jnp.repeat(x, limit, axis=-1), states.states)
        text = Text(empty.tokens, empty.length, empty.finished, empty.done, recorded, recorded)
        return State(
            cache=cache,
            first_logits=output.logits[:, 0, 0],
            kept=text,
            drawn=text,
            pivot=text.length,
            proposed=text.length,
            accepted=text.length,
            closed=text.done,
            is_nan=text.finished,
            keys=random.lane_keys(random.row_keys(key, batch), lanes),
            calls=jnp.int32(1),
            visited=visited,
        )

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``: each text gets a token; ends that are whole are judged."""
        drawn = state.drawn
        start = jnp.maximum(drawn.length - 1, 0)
        token = gather_last(drawn.tokens, start)
        output, cache = model_calls.extend(model, state.cache, token[..., None], start)
        is_first = (drawn.length == 0)[..., None]
        logits = jnp.where(is_first, state.first_logits[:, None], output.logits[:, :, 0])
        path = self.path_to(prompt, state)
        visited = state.visited
        if path.carried is not None:
            visited = jax.tree.map(
                lambda x, new: write(x, new[..., 0], drawn.length), visited, path.carried.states
            )
        grown, is_nan = self.grown(logits, path, state)
        state = state._replace(cache=cache, calls=state.calls + 1, drawn=grown, visited=visited)
        return self.judged(state, is_nan)

    def path_to(self, prompt: Prompt, state: State) -> Prefix:
        """The proposed texts, and the states of the transform after them."""
        text = state.drawn
        path = Prefix(*prompt, text.tokens[:, :, None], text.length[..., None])
        if state.visited is None:
            return path
        place = jnp.maximum(text.length - 1, 0)
        before = jax.tree.map(lambda x: gather_last(x, place)[..., None], state.visited)
        return carried.advance(self.transform, path, CarriedStates(before, place[..., None]))

    def grown(self, logits: Array, path: Prefix, state: State) -> tuple[Text, Array]:
        """The proposed texts with one more token after ``logits [B, N, V]``, and which met NaN."""
        old, limit = state.drawn, state.drawn.tokens.shape[-1]
        allowed = model_calls.allowed_logits(logits[:, :, None], path, self.stop, self.transform)
        allowed = allowed[:, :, 0]
        total = log_total(allowed)[..., None]
        alpha = rows.per_row(self, "alpha", allowed)
        tilted = jnp.where(
            allowed > -jnp.inf,
            alpha * (allowed - jnp.where(total == -jnp.inf, 0.0, total)),
            -jnp.inf,
        )
        token = codes.draw(tilted, random.bits_at(state.keys, self.position(state, 0)))
        again = gather_last(state.kept.tokens, jnp.minimum(old.length, limit - 1))
        token = jnp.where(old.length < state.pivot, again, token)
        zeros = jnp.zeros(old.length.shape, jnp.float32)
        before = Sequences(old.tokens, old.length, zeros, zeros, old.finished, old.done)
        new = append_token(before, token, logits, tilted, self.stop, limit)
        text = Text(
            tokens=new.tokens,
            length=new.length,
            finished=new.finished,
            done=new.done,
            log_prob=new_values(before, new, new.log_prob, old.log_prob),
            log_mass=new_values(before, new, log_total(tilted), old.log_mass),
        )
        return text, jnp.isnan(new.log_prob)

    def judged(self, state: State, is_nan: Array) -> State:
        """Accepts and rejects the ends that are whole, and begins the next ones."""
        kept, drawn, pivot = state.kept, state.drawn, state.pivot
        batch, _, limit = drawn.tokens.shape
        limits = stopping.limits(self.stop, batch, limit)[:, None]
        block = self.block(limit)

        def horizon(proposed: Array) -> Array:
            return jnp.minimum((proposed // self.num_steps + 1) * block, limits)

        is_open = ~state.closed
        whole = is_open & (drawn.done | (drawn.length >= horizon(state.proposed)))
        is_extension = pivot == kept.length
        log_ratio = weight_after(drawn, pivot) - weight_after(kept, pivot)
        chance = random.log_uniform(random.bits_at(state.keys, self.position(state, 1)))
        takes = is_extension | (chance <= log_ratio)
        judged = whole & ~is_extension & ~is_nan
        kept = where_lanes(whole & (takes | is_nan), drawn, kept)
        proposed = state.proposed + judged.astype(jnp.int32)

        # The next end: a new block for a text that goes on, or else a place that is chosen evenly.
        extends = ~kept.done & (kept.length < horizon(proposed))
        places = jnp.arange(limit, dtype=jnp.int32)[None, None]
        evenly = jnp.where(places < kept.length[..., None], jnp.float32(0), -jnp.inf)
        place = codes.draw(evenly, random.bits_at(state.keys, self.position(state, 2)))
        following = jnp.where(extends, kept.length, place)
        # The cache holds the tokens of the new text before its last one, or those before the pivot.
        fed = jnp.where(takes, drawn.length - 1, pivot)
        begun = kept._replace(
            length=jnp.minimum(following, fed + 1),
            finished=jnp.zeros_like(kept.finished),
            done=jnp.zeros_like(kept.done),
        )
        stages = -(-limits // block)
        ends = (proposed >= stages * self.num_steps) | (kept.length == 0) | is_nan
        return state._replace(
            kept=kept,
            drawn=where_lanes(whole, begun, where_lanes(is_open, drawn, state.drawn)),
            pivot=jnp.where(whole, following, pivot),
            proposed=proposed,
            accepted=state.accepted + (judged & takes).astype(jnp.int32),
            closed=state.closed | (whole & ends),
            is_nan=state.is_nan | (whole & is_nan),
        )

    def position(self, state: State, draw: int) -> Array:
        """The position of one of the three draws of a model call, for ``random.bits_at``."""
        return 3 * per_lane(state.calls, self.num_samples) + draw

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.closed.all(-1)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        text = state.kept
        places = jnp.arange(text.tokens.shape[-1], dtype=jnp.int32)[None, None]
        real = places < text.length[..., None]
        log_prob = exact.sum_last(jnp.where(real, text.log_prob, 0.0))
        log_prob = jnp.where(state.is_nan, jnp.nan, log_prob)
        accepted = state.accepted.astype(jnp.float32)
        info = MetropolisInfo(
            model_calls=state.calls,
            num_proposals=state.proposed,
            acceptance=accepted / state.proposed.astype(jnp.float32),
        )
        tokens = jnp.where(real, text.tokens, 0)
        return DecodeOutput(tokens, text.length, log_prob, log_prob, text.finished, info)


def weight_after(text: Text, pivot: Array) -> Array:
    """What a text counts for, if its end was drawn from a place on: float32 ``[B, N]``.

    It is the logarithm of ``p(x)^alpha / (q(x) / |x|)``, up to what the texts before it share: q is
    the probability of the tokens from ``pivot`` on at a temperature of 1 / alpha, and 1 / |x| that
    of the place.
    """
    places = jnp.arange(text.tokens.shape[-1], dtype=jnp.int32)[None, None]
    counts = (places > pivot[..., None]) & (places < text.length[..., None])
    # Without the barrier, the sum's slices would each be computed from the logits (``ops.exact``).
    masses = jax.lax.optimization_barrier(jnp.where(counts, text.log_mass, 0.0))
    return exact.sum_last(masses) - jnp.log(jnp.maximum(text.length, 1).astype(jnp.float32))


metropolis_sample = as_function(MetropolisSample)
