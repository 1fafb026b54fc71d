"""The decode function for beam search among the texts that contain given phrases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from decoding_jax import registry
from decoding_jax.base import Array, Transform
from decoding_jax.loop import run
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty
from decoding_jax.t5x.decode_fns import call as requests
from decoding_jax.t5x.decode_fns.beam_search import FromStart
from decoding_jax.t5x.decode_fns.sampling_settings import KeepForced
from decoding_jax.t5x.network.adapter import T5XAdapter


def constrained_beam_search(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 8,
    phrases: Any = (),
    alternatives: Any = (),
    vocabulary: Any = None,
    alpha: float | Array = 0.6,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Beam search among the texts that contain given phrases.

    See ``strategies.constrained_beam_search`` (Post & Vilar 2018; Hu et al. 2019), with T5X's
    length penalty.

    A phrase given as a string is tokenised as a text of its own, and looked for token by token: a
    text that spells it with other tokens does not count. Where that matters, give the spellings as
    alternatives. Prompts do not count.

    Args:
      inputs: this and what is not said here is as in ``beam_search``.
      num_decodes: N, hypotheses that a row keeps and returns: at best one more than the phrases
        have tokens.
      phrases: all must appear: strings, token sequences, or int32 ``[Q, M]`` or ``[B, Q, M]``,
        padded with -1 on the left.
      alternatives: sets of such, of each of which one at least must appear: sets of strings or of
        token sequences, or int32 ``[A, Q, M]`` or ``[B, A, Q, M]``.
      vocabulary: a ``seqio.Vocabulary``, or whatever has ``encode``; needed for strings.
      decode_rng: not used.
      max_decode_steps: the most tokens after the last of ``inputs``.
      transform: of each hypothesis's log-probabilities; where the prompt is not prefilled, its
        tokens are 0 to it.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the best last. Those that contain
      what they must come after all that do not, each part in rising order.

    Raises:
      ValueError: for strings without a vocabulary, one string where several are due, and phrases
        without a token.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> falling = lambda state: (-jnp.arange(2.0 * 5).reshape(2, 5), state.cache)
      >>> must = {"phrases": ((3, 4),)}
      >>> search = lambda x: constrained_beam_search(x, {}, falling, 1, num_decodes=2, **must)
      >>> jax.jit(search)(jnp.zeros((1, 2), jnp.int32))[0][0, -1]
      Array([3, 4], dtype=int32)
    """
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index,
    )  # fmt: skip
    if isinstance(alternatives, (tuple, list)):
        alternatives = tuple(_tokens("alternatives", some, vocabulary) for some in alternatives)
    model = request.model
    if isinstance(model, T5XAdapter):
        # Forced tokens are no part of any phrase.
        model = dataclasses.replace(model, show_prompt=False)
    steps = registry.steps(
        "constrained_beam_search",
        constraints=Constraints(_tokens("phrases", phrases, vocabulary), alternatives),
        beam_size=num_decodes,
        max_new_tokens=request.length,
        length_penalty=FromStart(GNMTPenalty(alpha), request.base),
        early_stopping="never",
        transform=None if transform is None else KeepForced(transform),
        stop=request.stop(request.limits(max_decode_steps)),
    )
    return request.best_last(run(steps, model, request.prompt))


def _tokens(name: str, phrases: Any, vocabulary: Any) -> Any:
    """Phrases as token sequences; arrays as they are."""
    if isinstance(phrases, str):
        raise ValueError(f"{name}: got {phrases!r}; takes a list of strings or of token sequences")
    if not isinstance(phrases, Sequence):
        return phrases
    if vocabulary is None and any(isinstance(phrase, str) for phrase in phrases):
        raise ValueError("vocabulary: got None beside strings; takes one that has encode")
    return tuple(
        tuple(int(token) for token in vocabulary.encode(phrase))
        if isinstance(phrase, str)
        else tuple(phrase)
        for phrase in phrases
    )
