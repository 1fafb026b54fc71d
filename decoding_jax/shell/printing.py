"""What the command prints: a text as it grows, a table of completions, or lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from decoding_jax.infer import records
from decoding_jax.infer.printing import Printer
from decoding_jax.text import Completion, stream_text


def print_growing(model: Any, tokenizer: Any, text: str, settings: dict[str, Any]) -> Completion:
    """Decodes one completion of a text, and prints it as it grows, with its log-probability."""
    print(f"[1] {text}")
    [[completion]] = stream_text(model, tokenizer, [text], **settings).print()
    ending = "" if completion.finished else ", not finished"
    print(f"    log-prob {completion.log_prob:.2f}{ending}\n")
    return completion


def print_table(texts: Sequence[str], rows: Sequence[Sequence[Completion]], *, drawn: bool) -> None:
    """Prints the completions of every text.

    Args:
      texts: the inputs.
      rows: the completions of each.
      drawn: whether they are independent draws. Equal ones are then counted.
    """
    printer = Printer(merge_duplicates=drawn)
    for record in _records(texts, rows, seed=0):
        printer(record)


def print_json(texts: Sequence[str], rows: Sequence[Sequence[Completion]], *, seed: int) -> None:
    """Prints a line of JSON for every text, in the form of the batch job's records."""
    for record in _records(texts, rows, seed=seed):
        sys.stdout.write(records.to_line(record))


def _records(
    texts: Sequence[str], rows: Sequence[Sequence[Completion]], *, seed: int
) -> list[records.Record]:
    return [
        records.decoded(index, text, [c._replace(info=None) for c in row], seed=seed)
        for index, (text, row) in enumerate(zip(texts, rows, strict=True))
    ]
