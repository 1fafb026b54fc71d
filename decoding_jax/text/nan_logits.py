"""What is said about texts for which the logits of the model were NaN."""

from __future__ import annotations

from collections.abc import Sequence

from decoding_jax.text.batch import Completion
from decoding_jax.text.warn import warn

_SHOWN = 10


class NanLogitsWarning(UserWarning):
    """The model's logits are NaN for some of the texts."""


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
    names = [str(i) for i in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        names.append(f"{len(rows) - _SHOWN:,} more")
    listed = f"text {names[0]}"
    if len(names) > 1:
        listed = f"texts {', '.join(names[:-1])} and {names[-1]}"
    return (
        f"model: its logits are NaN for {listed}, of {len(results):,}; these end there with a "
        "log_prob of NaN"
    )


def warn_of_nan_logits(results: Sequence[Sequence[Completion]]) -> bool:
    """Warns with ``nan_logits_message``, and returns whether it did."""
    message = nan_logits_message(results)
    if message is not None:
        warn(message, NanLogitsWarning)
    return message is not None
