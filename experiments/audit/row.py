"""A row of the audit: which sampler runs which case, and what its documentation promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from experiments.audit.distributions import Convention, conventions


@dataclasses.dataclass(frozen=True)
class Row:
    """One sampler on one case.

    Attributes:
      project: a name of ``environments.ENVIRONMENTS``.
      path: a name of its program's table of samplers.
      case: a name of ``cases.CASES``.
      promise: what the documentation says, in our words.
      at: the file and line of the project that say so, ``path#L12``; for ours, the file.
      allowed: the conventions that are within what it says.
      samples: how many are drawn.
    """

    project: str
    path: str
    case: str
    promise: str
    at: str
    allowed: Sequence[Convention]
    samples: int = 40_000


# What documentation that says no more than the name of a setting leaves open.
OPEN = conventions(
    order=("temperature first", "temperature last"),
    ties=("lowest ids", "highest ids", "all"),
    top_p=("at least", "more than"),
    nucleus=("top_k", "all"),
    beams=("first", "best"),
    language=("masked", "conditional"),
)
AT_LEAST = conventions(
    order=("temperature first", "temperature last"),
    ties=("lowest ids", "highest ids", "all"),
    nucleus=("top_k", "all"),
)
SOFTMAX = "the softmax of the logits"
LANGUAGE = ("language", "language, temperature", "language, short first", "language, schema")
INDEPENDENT = "samples of one call are independent"


def rows(
    project: str,
    path: str,
    cases: Sequence[str],
    promise: str,
    at: str,
    allowed: Sequence[Convention],
) -> list[Row]:
    """A row for each of several cases of one sampler, with one promise."""
    return [Row(project, path, case, promise, at, allowed) for case in cases]
