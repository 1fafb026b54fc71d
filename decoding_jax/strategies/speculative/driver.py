"""Speculative decoding: a draft proposes K tokens, the target judges them all in one call.

The target's cache holds all new tokens but the last. The target is fed the last token and the K
drafted ones at once; where ``a`` of them stand, the text grows by a + 1, and the next block is
written over what was rejected: a smaller ``start``, and no copy. Every lane stands where it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Cache, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop import Lanes, Steps, check_lengths, stopping
from decoding_jax.strategies.speculative import emission
from decoding_jax.strategies.speculative.block import Block
from decoding_jax.strategies.speculative.draft_length import DraftLength, as_draft_length
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser, Path, as_drafter
from decoding_jax.strategies.speculative.info import Info, count_block, no_info
from decoding_jax.strategies.speculative.verifiers import Verifier, named


class State(NamedTuple):
    """The carry: both caches, the sequences, and what the parts remember."""

    cache: Cache
    drafter: Any
    lanes: Lanes
    seed: Any
    memory: Any
    draft_length: Any
    info: Info


def steps(
    *,
    drafter: LanguageModel | Drafter | Guesser,
    num_samples: int = 1,
    num_draft_tokens: int | DraftLength,
    verifier: str | Verifier = "token",
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """The steps of ``speculative_sample``, for ``loop.run`` and ``loop.stream``."""
    drafts, judge, sizes = as_drafter(drafter), named(verifier), as_draft_length(num_draft_tokens)
    stop = Stop() if stop is None else stop
    most = sizes.most
    if num_samples < 1:
        raise ValueError(f"num_samples: got {num_samples}; takes 1 or more")

    def allow(logits: Array, prompt: Prompt, tokens: Array, length: Array) -> tuple[Array, Array]:
        return emission.allow(logits, prompt, tokens, length, transform, stop)

    def limits(prompt: Prompt) -> Array:
        return stopping.limits(stop, prompt.length.shape[0], max_new_tokens)

    def init(model: LanguageModel, prompt: Prompt, key: Any) -> State:
        batch, size = prompt.tokens.shape
        check_models(model, drafts)
        check_lengths(model, size, max_new_tokens)
        seed, memory = judge.init(key, batch, num_samples)
        output, cache = model.prefill(*prompt, lanes=num_samples, slots=max(max_new_tokens - 1, 1))
        lanes = emission.empty_lanes(limits(prompt), num_samples, max_new_tokens)
        shape = (batch, num_samples)
        raw = jnp.broadcast_to(output.logits, (*shape, *output.logits.shape[2:]))
        allowed, dead = allow(raw, prompt, lanes.tokens, lanes.length[..., None])
        first, memory = judge.draw(seed, memory, allowed[:, :, 0], lanes.length, jnp.int32(0))
        one = jnp.ones(shape, jnp.int32)
        lanes, _ = emission.append(
            lanes, first[..., None], one, dead, raw, stop, limits(prompt)
        )
        return State(
            cache=cache,
            drafter=drafts.init(prompt, lanes=num_samples, max_new_tokens=max_new_tokens),
            lanes=lanes,
            seed=seed,
            memory=memory,
            draft_length=sizes.init(*shape),
            info=no_info(*shape),
        )

    def propose(prompt: Prompt, state: State, count: Array, clock: Array) -> tuple[Block, Any, Any]:
        """Drafts a block; returns it, the drafter's state, and how often the drafter was called."""
        path = Path(prompt, state.lanes.tokens, state.lanes.length)
        if isinstance(drafts, Guesser):
            tokens = drafts.guess(state.drafter, path, most)
            real = jnp.cumprod((tokens >= 0).astype(jnp.int32), axis=-1).sum(-1)
            block = Block(jnp.maximum(tokens, 0), jnp.minimum(count, real), None, ())
            return block, state.drafter, jnp.int32(1)

        def draw(i: Any, logits: Array, written: Array, memory: Any) -> tuple[Array, Array, Any]:
            at = path.length + i
            law, _ = allow(logits[:, :, None], prompt, written, at[..., None])
            token, memory = judge.draw(state.seed, memory, law[:, :, 0], at, clock + i)
            return token, law, memory

        def record(i: Any, block: Block, token: Array, law: Array, memory: Any) -> Block:
            put = lax.dynamic_update_index_in_dim
            return block._replace(
                tokens=put(block.tokens, token, i, 2),
                logits=put(block.logits, law, i, 2),
                trail=jax.tree.map(lambda all, one: put(all, one, i, 0), block.trail, memory),
            )

        def more(i: Any, carry: Any) -> Any:
            block, drafter, memory, written = carry
            token = lax.dynamic_index_in_dim(block.tokens, i - 1, 2, keepdims=False)
            at = path.length + i - 1
            written = emission.put(written, token[..., None], at)
            logits, drafter = drafts.next(drafter, token, at)
            token, law, memory = draw(i, logits, written, memory)
            return record(i, block, token, law, memory), drafter, memory, written

        logits, drafter = drafts.begin(state.drafter, path)
        token, law, memory = draw(0, logits, path.tokens, state.memory)
        block = Block(
            tokens=jnp.zeros((*token.shape, most), jnp.int32),
            count=count,
            logits=jnp.zeros((*token.shape, most, law.shape[-1]), jnp.float32),
            trail=jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), memory),
        )
        carry = record(0, block, token, law, memory), drafter, memory, path.tokens
        calls = jnp.maximum(count.max(), 1)
        block, drafter, _, _ = lax.fori_loop(1, calls, more, carry)
        return block, drafter, calls

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        at, limit = state.lanes, limits(prompt)
        # No draft for the last token that there is room for; none where nothing is to be done.
        room = jnp.where(at.done, 0, limit[:, None] - at.length - 1)
        count = jnp.minimum(sizes.count(state.draft_length), room)
        clock = 1 + state.info.target_calls * (most + 1)
        block, drafter, calls = propose(prompt, state, count, clock)

        last = jnp.take_along_axis(at.tokens, jnp.maximum(at.length - 1, 0)[..., None], axis=-1)
        fed = jnp.concatenate([last, block.tokens], axis=-1)
        output, cache = model.extend(state.cache, fed, at.length - 1)
        written = emission.put(at.tokens, block.tokens, at.length)
        length = at.length[..., None] + jnp.arange(most + 1)[None, None]
        allowed, dead = allow(output.logits, prompt, written, length)
        tokens, accepted, memory = judge.verify(
            state.seed, state.memory, block, allowed, at.length, clock
        )
        lanes, took = emission.append(at, tokens, accepted + 1, dead, output.logits, stop, limit)
        info = count_block(
            state.info,
            draft_calls=calls,
            live=~at.done,
            proposed=block.count,
            accepted=accepted,
            took=took,
        )
        sized = sizes.update(state.draft_length, block.count, accepted)
        return State(cache, drafter, lanes, state.seed, memory, sized, info)

    def done(state: State) -> Array:
        return state.lanes.done.all()

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        at = state.lanes
        return DecodeOutput(
            at.tokens, at.length, at.log_prob, at.log_prob, at.finished, state.info
        )

    return Steps(init, step, done, finalize)


def check_models(model: LanguageModel, drafter: Drafter | Guesser) -> None:
    """Refuses models that cannot work together.

    Raises:
      ValueError: for a target in lock step, or vocabularies that differ.
    """
    if not model.ragged:
        raise ValueError(
            "model: got one whose rows advance in step (ragged=False); takes one with ragged=True"
        )
    size = getattr(drafter, "vocab_size", model.vocab_size)
    if size != model.vocab_size:
        raise ValueError(
            f"drafter: got a vocabulary of {size}; takes the model's, {model.vocab_size}"
        )
