"""The drafters of the certificate: good and bad proposals for speculative decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax.strategies.speculative import (
    Bigram,
    Heuristic,
    Measured,
    NextToken,
    PromptLookup,
)
from decoding_jax.testing.certificate.problems import VOCAB
from decoding_jax.testing.table_lm import TableLM


class Draft(NamedTuple):
    """A drafter and the number of tokens that it drafts.

    Attributes:
      make: a function from the target model to the drafter.
      num_draft_tokens: as for ``speculative_sample``.
      num_drafts: as for ``speculative_sample``; only the token verifier takes more than one.
    """

    make: Callable[[Any], Any]
    num_draft_tokens: Any
    num_drafts: int = 1


@functools.cache
def _table(zeros: float) -> TableLM:
    key = jax.random.fold_in(jax.random.key(30), int(100 * zeros))
    return TableLM.random(key, VOCAB, sharpness=2.0, zeros=zeros)


DRAFTS: dict[str, Draft] = {
    "itself, 4": Draft(lambda model: model, 4),
    "another, 3": Draft(lambda model: _table(0.0), 3),
    "with zeros, 2": Draft(lambda model: _table(0.4), 2),
    "another, up to 8": Draft(lambda model: _table(0.0), Heuristic(max_draft_tokens=8, first=3)),
    "another, 3 of 2": Draft(lambda model: _table(0.0), 2, num_drafts=3),
    "bigram, up to 6": Draft(
        lambda model: Bigram(_table(0.0).table[0, 0]), Measured(max_draft_tokens=6)
    ),
    "next token, 1": Draft(lambda model: NextToken(np.array([2, 3, -1, 1], np.int32)), 1),
    "prompt lookup, 7": Draft(lambda model: PromptLookup(size=2), 7),
}
