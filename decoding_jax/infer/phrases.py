"""Constrained beam search as a batch job takes it: with phrases as strings."""

from __future__ import annotations

from collections.abc import Sequence

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.strategies import constrained_beam_search
from decoding_jax.strategies.beam.competition import EarlyStopping
from decoding_jax.strategies.beam.length_penalty import LengthPenalty
from decoding_jax.text import Tokenizer, constraints

Phrases = Sequence[str | Sequence[int]]


def beam_search_with_phrases(
    model: LanguageModel,
    prompt: Prompt,
    *,
    tokenizer: Tokenizer,
    phrases: Phrases = (),
    alternatives: Sequence[Phrases] = (),
    beam_size: int,
    num_return: int | None = None,
    max_new_tokens: int,
    length_penalty: float | Array | LengthPenalty = 0.0,
    early_stopping: EarlyStopping = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> DecodeOutput:
    """``decoding_jax.constrained_beam_search`` with its constraints as strings.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      tokenizer: the model's, which ``run`` gives to a strategy that takes one.
      phrases: all must appear: strings, tokenised as texts of their own, or token sequences.
      alternatives: sets of such, of each of which one at least must appear.
      beam_size: this and all that follows is as for ``decoding_jax.constrained_beam_search``.

    Returns:
      A ``DecodeOutput``, as from ``decoding_jax.constrained_beam_search``.

    Raises:
      ValueError: for one string where several are due, a phrase without a token, and settings that
        do not serve.

    Example:
      >>> import functools
      >>> import decoding_jax
      >>> from decoding_jax.infer import Item, run
      >>> made = []
      >>> summary = run(
      ...     decoding_jax.load("translation-en-fr-draft"),
      ...     [Item("Where is the station?")],
      ...     functools.partial(
      ...         beam_search_with_phrases, phrases=["gare"], beam_size=2, max_new_tokens=8
      ...     ),
      ...     report=made.append,
      ...     max_input_length=16,
      ... )
      >>> "gare" in made[0]["outputs"][0]["text"]
      True
    """
    return constrained_beam_search(
        model,
        prompt,
        constraints=constraints(tokenizer, phrases, alternatives),
        beam_size=beam_size,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        transform=transform,
        stop=stop,
    )
