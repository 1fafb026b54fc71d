"""Several drafts a lane, in a tree: judged together, the accepted path moved together.

Miao et al. 2023, "SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative
Inference and Verification", Algorithm 2. C drafts of K tokens are drawn independently. Their
tokens lie in slots of their own after the text, level by level, and each sees its own draft only.
At every level the tokens of the drafts that still agree with what was accepted are tried one after
another against what the target has left, ``p <- max(p - q, 0)`` normalised after each that is
rejected; the law is the target's exactly, for any C. ``keep`` then moves the accepted path to where
a chain would have written it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes
from decoding_jax.base import Array, LanguageModel, SupportsKeep
from decoding_jax.loop import model_calls
from decoding_jax.ops import exact, random
from decoding_jax.ops.logits import clean
from decoding_jax.strategies.speculative import distributions, emission
from decoding_jax.strategies.speculative.chain import Outcome, Situation, last_tokens
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser, ModelDrafter, Path
from decoding_jax.strategies.speculative.verifiers import Token, Verifier, token


def check(model: LanguageModel, drafter: Drafter | Guesser, judge: Verifier) -> None:
    """Refuses what cannot draft or judge a tree.

    Raises:
      ValueError: for models without ``tree`` or ``keep``, another drafter or another verifier.
    """
    if not isinstance(judge, Token):
        raise ValueError(
            f"verifier: got {type(judge).__name__.lower()} for several drafts; takes token"
        )
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(
            f"drafter: got a {type(drafter).__name__} for several drafts; takes a language model"
        )
    for name, one in (("model", model), ("drafter", drafter.model)):
        if not (one.tree and isinstance(one, SupportsKeep)):
            raise ValueError(
                f"{name}: got one without tree or keep for several drafts; takes one with both"
            )


class Drafts(NamedTuple):
    """C drafts of every lane.

    Attributes:
      tokens: int32 ``[B, W, K, C]``.
      logits: float32 ``[B, W, K, C, V]``, the law that each was drawn from.
    """

    tokens: Array
    logits: Array


class Verdict(NamedTuple):
    """The path that stands.

    Attributes:
      tokens: int32 ``[B, W, K + 1]``, the accepted tokens and the verifier's own.
      accepted: int32 ``[B, W]``.
      nodes: int32 ``[B, W, K + 1]``: which of the tokens fed the root and each accepted one is;
        beyond them ``0 .. K``, where a chain has its tokens.
    """

    tokens: Array
    accepted: Array
    nodes: Array


def advance(model: Any, drafter: Any, now: Situation, most: int, num_drafts: int) -> Outcome:
    """Drafts ``num_drafts`` times ``most`` tokens a lane, feeds them as a tree, and judges them."""
    at, size = now.lanes, most * num_drafts
    root = at.length - 1
    drafts, cache, calls = propose(drafter, now, most, num_drafts)
    node = jnp.arange(size, dtype=jnp.int32)
    level, draft = node // num_drafts, node % num_drafts
    slot = jnp.arange(slots_of(now, size), dtype=jnp.int32)[None, None, None]
    before = jnp.broadcast_to(slot < root[..., None, None], (*root.shape, 1, slot.shape[-1]))
    visible = jnp.concatenate([before, ancestors(root, level, draft, num_drafts, slot)], axis=2)
    nodes = drafts.tokens.reshape(*root.shape, size)
    fed = jnp.concatenate([last_tokens(at), nodes], axis=-1)
    output, target = model_calls.extend(model, now.cache, fed, root, visible)

    paths = jax.vmap(emission.put, (None, 3, None), 2)(at.tokens, drafts.tokens, at.length)
    paths = jnp.concatenate([at.tokens[:, :, None], paths[:, :, draft]], axis=2)
    deep = jnp.concatenate([jnp.zeros(1, jnp.int32), level + 1])
    allowed = now.allow(output.logits, paths, at.length[..., None] + deep[None, None])
    verdict = verify(now, drafts, allowed.logits)
    source = root[..., None] + verdict.nodes[..., 1:]
    raw = jnp.take_along_axis(output.logits, verdict.nodes[..., None], axis=2)
    return Outcome(
        cache=model.keep(target, source, at.length),
        drafter=drafter.model.keep(cache, source, at.length),
        memory=now.memory,
        tokens=verdict.tokens,
        accepted=verdict.accepted,
        judged=now.wanted,
        proposed=now.wanted * num_drafts,
        law=distributions.softmax(clean(raw)),
        dead=jnp.take_along_axis(allowed.dead, verdict.nodes, axis=2),
        draft_calls=calls,
    )


def slots_of(now: Situation, size: int) -> int:
    """How many slots a lane has: for the longest text, and for a tree of ``size`` nodes."""
    return max(now.lanes.tokens.shape[-1] - 1, 1) + size


def ancestors(root: Array, level: Array, draft: Array, num_drafts: int, slot: Array) -> Array:
    """The slots that nodes see: the text's, its last token's, and their own draft's before them.

    Args:
      root: int32 ``[B, W]``, the slot of the text's last token. Node (level, draft) has slot
        ``root + 1 + level * num_drafts + draft``.
      level: int32 ``[T]``.
      draft: int32 ``[T]``.
      num_drafts: C.
      slot: 0, 1, ... as ``[1, 1, 1, S]``.

    Returns:
      bool ``[B, W, T, S]``.
    """
    node = slot - root[..., None, None] - 1
    level, draft = level[None, None, :, None], draft[None, None, :, None]
    return (node < 0) | ((node // num_drafts < level) & (node % num_drafts == draft))


def propose(drafter: Any, now: Situation, most: int, num_drafts: int) -> tuple[Drafts, Any, Array]:
    """C independent drafts of every lane, the drafter's cache, and how often it was called."""
    at = now.lanes
    branch = jnp.arange(num_drafts, dtype=jnp.int32)
    slot = jnp.arange(slots_of(now, most * num_drafts), dtype=jnp.int32)[None, None, None]

    def draw(i: Any, logits: Array, paths: Array) -> tuple[Array, Array]:
        length = jnp.broadcast_to((at.length + i)[..., None], paths.shape[:3])
        law = now.allow(logits, paths, length).logits
        bits = jax.vmap(lambda c: random.bits_at(now.seed[0], c), out_axes=2)
        return codes.draw(law, bits(now.clock + i * num_drafts + branch)), law

    def record(i: Any, drafts: Drafts, token: Array, law: Array) -> Drafts:
        put = lax.dynamic_update_index_in_dim
        return Drafts(put(drafts.tokens, token, i, 2), put(drafts.logits, law, i, 2))

    def more(i: Any, carry: Any) -> Any:
        drafts, cache, paths = carry
        tokens = lax.dynamic_index_in_dim(drafts.tokens, i - 1, 2, keepdims=False)
        paths = put_each(paths, tokens, at.length + i - 1)
        start = at.length + (i - 1) * num_drafts
        visible = ancestors(at.length - 1, branch * 0 + i - 1, branch, num_drafts, slot)
        output, cache = model_calls.extend(
            drafter.model, cache, tokens, start, visible, name="drafter"
        )
        return record(i, drafts, *draw(i, output.logits, paths)), cache, paths

    logits, cache = drafter.begin(now.drafter, Path(now.prompt, at.tokens, at.length))
    shape = (*at.length.shape, num_drafts)
    logits = jnp.broadcast_to(logits[:, :, None], (*shape, logits.shape[-1]))
    paths = jnp.broadcast_to(at.tokens[:, :, None], (*shape, at.tokens.shape[-1]))
    drafts = Drafts(
        jnp.zeros((*shape[:2], most, num_drafts), jnp.int32),
        jnp.zeros((*shape[:2], most, *logits.shape[2:]), jnp.float32),
    )
    carry = record(0, drafts, *draw(0, logits, paths)), cache, paths
    calls = jnp.maximum(now.wanted.max(), 1)
    drafts, cache, _ = lax.fori_loop(1, calls, more, carry)
    return drafts, cache, calls


def put_each(paths: Array, tokens: Array, place: Array) -> Array:
    """``paths [B, W, C, L]`` with ``tokens [B, W, C]`` at ``place [B, W]``."""
    here = jnp.arange(paths.shape[-1], dtype=jnp.int32)[None, None, None] == place[..., None, None]
    return jnp.where(here, tokens[..., None], paths)


def verify(now: Situation, drafts: Drafts, allowed: Array) -> Verdict:
    """Recursive rejection down the tree.

    Args:
      now: the situation.
      drafts: C of every lane.
      allowed: the target's logits after each token fed, ``[B, W, 1 + K C, V]``.
    """
    most, num_drafts = drafts.tokens.shape[2:]
    chances = token.chances(now.seed, now.clock, most * num_drafts)

    def step(i: Any, carry: Any) -> Any:
        verdict, agree, left = carry
        alive = (verdict.accepted == i) & (i < now.wanted)
        tokens = lax.dynamic_index_in_dim(drafts.tokens, i, 2, keepdims=False)
        logits = lax.dynamic_index_in_dim(drafts.logits, i, 2, keepdims=False)
        node = lax.dynamic_index_in_dim(verdict.nodes, i, 2, keepdims=False)
        # Drafts that agree so far have one path, and so one law.
        q = distributions.softmax(
            distributions.at(logits, lax.argmax(agree, agree.ndim - 1, jnp.int32))
        ).prob()
        p = distributions.softmax(distributions.at(allowed, node)).prob()
        stands, chosen = jnp.zeros(alive.shape, bool), jnp.zeros_like(node)
        for c in range(num_drafts):
            chance = lax.dynamic_index_in_dim(chances, i * num_drafts + c, 2, keepdims=False)
            tried = agree[..., c] & ~stands
            fits = tried & (chance * take(q, tokens[..., c]) < take(p, tokens[..., c]))
            stands, chosen = stands | fits, jnp.where(fits, c, chosen)
            rest = distributions.residual(p, q)
            rest = rest / exact.sum_last(rest)[..., None]
            p = jnp.where((tried & ~fits)[..., None], rest, p)
        goes_on, token_chosen = alive & stands, take(tokens, chosen)
        put = lax.dynamic_update_index_in_dim
        own = jnp.where(goes_on, token_chosen, 0)
        further = jnp.where(goes_on, 1 + i * num_drafts + chosen, i + 1)
        verdict = Verdict(
            put(verdict.tokens, own, i, 2),
            verdict.accepted + goes_on.astype(jnp.int32),
            put(verdict.nodes, further, i + 1, 2),
        )
        agree = agree & (tokens == token_chosen[..., None])
        return verdict, agree, jnp.where((alive & ~stands)[..., None], p, left)

    shape = now.wanted.shape
    path = jnp.broadcast_to(jnp.arange(most + 1, dtype=jnp.int32)[None, None], (*shape, most + 1))
    nothing = Verdict(jnp.zeros_like(path), jnp.zeros_like(now.wanted), path)
    carry = nothing, jnp.ones((*shape, num_drafts), bool), jnp.zeros_like(allowed[:, :, 0])
    verdict, _, left = lax.fori_loop(0, now.wanted.max(), step, carry)
    last = take(verdict.nodes, verdict.accepted)
    p = distributions.softmax(distributions.at(allowed, last)).prob()
    left = jnp.where((verdict.accepted < now.wanted)[..., None], left, p)
    own = codes.draw_weighted(left, random.bits_at(now.seed[2], now.clock))
    tokens = jnp.where(path == verdict.accepted[..., None], own[..., None], verdict.tokens)
    return verdict._replace(tokens=tokens)


def take(values: Array, index: Array) -> Array:
    """``values [B, W, n]`` at ``index [B, W]``."""
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]
