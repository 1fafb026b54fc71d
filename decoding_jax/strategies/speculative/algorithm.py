"""Speculative decoding: a drafter proposes K tokens, and the target verifies them in one call.

``speculative_sample`` implements Algorithm 1 of Leviathan et al. 2022 and Algorithm 2 of Chen et
al. 2023, with verifiers that generalise their rule of acceptance. The correspondence of names:

================  ================  ===========
this module       Leviathan et al.  Chen et al.
================  ================  ===========
target, p         M_p, p(x)         q(x)
draft, q          M_q, q(x)         p(x)
``draft_length``  gamma             K
``accepted``      n                 (no symbol)
final token       t                 (no symbol)
================  ================  ===========

The lines of Algorithm 2 of Chen et al., in the order of ``step``:

============================================  =====================================
sample a draft x_1 .. x_K                     ``chain.propose``
K + 1 sets of logits in parallel              ``chain.score``
``r < min(1, q(x) / p(x))``: accept x         ``verifiers.token.count_accepted``
sample from ``(q - p)_+``, or the last ``q``  ``verifiers.token.draw_final``
``n < T``: repeat                             ``appending.append``, ``done``
============================================  =====================================

The target's cache holds all new tokens but the last, so the target is fed the last token and the K
drafted ones in one call. If n of them are accepted, the sequence grows by n + 1 tokens. The next
block starts at an earlier slot and overwrites the rejected tokens in the cache; nothing is copied.
Every lane advances independently.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Cache, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop import (
    Sequences,
    Static,
    Steps,
    check_lengths,
    drafted_sampler,
    empty_sequences,
    model_calls,
    stopping,
)
from decoding_jax.strategies.speculative import tree_drafts
from decoding_jax.strategies.speculative.appending import append, record
from decoding_jax.strategies.speculative.chain import CHAIN
from decoding_jax.strategies.speculative.checks import check_models
from decoding_jax.strategies.speculative.distributions import of_model
from decoding_jax.strategies.speculative.draft_length import DraftLength, as_draft_length
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser, as_drafter
from decoding_jax.strategies.speculative.info import Info, count_block, no_info
from decoding_jax.strategies.speculative.masking import Allowed, allow
from decoding_jax.strategies.speculative.stages import BlockInputs
from decoding_jax.strategies.speculative.tree_drafts import TREE
from decoding_jax.strategies.speculative.verifiers import Verifier, as_verifier


class State(NamedTuple):
    """The carry of the loop.

    Attributes:
      cache: the target's cache.
      sequences: the sequences decoded so far.
      keys: the verifier's keys.
      verifier_state: the verifier's state.
      drafter_state: the drafter's state.
      length_state: the state of the ``DraftLength``, which chooses K.
      info: counts so far.
      sample_log_prob: as in ``DecodeOutput``.
    """

    cache: Cache
    sequences: Sequences
    keys: Any
    verifier_state: Any
    drafter_state: Any
    length_state: Any
    info: Info
    sample_log_prob: Array | None


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
    with_sample_log_prob: Static[bool] = False,
) -> Steps:
    """Samples from the target in fewer calls of it, by verifying tokens that a drafter proposes.

    Leviathan, Kalman and Matias 2022, "Fast Inference from Transformers via Speculative Decoding";
    Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling". Every
    sample follows the transformed target's distribution, whatever the drafter; the number of calls
    depends on how often the two agree.

    Args:
      model: the target, ``ragged``.
      drafter: a language model of the same vocabulary, bound to the same rows, or a drafter:
        ``PromptLookup``, ``Bigram``, ``NextToken``, or one of your own.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      key: a typed key, folded with each row's index; or typed keys ``[B]``, one for each row. With
        the greedy verifier, which draws nothing, it may be left out.
      num_samples: N.
      num_draft_tokens: K, 1 or more; or a ``Heuristic`` or ``Measured``, which chooses K for each
        lane and block.
      num_drafts: the number of drafts of K tokens, drawn independently, that the target verifies
        in one call as a tree. More than one needs the token verifier, a language model as the
        drafter, and models with ``tree`` and ``keep``.
      verifier: a name or an object. ``token`` and ``block`` accept drafted tokens at random;
        ``block`` accepts more of them. ``greedy`` decodes the sequences of ``greedy``. The samples
        of ``gumbel`` do not depend on the drafter. ``code`` decodes those of ``arithmetic_sample``.
        ``coded_token`` is ``token`` with drafts that are spread over the samples as on a lattice.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits of target and draft, each with its path.
      stop: the stop conditions.
      with_sample_log_prob: whether the output has ``sample_log_prob``, under the target's
        transformed distribution (also with the greedy verifier, which draws nothing).

    Returns:
      A ``DecodeOutput`` in the order of the lanes; ``info`` is an ``Info``. ``score`` is
      ``log_prob``. A lane without an allowed continuation ends there, and is not ``finished``. A
      banned drafted token is never accepted.

    Raises:
      ValueError: for models whose vocabularies differ or that are not ragged, for K below 1, an
        unknown verifier, a raw key, a prompt of wrong shapes, or a length that exceeds either
        model's positions.

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
    drafter, verifier = as_drafter(drafter), as_verifier(verifier)
    draft_length = as_draft_length(num_draft_tokens, max_new_tokens)
    max_draft_tokens = draft_length.max_draft_tokens
    stop = Stop() if stop is None else stop
    for name, value in (("num_samples", num_samples), ("num_drafts", num_drafts)):
        if value < 1:
            raise ValueError(f"{name}: got {value}; takes 1 or more")
    stages = CHAIN if num_drafts == 1 else TREE
    tree_slots = 0 if num_drafts == 1 else num_drafts * max_draft_tokens

    def allowed_after(logits: Array, prompt: Prompt, paths: Array, length: Array) -> Allowed:
        return allow(logits, prompt, paths, length, transform, stop)

    def limits(prompt: Prompt) -> Array:
        return stopping.limits(stop, prompt.length.shape[0], max_new_tokens)

    def init(model: LanguageModel, prompt: Prompt, key: Array) -> State:
        """Prefills both models, and draws the first token from the target."""
        batch, size = prompt.tokens.shape
        shape = (batch, num_samples)
        check_models(model, drafter)
        check_lengths(model, size, max_new_tokens)
        if num_drafts > 1:
            tree_drafts.check(model, drafter, verifier)
        keys, verifier_state = verifier.init(key, batch, num_samples)
        slots = max(max_new_tokens - 1, 1) + tree_slots
        logits, cache = model_calls.prefill(model, prompt, lanes=num_samples, slots=slots)
        logits = jnp.broadcast_to(logits, (*shape, *logits.shape[2:]))

        sequences = empty_sequences(limits(prompt), num_samples, max_new_tokens)
        position = sequences.length
        allowed = allowed_after(logits, prompt, sequences.tokens, position[..., None])
        drawn_from = allowed.distribution()
        token, verifier_state = verifier.draw(
            keys, verifier_state, drawn_from.position(0), position, jnp.int32(0)
        )
        empty = jnp.zeros(sequences.tokens.shape, jnp.float32) if with_sample_log_prob else None
        sequences, _ = append(
            sequences,
            token[..., None],
            jnp.ones(shape, jnp.int32),
            allowed.dead,
            of_model(logits),
            stop,
            limits(prompt),
        )
        drafter_state = stages.init_drafter(
            drafter, prompt, num_samples, max_new_tokens, max_draft_tokens, num_drafts
        )
        return State(
            cache=cache,
            sequences=sequences,
            keys=keys,
            verifier_state=verifier_state,
            drafter_state=drafter_state,
            length_state=draft_length.init(*shape),
            info=no_info(*shape),
            sample_log_prob=record(empty, position, sequences, drawn_from, token[..., None]),
        )

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        """One block: Algorithm 1 of Leviathan et al., one iteration of Algorithm 2 of Chen et al.

        The comments use the names of Leviathan et al.: p is the target and q is the draft.
        """
        sequences, limit = state.sequences, limits(prompt)
        # A block appends a final token too, so it drafts one token fewer than the limit allows.
        # A lane that is done drafts nothing.
        room = jnp.where(sequences.done, 0, limit[:, None] - sequences.length - 1)
        inputs = BlockInputs(
            prompt=prompt,
            sequences=sequences,
            cache=state.cache,
            drafter_state=state.drafter_state,
            keys=state.keys,
            verifier_state=state.verifier_state,
            draft_length=jnp.minimum(draft_length.count(state.length_state), room),
            max_draft_tokens=max_draft_tokens,
            num_drafts=num_drafts,
            counter=1 + state.info.blocks * (max_draft_tokens * num_drafts + 1),
            allow=lambda logits, paths, length: allowed_after(logits, prompt, paths, length),
        )
        # Draft: for i = 1 .. K, sample x_i ~ q_i(x) = q(x | prefix, x_1 .. x_(i-1)).
        draft, drafter_state, draft_calls = stages.propose(
            drafter, verifier, inputs, model.vocab_size
        )
        # Score: in one call, p_1(x) = p(x | prefix), ..., p_(K+1)(x) = p(x | prefix, x_1 .. x_K).
        scores, cache = stages.score(model, inputs, draft)
        # Verify, as ``TokenVerifier`` does: accept x_i with probability min(1, p_i(x_i) / q_i(x_i))
        # up to the first rejection, so that n tokens are accepted. Sample the final token t from
        # p_(n+1) - q_(n+1), clipped at 0 and normalised, if x_(n+1) was rejected, and from p_(K+1)
        # if all K tokens were accepted. The other verifiers apply their own rules.
        result = stages.verify(verifier, inputs, draft, scores)
        cache, drafter_state = stages.keep(model, drafter, inputs, result, cache, drafter_state)
        # Append: return prefix + x_1 .. x_n, t, cut where a stop condition or the limit applies.
        sequences, appended = append(
            sequences,
            result.tokens,
            result.accepted + 1,
            result.dead,
            result.distribution,
            stop,
            limit,
        )
        return State(
            cache=cache,
            sequences=sequences,
            keys=state.keys,
            verifier_state=result.verifier_state,
            drafter_state=drafter_state,
            length_state=draft_length.update(
                state.length_state, result.verifiable, result.accepted
            ),
            info=count_block(
                state.info,
                live=~state.sequences.done,
                result=result,
                appended=appended,
                draft_calls=draft_calls,
            ),
            sample_log_prob=record(
                state.sample_log_prob,
                state.sequences.length,
                sequences,
                result.drawn_from,
                result.tokens,
            ),
        )

    def done(state: State) -> Array:
        return state.sequences.done.all()

    def row_done(state: State) -> Array:
        return state.sequences.done.all(-1)

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        tokens, length, log_prob = state.sequences[:3]
        finished = state.sequences.finished
        return DecodeOutput(
            tokens, length, log_prob, log_prob, finished, state.info, state.sample_log_prob
        )

    def settled(state: State) -> Array:
        return state.sequences.length

    widens = getattr(drafter, "widens", False)
    return Steps(init, step, done, finalize, row_done, settled, widens)
