"""One block of one draft a lane: K tokens drafted, judged by one call of the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Cache, LanguageModel, Prompt
from decoding_jax.loop import Lanes, model_calls
from decoding_jax.strategies.speculative import emission
from decoding_jax.strategies.speculative.block import Block, leading
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser, Path
from decoding_jax.strategies.speculative.emission import Allowed
from decoding_jax.strategies.speculative.verifiers import Verifier

Allow = Callable[[Array, Array, Array], Allowed]
"""``(logits [B, W, T, V], paths, length [B, W, T])`` to what is allowed: see ``emission.allow``."""


class Situation(NamedTuple):
    """What a block starts from.

    Attributes:
      cache: the target's.
      drafter: the drafter's state.
      lanes: what stands.
      seed: the verifier's.
      memory: the verifier's.
      prompt: of the rows.
      wanted: int32 ``[B, W]``, how many tokens to draft, at most K.
      clock: int32; it and the next numbers, as many as tokens are fed, are the block's own.
      allow: what may follow a path.
    """

    cache: Cache
    drafter: Any
    lanes: Lanes
    seed: Any
    memory: Any
    prompt: Prompt
    wanted: Array
    clock: Array
    allow: Allow


class Outcome(NamedTuple):
    """What a block comes to.

    Attributes:
      cache: the target's.
      drafter: the drafter's state.
      memory: the verifier's.
      tokens: int32 ``[B, W, K + 1]``.
      accepted: int32 ``[B, W]``; the token after these is the verifier's own.
      judged: int32 ``[B, W]``, how many could have been accepted.
      proposed: int32 ``[B, W]``, how many tokens were drafted.
      law: the target's on the path, before any transform, ``[B, W, K + 1, V]``.
      dead: bool ``[B, W, K + 1]``, where nothing was allowed.
      draft_calls: int32.
    """

    cache: Cache
    drafter: Any
    memory: Any
    tokens: Array
    accepted: Array
    judged: Array
    proposed: Array
    law: Softmax
    dead: Array
    draft_calls: Array


def last_tokens(lanes: Lanes) -> Array:
    """The last token of every lane, int32 ``[B, W, 1]``."""
    last = jnp.maximum(lanes.length - 1, 0)[..., None]
    return jnp.take_along_axis(lanes.tokens, last, axis=-1)


def advance(
    model: LanguageModel, drafter: Drafter | Guesser, judge: Verifier, now: Situation, most: int
) -> Outcome:
    """Drafts up to ``most`` tokens a lane, feeds them to the target, and judges them."""
    at = now.lanes
    block, state, calls = propose(drafter, judge, now, most, model.vocab_size)
    fed = jnp.concatenate([last_tokens(at), block.tokens], axis=-1)
    output, cache = model_calls.extend(model, now.cache, fed, at.length - 1)
    written = emission.put(at.tokens, block.tokens, at.length)
    length = at.length[..., None] + jnp.arange(most + 1, dtype=jnp.int32)[None, None]
    allowed = now.allow(output.logits, written, length)
    law = allowed.law()
    tokens, accepted, memory = judge.verify(now.seed, now.memory, block, law, at.length, now.clock)
    return Outcome(
        cache=cache,
        drafter=state,
        memory=memory,
        tokens=tokens,
        accepted=accepted,
        judged=block.drafted,
        proposed=block.drafted,
        law=emission.own_law(output.logits, allowed, law),
        dead=allowed.dead,
        draft_calls=calls,
    )


def propose(
    drafter: Drafter | Guesser, judge: Verifier, now: Situation, most: int, vocab_size: int
) -> tuple[Block, Any, Array]:
    """Drafts a block; returns it, the drafter's state, and how often the drafter was called."""
    path = Path(now.prompt, now.lanes.tokens, now.lanes.length)
    if isinstance(drafter, Guesser):
        tokens = drafter.guess(now.drafter, path, most)
        _check_guess(tokens, (*path.length.shape, most))
        known = (tokens >= 0) & (tokens < vocab_size)
        drafted = jnp.minimum(now.wanted, leading(known))
        block = Block(jnp.where(known, tokens, 0), drafted, None, ())
        return block, now.drafter, jnp.int32(1)

    def given(logits: Array, verb: str) -> Array:
        shape = (*path.length.shape, vocab_size)
        return model_calls.as_logits(logits, shape, "drafter: got logits", verb, "[B, W, V]")

    def draw(i: Any, logits: Array, written: Array, memory: Any) -> tuple[Array, Softmax, Any]:
        at = path.length + i
        law = now.allow(logits[:, :, None], written, at[..., None]).law().place(0)
        token, memory = judge.draw(now.seed, memory, law, at, now.clock + i)
        return token, law, memory

    def record(i: Any, block: Block, token: Array, law: Softmax, memory: Any) -> Block:
        def put(axis: int) -> Callable[[Array, Array], Array]:
            return lambda all, one: lax.dynamic_update_index_in_dim(all, one, i, axis)

        return block._replace(
            tokens=put(2)(block.tokens, token),
            law=jax.tree.map(put(2), block.law, law),
            trail=jax.tree.map(put(0), block.trail, memory),
        )

    def room(value: Array, axis: int) -> Array:
        shape = (*value.shape[:axis], most, *value.shape[axis:])
        return jnp.zeros(shape, value.dtype)

    def more(i: Any, carry: Any) -> Any:
        block, state, memory, written = carry
        token = lax.dynamic_index_in_dim(block.tokens, i - 1, 2, keepdims=False)
        at = path.length + i - 1
        written = emission.put(written, token[..., None], at)
        logits, state = drafter.next(state, token, at)
        logits = given(logits, "next")
        token, law, memory = draw(i, logits, written, memory)
        return record(i, block, token, law, memory), state, memory, written

    logits, state = drafter.begin(now.drafter, path)
    logits = given(logits, "begin")
    token, law, memory = draw(0, logits, path.tokens, now.memory)
    block = Block(
        tokens=room(token, 2),
        drafted=now.wanted,
        law=jax.tree.map(lambda x: room(x, 2), law),
        trail=jax.tree.map(lambda x: room(x, 0), memory),
    )
    carry = record(0, block, token, law, memory), state, memory, path.tokens
    calls = jnp.maximum(now.wanted.max(), 1)
    block, state, _, _ = lax.fori_loop(1, calls, more, carry)
    return block, state, calls


def _check_guess(tokens: Array, shape: tuple[int, ...]) -> None:
    if jnp.shape(tokens) != shape or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"drafter: got {jnp.result_type(tokens)}{list(jnp.shape(tokens))} from guess; "
            f"takes int32 [B, W, K], which is {list(shape)} here"
        )
