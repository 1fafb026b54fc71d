"""Output records: one JSON object for every input, whatever became of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from decoding_jax.text import Completion

Record = dict[str, Any]

LONGEST = 1000
"""How many characters the record of a fault repeats of its input and of its error."""


def decoded(
    index: int,
    inputs: str,
    completions: Sequence[Completion],
    *,
    seed: int,
    with_tokens: bool = False,
) -> Record:
    """The record of an input and its completions.

    ``outputs`` keeps the strategy's own order (lane i of a sampler is ``outputs[i]``); ``rank``
    counts from 1, the highest score, and equal scores by their order.

    Args:
      index: of the input, from 0.
      inputs: the text.
      completions: in the strategy's order.
      seed: of the job.
      with_tokens: whether to record token ids as well.

    Example:
      >>> hello = Completion("Bonjour.", [5, 1], log_prob=-0.5, score=-0.5, finished=True)
      >>> decoded(0, "Hello.", [hello], seed=7)["outputs"][0]
      {'rank': 1, 'text': 'Bonjour.', 'log_prob': -0.5, 'score': -0.5, 'finished': True}
    """
    scores = [-math.inf if math.isnan(c.score) else c.score for c in completions]
    order = sorted(range(len(completions)), key=lambda i: -scores[i])
    rank = {i: place + 1 for place, i in enumerate(order)}
    outputs = [
        {
            "rank": rank[i],
            "text": c.text,
            **({"tokens": list(c.tokens)} if with_tokens else {}),
            "log_prob": _number(c.log_prob),
            "score": _number(c.score),
            "finished": c.finished,
        }
        for i, c in enumerate(completions)
    ]
    return {"index": index, "inputs": inputs, "outputs": outputs, "seed": seed}


def fault(index: int, inputs: str, error: str, *, seed: int) -> Record:
    """The record of an input that cannot be decoded: no outputs, and an ``error``.

    An input of more than 1,000 characters is cut there, and ``inputs_length`` gives its length; an
    error is cut in the same way.

    Args:
      index: of the input, from 0.
      inputs: the text, or what there was instead.
      error: what is wrong with it: a kind, and after a colon the rest.
      seed: of the job.

    Example:
      >>> fault(3, "", "empty", seed=7)
      {'index': 3, 'inputs': '', 'outputs': [], 'seed': 7, 'error': 'empty'}
      >>> fault(4, "[" * 100_000, "broken JSON", seed=7)["inputs_length"]
      100000
    """
    if len(error) > LONGEST:
        error = f"{error[:LONGEST]} [...] ({len(error):,} characters)"
    record = {"index": index, "inputs": inputs[:LONGEST], "outputs": [], "seed": seed}
    if len(inputs) > LONGEST:
        record["inputs_length"] = len(inputs)
    return {**record, "error": error}


def with_id(record: Record, record_id: Any) -> Record:
    """The record with the input's ``id`` after its index, if the input has one.

    Example:
      >>> with_id(fault(3, "", "empty", seed=7), "line-3")["id"]
      'line-3'
    """
    if record_id is None:
        return record
    return {"index": record["index"], "id": record_id, **record}


def to_line(record: Record) -> str:
    """The record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def count_faults(records: Iterable[Record]) -> Counter[str]:
    """How many records are faulty, by kind: what stands before the colon of ``error``."""
    return Counter(r["error"].partition(":")[0] for r in records if "error" in r)


def _number(value: float) -> float | None:
    """Nine digits, which tell any float32 from all others; null for what JSON cannot say."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
