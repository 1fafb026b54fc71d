"""Warnings that name the line of the caller's code, and those about decoded texts."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from decoding_jax.text.completions import Completion, NoCompletion

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_SHOWN = 10  # texts that a warning names


class CutTextWarning(UserWarning):
    """A text was cut by a limit that the caller did not name."""


class NanLogitsWarning(UserWarning):
    """The model's logits are NaN for some of the texts."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside of this package, once for each text and line.

    Args:
      message: one line.
      category: the category, by which the warning can be turned off.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_of_nan_logits(results: Sequence[Sequence[Completion]]) -> bool:
    """Warns with ``nan_logits_message``, and returns whether it did."""
    message = nan_logits_message(results)
    if message is not None:
        warn(message, NanLogitsWarning)
    return message is not None


def nan_logits_message(results: Sequence[Sequence[Completion]]) -> str | None:
    """A line that names the texts with a completion of ``nan_logits``; None if there is none.

    Example:
      >>> good = Completion("a", [5], log_prob=-0.5, score=-0.5, finished=True)
      >>> bad = Completion("", [], log_prob=float("nan"), score=float("nan"), finished=False)
      >>> nan_logits_message([[good], [good, bad], [bad]])
      'model: its logits are NaN for texts 1 and 2, of 3; these end there with a log_prob of NaN'
    """
    rows = [i for i, row in enumerate(results) if any(c.nan_logits for c in row)]
    if not rows:
        return None
    return (
        f"model: its logits are NaN for {_listed(rows, len(results))}; these end there with a "
        "log_prob of NaN"
    )


def warn_of_no_text(results: Sequence[Sequence[Completion]]) -> None:
    """Warns of texts without any completion, once for each reason that there is."""
    of_reasons: dict[str, list[int]] = {}
    for i, row in enumerate(results):
        if isinstance(row, NoCompletion):
            of_reasons.setdefault(row.reason, []).append(i)
    for reason, rows in of_reasons.items():
        warn(f"texts: got no completion for {_listed(rows, len(results))}: {reason}")


def _listed(rows: Sequence[int], count: int) -> str:
    """Names some of the ``count`` texts."""
    names = [str(i) for i in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        names.append(f"{len(rows) - _SHOWN:,} more")
    listed = f"text {names[0]}"
    if len(names) > 1:
        listed = f"texts {', '.join(names[:-1])} and {names[-1]}"
    return f"{listed}, of {count:,}"
