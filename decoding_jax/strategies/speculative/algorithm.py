"""Speculative decoding: a draft proposes K tokens, the target judges them all in one call.

The target's cache holds all new tokens but the last. The target is fed the last token and the K
drafted ones at once; where ``a`` of them stand, the text grows by a + 1, and the next block is
written over what was rejected: a smaller ``start``, and no copy. Every lane stands where it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Cache, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop import (
    Lanes,
    Static,
    Steps,
    check_lengths,
    drafted_sampler,
    empty_lanes,
    model_calls,
    stopping,
)
from decoding_jax.ops.logits import clean
from decoding_jax.strategies.speculative import chain, distributions, emission, tree_drafts
from decoding_jax.strategies.speculative.chain import Situation
from decoding_jax.strategies.speculative.draft_length import DraftLength, as_draft_length
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser, as_drafter
from decoding_jax.strategies.speculative.emission import Allowed
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


@drafted_sampler
def speculative_sample(
    drafter: LanguageModel | Drafter | Guesser,
    *,
    num_samples: Static[int] = 1,
    num_draft_tokens: Static[int | DraftLength],
    num_drafts: Static[int] = 1,
    verifier: str | Verifier = "token",
    max_new_tokens: Static[int],
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Samples the target's law with fewer calls of it, by verifying what a drafter proposes.

    Leviathan, Kalman and Matias 2022, "Fast Inference from Transformers via Speculative Decoding";
    Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling". The
    law of every sample is the transformed target's, whatever the drafter; how many calls it takes
    depends on how often the two agree.

    Args:
      model: the target, ``ragged``.
      drafter: a language model of the same vocabulary, bound to the same rows, or a drafter:
        ``PromptLookup``, ``Bigram``, ``NextToken``, or one of your own.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      key: a typed key, folded with each row's index; or typed keys ``[B]``, one a row. The greedy
        verifier needs none.
      num_samples: N.
      num_draft_tokens: K, 1 or more; or ``Heuristic`` or ``Measured``, which choose it for each
        lane and block.
      num_drafts: how many drafts of K tokens, drawn independently, the target judges in one call
        as a tree. More than one takes the token verifier and a language model as the drafter, and
        models with ``tree`` and ``keep``.
      verifier: by name or as an object. ``token`` and ``block`` accept drafts at random, ``block``
        more of them. ``greedy`` gives what ``greedy`` gives. ``gumbel`` gives samples that do not
        depend on the drafter. ``code`` gives what ``arithmetic_sample`` gives for the same key.
        ``coded_token`` is ``token`` with drafts that are spread over the samples as on a lattice.
      max_new_tokens: L, the most new tokens.
      transform: applied to the logits of target and draft alike, each with its own path.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput`` in the order of the lanes; ``info`` is an ``Info``. ``score`` is
      ``log_prob``. A lane whose every continuation is banned ends there, not finished. A drafted
      token that is banned is never accepted.

    Raises:
      ValueError: for models whose vocabularies differ or that are not ragged, K below 1, an unknown
        verifier, a raw key, a prompt of wrong shapes, or a length that either model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = speculative_sample(
      ...     model, model, prompt, jax.random.key(1), num_draft_tokens=3, max_new_tokens=9)
      >>> output.tokens.shape, int(output.info.target_calls), float(output.info.acceptance_rate)
      ((1, 1, 9), 2, 1.0)
    """
    drafts, judge, sizes = as_drafter(drafter), named(verifier), as_draft_length(num_draft_tokens)
    stop = Stop() if stop is None else stop
    most = sizes.most
    for name, value in (("num_samples", num_samples), ("num_drafts", num_drafts)):
        if value < 1:
            raise ValueError(f"{name}: got {value}; takes 1 or more")

    def allow(logits: Array, prompt: Prompt, tokens: Array, length: Array) -> Allowed:
        return emission.allow(logits, prompt, tokens, length, transform, stop)

    def limits(prompt: Prompt) -> Array:
        return stopping.limits(stop, prompt.length.shape[0], max_new_tokens)

    def init(model: LanguageModel, prompt: Prompt, key: Any) -> State:
        batch, size = prompt.tokens.shape
        check_models(model, drafts)
        check_lengths(model, size, max_new_tokens)
        spare = num_drafts * most if num_drafts > 1 else 0
        if spare:
            tree_drafts.check(model, drafts, judge)
        seed, memory = judge.init(key, batch, num_samples)
        slots = max(max_new_tokens - 1, 1) + spare
        logits, cache = model_calls.prefill(model, prompt, lanes=num_samples, slots=slots)
        lanes = empty_lanes(limits(prompt), num_samples, max_new_tokens)
        shape = (batch, num_samples)
        raw = jnp.broadcast_to(logits, (*shape, *logits.shape[2:]))
        allowed = allow(raw, prompt, lanes.tokens, lanes.length[..., None])
        law = distributions.softmax(clean(raw))
        own = allowed.law().place(0)
        first, memory = judge.draw(seed, memory, own, lanes.length, jnp.int32(0))
        one = jnp.ones(shape, jnp.int32)
        lanes, _ = emission.append(
            lanes, first[..., None], one, allowed.dead, law, stop, limits(prompt)
        )
        return State(
            cache=cache,
            drafter=drafts.init(
                prompt,
                lanes=num_samples,
                max_new_tokens=max_new_tokens,
                **({"spare": spare} if spare else {}),
            ),
            lanes=lanes,
            seed=seed,
            memory=memory,
            draft_length=sizes.init(*shape),
            info=no_info(*shape),
        )

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        at, limit = state.lanes, limits(prompt)
        # No draft for the last token that there is room for; none where nothing is to be done.
        room = jnp.where(at.done, 0, limit[:, None] - at.length - 1)
        now = Situation(
            cache=state.cache,
            drafter=state.drafter,
            lanes=at,
            seed=state.seed,
            memory=state.memory,
            prompt=prompt,
            wanted=jnp.minimum(sizes.count(state.draft_length), room),
            clock=1 + state.info.target_calls * (most * num_drafts + 1),
            allow=lambda logits, paths, length: allow(logits, prompt, paths, length),
        )
        if num_drafts == 1:
            came = chain.advance(model, drafts, judge, now, most)
        else:
            came = tree_drafts.advance(model, drafts, now, most, num_drafts)
        lanes, took = emission.append(
            at, came.tokens, came.accepted + 1, came.dead, came.law, stop, limit
        )
        info = count_block(state.info, live=~at.done, came=came, took=took)
        sized = sizes.update(state.draft_length, came.judged, came.accepted)
        return State(came.cache, came.drafter, lanes, state.seed, came.memory, sized, info)

    def done(state: State) -> Array:
        return state.lanes.done.all()

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        at = state.lanes
        return DecodeOutput(at.tokens, at.length, at.log_prob, at.log_prob, at.finished, state.info)

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
