"""Constrained beam search whose phrases are strings, for batch jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.loop import as_function
from decoding_jax.pytrees import pytree
from decoding_jax.strategies import ConstrainedBeamSearch
from decoding_jax.text import Tokenizer, constraints

Phrases = Sequence[str | Sequence[int]]


def _as_tuples(name: str, phrases: Any) -> Any:
    """The phrases as tuples, which are hashable."""
    if isinstance(phrases, (list, tuple)):
        return tuple(_as_tuples(name, phrase) for phrase in phrases)
    return phrases


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearchWithPhrases(ConstrainedBeamSearch):
    """Runs ``decoding_jax.constrained_beam_search`` with constraints that are given as strings.

    Attributes:
      tokenizer: the tokenizer of the model. ``run`` passes it to a strategy that takes one.
      phrases: strings, each of which is tokenised as a separate text, or token sequences. All of
        them must appear.
      alternatives: sets of phrases; of each set at least one must appear.
      beam_size: as for ``decoding_jax.constrained_beam_search``, like all arguments below.

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

    tokenizer: Tokenizer = fields.field(static=True)
    phrases: Phrases = fields.field(_as_tuples, static=True, default=())
    alternatives: Sequence[Phrases] = fields.field(_as_tuples, static=True, default=())
    constraints: Any = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        made = constraints(self.tokenizer, self.phrases, self.alternatives)
        object.__setattr__(self, "constraints", made)
        super().__post_init__()


beam_search_with_phrases = as_function(BeamSearchWithPhrases)
