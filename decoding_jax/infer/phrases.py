"""Constrained beam search whose phrases are strings, for batch jobs."""

from __future__ import annotations

from collections.abc import Sequence

from decoding_jax.base import Array, Stop, Transform
from decoding_jax.loop import Static, Steps, search, steps_of
from decoding_jax.rows import PerRow
from decoding_jax.strategies import constrained_beam_search
from decoding_jax.strategies.beam.competition import EarlyStopping
from decoding_jax.strategies.beam.length_penalty import LengthPenalty
from decoding_jax.text import Tokenizer, constraints

Phrases = Sequence[str | Sequence[int]]


@search
def beam_search_with_phrases(
    *,
    tokenizer: Static[Tokenizer],
    phrases: Static[Phrases] = (),
    alternatives: Static[Sequence[Phrases]] = (),
    beam_size: Static[int],
    num_return: Static[int | None] = None,
    max_new_tokens: Static[int],
    length_penalty: PerRow[float | Array | LengthPenalty] = 0.0,
    early_stopping: Static[EarlyStopping] = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Runs ``decoding_jax.constrained_beam_search`` with constraints that are given as strings.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      tokenizer: the tokenizer of the model. ``run`` passes it to a strategy that takes one.
      phrases: strings, each of which is tokenised as a separate text, or token sequences. All of
        them must appear.
      alternatives: sets of phrases; of each set at least one must appear.
      beam_size: as for ``decoding_jax.constrained_beam_search``, like all arguments below.

    Returns:
      A ``DecodeOutput``, as from ``decoding_jax.constrained_beam_search``.

    Raises:
      ValueError: if ``phrases`` or a set of alternatives is a single string, if a phrase has no
        token, or if a setting is invalid.

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
    return steps_of(constrained_beam_search)(
        constraints=constraints(tokenizer, phrases, alternatives),
        beam_size=beam_size,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        transform=transform,
        stop=stop,
    )
