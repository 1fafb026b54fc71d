"""The decode function for beam search over the texts that contain given phrases."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from decoding_jax import registry
from decoding_jax.base import Array
from decoding_jax.loop import run
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty
from decoding_jax.t5x.decode_fns.arguments import Decodes, T5XArguments, decode_fn
from decoding_jax.t5x.decode_fns.beam_search import FromStart
from decoding_jax.t5x.decode_fns.call import open_call
from decoding_jax.t5x.decode_fns.temperature import keep_forced
from decoding_jax.t5x.network.adapter import T5XAdapter


@decode_fn(num_decodes=8)
def constrained_beam_search(
    arguments: T5XArguments,
    *,
    phrases: Any = (),
    alternatives: Any = (),
    vocabulary: Any = None,
    alpha: float | Array = 0.6,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Beam search over the texts that contain given phrases.

    See ``strategies.constrained_beam_search`` (Post & Vilar 2018; Hu et al. 2019), with T5X's
    length penalty.

    A phrase given as a string is tokenised by itself and matched token by token, so a text that
    contains the same string in other tokens does not match. If that matters, give the other token
    sequences as alternatives. Phrases are matched in the new tokens only, not in the prompt.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, cache_offset, initial_index: see
        ``T5XArguments``.
      num_decodes: N, the number of hypotheses that a row keeps and returns. Preferably more than
        the number of tokens in all phrases.
      phrases: the phrases, all of which must appear: strings, token sequences, or int32 ``[Q, M]``
        or ``[B, Q, M]``, padded with -1 on the left.
      alternatives: sets of phrases; at least one phrase of each set must appear. Each set contains
        strings or token sequences; or int32 ``[A, Q, M]`` or ``[B, A, Q, M]``.
      vocabulary: a ``seqio.Vocabulary`` or another object with ``encode``; needed for strings.
      alpha: the exponent of the length penalty, as for ``beam_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.
      transform: applied to the log-probabilities of each hypothesis. Without a prefill, it is given
        token 0 in the place of each prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the best last. Hypotheses that
      contain all phrases come after all others; both parts are in ascending order.

    Raises:
      ValueError: for strings without a vocabulary, a string instead of a list of them, and phrases
        without tokens.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> falling = lambda state: (-jnp.arange(2.0 * 5).reshape(2, 5), state.cache)
      >>> must = {"phrases": ((3, 4),)}
      >>> search = lambda x: constrained_beam_search(x, {}, falling, 1, num_decodes=2, **must)
      >>> jax.jit(search)(jnp.zeros((1, 2), jnp.int32))[0][0, -1]
      Array([3, 4], dtype=int32)
    """
    call = open_call(arguments)
    if isinstance(alternatives, (tuple, list)):
        alternatives = tuple(_tokens("alternatives", group, vocabulary) for group in alternatives)
    model = call.model
    if isinstance(model, T5XAdapter):
        # A forced token must not match a phrase.
        model = dataclasses.replace(model, show_prompt=False)
    steps = registry.steps(
        "constrained_beam_search",
        constraints=Constraints(_tokens("phrases", phrases, vocabulary), alternatives),
        beam_size=arguments.num_decodes,
        max_new_tokens=call.length,
        length_penalty=FromStart(GNMTPenalty(alpha), call.prompt_end),
        early_stopping="never",
        transform=keep_forced(arguments.transform),
        stop=call.stop(call.limits(max_decode_steps)),
    )
    return call.best_last(run(steps, model, call.prompt))


def _tokens(name: str, phrases: Any, vocabulary: Any) -> Any:
    """Phrases as token sequences; arrays are returned unchanged."""
    if isinstance(phrases, str):
        raise ValueError(f"{name}: got {phrases!r}; takes a list of strings or of token sequences")
    if not isinstance(phrases, Sequence):
        return phrases
    if vocabulary is None and any(isinstance(phrase, str) for phrase in phrases):
        raise ValueError(
            "vocabulary: got None for phrases that are strings; takes an object with encode"
        )
    return tuple(
        tuple(int(token) for token in vocabulary.encode(phrase))
        if isinstance(phrase, str)
        else tuple(phrase)
        for phrase in phrases
    )
