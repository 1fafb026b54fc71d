"""Records for people to read."""

from __future__ import annotations

import sys
from typing import Any

from decoding_jax.infer.progress import say
from decoding_jax.infer.records import Record


class Printer:
    """Prints every input, and below it what it was decoded to: rank, log-probability, text.

    Texts stand in the order of their score, the best first. Log-probabilities are in nats, under
    the model. A text that ran out of length ends in ``[...]``.

    Args:
      merge_duplicates: whether a text that was drawn several times is printed once, with how
        often; its log-probability is that of its likeliest token sequence.
      limit: the most texts printed for an input; None prints all.

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
        say("\n".join([*self._lines(record), ""]), sys.stdout)

    def _lines(self, record: Record) -> list[str]:
        head = f"[{record['index'] + 1}] {record['inputs']}"
        if "error" in record:
            return [head, f"    not decoded: {record['error']}"]
        outputs = sorted(record["outputs"], key=lambda o: o["rank"])
        groups: dict[Any, list[dict[str, Any]]] = {}
        for output in outputs:
            key = (output["text"], output["finished"]) if self._merge else output["rank"]
            groups.setdefault(key, []).append(output)
        counted = self._merge and len(outputs) > 1
        lines = [head, "    rank  log-prob  " + ("drawn  " if counted else "") + "text"]
        for rank, group in enumerate(list(groups.values())[: self._limit], 1):
            best = group[0]
            log_prob = "-inf" if best["log_prob"] is None else f"{best['log_prob']:.2f}"
            drawn = f"{f'{len(group)}/{len(outputs)}':>5}  " if counted else ""
            text = best["text"] + ("" if best["finished"] else " [...]")
            lines.append(f"    {rank:>4}  {log_prob:>8}  {drawn}{text}")
        if len(groups) > len(lines) - 2:
            lines.append(f"          and {len(groups) - len(lines) + 2} more")
        return lines
