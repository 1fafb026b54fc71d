"""The stages of a block with one draft for each lane: a chain of K tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Cache, LanguageModel, Prompt
from decoding_jax.loop import model_calls
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.strategies.speculative.appending import place_tokens
from decoding_jax.strategies.speculative.distributions import Softmax, model_distribution
from decoding_jax.strategies.speculative.drafters import Drafter, FeatureDrafter, Guesser, Path
from decoding_jax.strategies.speculative.stages import (
    BlockInputs,
    BlockResult,
    Draft,
    Scores,
    Stages,
    count_leading,
)
from decoding_jax.strategies.speculative.verifiers import Verifier


def init_drafter(
    drafter: Drafter | Guesser,
    prompt: Prompt,
    lanes: int,
    max_new_tokens: int,
    max_draft_tokens: int,
    num_drafts: int,
    features: tuple[Array, ...],
) -> Any:
    """The drafter's state before the first block."""
    sizes = {"lanes": lanes, "max_new_tokens": max_new_tokens}
    if not isinstance(drafter, FeatureDrafter):
        return drafter.init(prompt, **sizes)
    return drafter.init(prompt, **sizes, max_draft_tokens=max_draft_tokens, features=features)


def propose(
    drafter: Drafter | Guesser, verifier: Verifier, inputs: BlockInputs, vocab_size: int
) -> tuple[Draft, Any, Array]:
    """Drafts up to K tokens for every lane, each drawn by the verifier.

    Returns:
      The draft, the drafter's state, and the number of calls of the drafter.
    """
    sequences = inputs.sequences
    path = Path(inputs.prompt, sequences.tokens, sequences.length)
    if isinstance(drafter, Guesser):
        return _guessed(drafter, inputs, path, vocab_size), inputs.drafter_state, jnp.int32(1)

    def checked(logits: Array, function: str) -> Array:
        shape = (*path.length.shape, vocab_size)
        return model_calls.as_logits(logits, shape, "drafter", function, "[B, W, V]")

    draw = functools.partial(draw_token, drafter, verifier, inputs)
    min_confidence = getattr(drafter, "min_confidence", 0.0)
    calls = jnp.maximum(inputs.draft_length.max(), 1)

    def goes_on(carry: Any) -> Array:
        i, draft = carry[:2]
        # Without a threshold, the lengths are known in advance, and the maximum over rows, which
        # may need communication between devices, is computed once.
        return i < (calls if min_confidence == 0 else jnp.maximum(draft.length.max(), 1))

    def draw_next(carry: Any) -> Any:
        i, draft, drafter_state, state, tokens = carry
        token = lax.dynamic_index_in_dim(draft.tokens, i - 1, 2, keepdims=False)
        position = path.length + i - 1
        tokens = place_tokens(tokens, token[..., None], position)
        logits, drafter_state = drafter.next(drafter_state, token, position)
        drawn = draw(i, checked(logits, "next"), tokens, state)
        return i + 1, record(draft, i, drawn, min_confidence), drafter_state, drawn.state, tokens

    logits, drafter_state = drafter.begin(inputs.drafter_state, path)
    drawn = draw(0, checked(logits, "begin"), path.tokens, inputs.verifier_state)
    draft = record(empty_draft(inputs, drawn), 0, drawn, min_confidence)
    carry = jnp.int32(1), draft, drafter_state, drawn.state, path.tokens
    count, draft, drafter_state, _, _ = lax.while_loop(goes_on, draw_next, carry)
    return draft, drafter_state, jnp.int32(1) if getattr(drafter, "one_call", False) else count


class Drawn(NamedTuple):
    """The drafted tokens of one position.

    Attributes:
      token: int32 ``[B, W]``.
      prob: float32 ``[B, W]``, its probability under the draft's transformed distribution.
      distribution: that distribution; None for a greedy draft.
      state: the verifier's state.
    """

    token: Array
    prob: Array
    distribution: Softmax | None
    state: Any


def draw_token(
    drafter: Drafter,
    verifier: Verifier,
    inputs: BlockInputs,
    i: Array | int,
    logits: Array,
    tokens: Array,
    state: Any,
) -> Drawn:
    """Draws the token of position i of every draft from ``logits [B, W, V]`` after ``tokens``."""
    position = inputs.sequences.length + i
    allowed = inputs.allow(logits[:, :, None], tokens, position[..., None])
    distribution = allowed.distribution().position(0)
    if getattr(drafter, "greedy", False):
        token = lowest_argmax(distribution.logits)
        return Drawn(token, distribution.prob_of(token), None, ())
    token, state = verifier.draw(inputs.keys, state, distribution, position, inputs.counter + i)
    return Drawn(token, distribution.prob_of(token), distribution, state)


def empty_draft(inputs: BlockInputs, drawn: Drawn) -> Draft:
    """A draft with places for K tokens like ``drawn``."""

    def empty(value: Array, axis: int) -> Array:
        shape = (*value.shape[:axis], inputs.max_draft_tokens, *value.shape[axis:])
        return jnp.zeros(shape, value.dtype)

    return Draft(
        tokens=empty(drawn.token, 2),
        length=inputs.draft_length,
        distribution=jax.tree.map(lambda x: empty(x, 2), drawn.distribution),
        states=jax.tree.map(lambda x: empty(x, 0), drawn.state),
    )


def record(draft: Draft, i: Array | int, drawn: Drawn, min_confidence: float) -> Draft:
    """Writes the token of position i, with which a draft of too little confidence ends."""

    def update(axis: int) -> Callable[[Array, Array], Array]:
        return lambda values, new: lax.dynamic_update_index_in_dim(values, new, i, axis)

    length = draft.length
    if min_confidence > 0:
        length = jnp.where(drawn.prob < min_confidence, jnp.minimum(length, i + 1), length)
    return draft._replace(
        tokens=update(2)(draft.tokens, drawn.token),
        length=length,
        distribution=jax.tree.map(update(2), draft.distribution, drawn.distribution),
        states=jax.tree.map(update(0), draft.states, drawn.state),
    )


def _guessed(drafter: Guesser, inputs: BlockInputs, path: Path, vocab_size: int) -> Draft:
    """The draft of a guesser, cut before the first token outside the vocabulary."""
    tokens = drafter.guess(inputs.drafter_state, path, inputs.max_draft_tokens)
    shape = (*path.length.shape, inputs.max_draft_tokens)
    if jnp.shape(tokens) != shape or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"drafter: expected int32 [B, W, K] from guess, which is {list(shape)} here, got "
            f"{jnp.result_type(tokens)}{list(jnp.shape(tokens))}"
        )
    tokens = tokens.astype(jnp.int32)
    in_vocabulary = (tokens >= 0) & (tokens < vocab_size)
    length = jnp.minimum(inputs.draft_length, count_leading(in_vocabulary))
    return Draft(jnp.where(in_vocabulary, tokens, 0), length, None, ())


def score(model: LanguageModel, inputs: BlockInputs, draft: Draft) -> tuple[Scores, Cache]:
    """Feeds the last token and the K drafted ones to the target, in one call.

    Returns:
      The scores of K + 1 tokens, and the target's cache.
    """
    sequences = inputs.sequences
    fed = jnp.concatenate([inputs.last_tokens, draft.tokens], axis=-1)
    output, cache = model_calls.extend(model, inputs.cache, fed, sequences.length - 1)
    paths = place_tokens(sequences.tokens, draft.tokens, sequences.length)
    offset = jnp.arange(inputs.max_draft_tokens + 1, dtype=jnp.int32)[None, None]
    allowed = inputs.allow(output.logits, paths, sequences.length[..., None] + offset)
    return Scores(output.logits, allowed, output.features), cache


def verify(verifier: Verifier, inputs: BlockInputs, draft: Draft, scores: Scores) -> BlockResult:
    """Lets the verifier accept drafted tokens and choose the final token."""
    target = scores.allowed.distribution()
    position = inputs.sequences.length
    tokens, accepted, state = verifier.verify(
        inputs.keys, inputs.verifier_state, draft, target, position, inputs.counter
    )
    return BlockResult(
        tokens=tokens,
        accepted=accepted,
        verifiable=draft.length,
        proposed=draft.valid.astype(jnp.int32),
        distribution=model_distribution(scores.logits, scores.allowed, target),
        drawn_from=target,
        dead=scores.allowed.dead,
        verifier_state=state,
    )


def keep(
    model: LanguageModel,
    drafter: Drafter | Guesser,
    inputs: BlockInputs,
    result: BlockResult,
    cache: Cache,
    drafter_state: Any,
) -> tuple[Cache, Any]:
    """Moves nothing: a chain's accepted tokens are already where the next block expects them."""
    return cache, drafter_state


CHAIN = Stages(init_drafter, propose, score, verify, keep)
