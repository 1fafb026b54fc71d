"""Prints records in a readable form."""

from __future__ import annotations

import sys
from typing import Any

from decoding_jax.infer.progress import print_line
from decoding_jax.infer.records import Record


class Printer:
    """Prints every input, and below it the rank, log-probability and text of each output.

    Texts are sorted by score, the best first. Log-probabilities are in nats, under the model. A
    text that reached the maximum length without a stop condition ends in ``[...]``.

    Args:
      merge_duplicates: whether a text that was drawn several times is printed once, with the number
        of times. Its log-probability is that of its best token sequence.
      limit: the maximum number of texts that are printed for an input; None prints all.

    Example:
      >>> outputs = [
      ...     {"rank": 2, "text": "Allo.", "log_prob": -2.25, "score": -2.25, "finished": True},
      ...     {"rank": 1, "text": "Salut.", "log_prob": -0.5, "score": -0.5, "finished": True},
      ...     {"rank": 3, "text": "Allo.", "log_prob": -2.25, "score": -2.25, "finished": True},
      ... ]
      >>> Printer()({"index": 0, "inputs": "Hello.", "outputs": outputs, "seed": 0})
      [1] Hello.
          rank  log-prob  drawn  text
             1     -0.50    1/3  Salut.
             2     -2.25    2/3  Allo.
      <BLANKLINE>
    """

    def __init__(self, merge_duplicates: bool = True, limit: int | None = None):
        self._merge = merge_duplicates
        self._limit = limit

    def __call__(self, record: Record) -> None:
        print_line("\n".join([*self._lines(record), ""]), sys.stdout)

    def _lines(self, record: Record) -> list[str]:
        title = f"[{record['index'] + 1}] {record['inputs']}"
        if not record["outputs"] and "error" in record:
            return [title, f"    not decoded: {record['error']}"]
        outputs = sorted(record["outputs"], key=lambda o: o["rank"])
        groups: dict[Any, list[dict[str, Any]]] = {}
        for output in outputs:
            key = (output["text"], output["finished"]) if self._merge else output["rank"]
            groups.setdefault(key, []).append(output)
        show_counts = self._merge and len(outputs) > 1
        lines = [title, "    rank  log-prob  " + ("drawn  " if show_counts else "") + "text"]
        for rank, group in enumerate(list(groups.values())[: self._limit], 1):
            best = group[0]
            is_nan = "error" in record and best["log_prob"] is None
            log_prob = "-inf" if best["log_prob"] is None else f"{best['log_prob']:.2f}"
            log_prob = "nan" if is_nan else log_prob
            drawn = f"{f'{len(group)}/{len(outputs)}':>5}  " if show_counts else ""
            text = best["text"] + ("" if best["finished"] else " [...]")
            lines.append(f"    {rank:>4}  {log_prob:>8}  {drawn}{text}")
        if len(groups) > len(lines) - 2:
            lines.append(f"          and {len(groups) - len(lines) + 2} more")
        if "error" in record:
            lines.append(f"    {record['error']}")
        return lines
