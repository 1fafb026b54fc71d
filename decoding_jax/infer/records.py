"""Output records: one JSON object for every input, including faulty ones; and their printing."""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from decoding_jax.infer.progress import print_line
from decoding_jax.infer.sources import Item
from decoding_jax.text import Completion
from decoding_jax.text.completions import NOT_REACHED, NoCompletion

Record = dict[str, Any]

_CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\n\Z')

MAX_CHARACTERS = 1000
"""The number of characters after which the record of a fault cuts its input and its error."""


def decoded(
    index: int,
    inputs: str,
    completions: Sequence[Completion],
    *,
    seed: int,
    with_tokens: bool = False,
    with_num_tokens: bool = False,
    num_cut: int = 0,
) -> Record:
    """Returns the record of an input and its completions.

    ``outputs`` has the order of the strategy, so ``outputs[i]`` is sequence i of a sampler.
    ``rank`` is 1 for the highest score; equal scores are ranked in the order of ``outputs``, and
    NaN is last. Where the model's logits were NaN, or where there is no
    completion, the record also has an ``error``.

    Args:
      index: the index of the input, from 0.
      inputs: the text of the input.
      completions: the completions of the input, in the strategy's order.
      seed: the seed of the job.
      with_tokens: whether the record contains token ids.
      with_num_tokens: whether it contains the number of tokens of each completion.
      num_cut: the number of tokens of the input that were cut off, which the record has unless it
        is 0.

    Example:
      >>> hello = Completion("Bonjour.", [5, 1], log_prob=-0.5, score=-0.5, finished=True)
      >>> decoded(0, "Hello.", [hello], seed=7)["outputs"][0]
      {'rank': 1, 'text': 'Bonjour.', 'log_prob': -0.5, 'score': -0.5, 'finished': True}
    """
    scores = [(math.isnan(c.score), -c.score) for c in completions]
    order = sorted(range(len(completions)), key=lambda i: scores[i])
    rank = {i: place + 1 for place, i in enumerate(order)}
    outputs = [
        {
            "rank": rank[i],
            "text": c.text,
            **({"tokens": list(c.tokens)} if with_tokens else {}),
            **({"num_tokens": len(c.tokens)} if with_num_tokens else {}),
            "log_prob": rounded(c.log_prob),
            **({} if c.sample_log_prob is None else {"sample_log_probs": plain(c.sample_log_prob)}),
            "score": rounded(c.score),
            "finished": c.finished,
            **({} if c.parsed is None else {"parsed": c.parsed}),
            **({} if c.info is None else {"info": jax.tree.map(plain, c.info)}),
        }
        for i, c in enumerate(completions)
    ]
    record = {"index": index, "inputs": inputs, "outputs": outputs, "seed": seed}
    if num_cut:
        record["num_cut"] = num_cut
    if num_nan := sum(c.nan_logits for c in completions):
        record["error"] = f"NaN logits: {num_nan} of {len(completions)} outputs"
    if not completions:
        reason = completions.reason if isinstance(completions, NoCompletion) else NOT_REACHED
        record["error"] = f"no output: {reason}"
    return record


def fault(index: int, inputs: str, error: str, *, seed: int) -> Record:
    """Returns the record of an input that cannot be decoded: it has an ``error`` and no outputs.

    An input of more than 1,000 characters is cut after 1,000, and ``inputs_length`` is its full
    length. A longer error is also cut, and its full length is appended to it.

    Args:
      index: the index of the input, from 0.
      inputs: the text of the input, or the contents of the file if it is not text.
      error: the kind of the fault, followed by a colon and the details if there are any.
      seed: the seed of the job.

    Example:
      >>> fault(3, "", "empty", seed=7)
      {'index': 3, 'inputs': '', 'outputs': [], 'seed': 7, 'error': 'empty'}
      >>> fault(4, "[" * 100_000, "broken JSON", seed=7)["inputs_length"]
      100000
    """
    if len(error) > MAX_CHARACTERS:
        error = f"{error[:MAX_CHARACTERS]} [...] ({len(error):,} characters)"
    record = {"index": index, "inputs": inputs[:MAX_CHARACTERS], "outputs": [], "seed": seed}
    if len(inputs) > MAX_CHARACTERS:
        record["inputs_length"] = len(inputs)
    return {**record, "error": error}


def with_origin(record: Record, item: Item) -> Record:
    """Returns the record with the ``id`` and the ``file`` of its input after its index, if any.

    Example:
      >>> with_origin(fault(3, "", "empty", seed=7), Item("", id="line-3"))["id"]
      'line-3'
    """
    origin = {"id": item.id, "file": item.file}
    given = {name: value for name, value in origin.items() if value is not None}
    return {"index": record["index"], **given, **record} if given else record


def to_line(record: Record) -> str:
    """Returns the record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def to_checked_line(record: Record) -> str:
    """Returns the record as a line of JSON that ends with the checksum of the rest of it.

    ``crc32`` is the CRC-32 of the line without this key, in UTF-8, as eight hexadecimal digits.

    Example:
      >>> to_checked_line({"index": 0, "seed": 7})
      '{"index": 0, "seed": 7, "crc32": "52b7e81b"}\\n'
    """
    line = to_line(record)
    return f'{line[:-2]}, "crc32": "{zlib.crc32(line.encode()):08x}"}}\n'


def has_own_checksum(line: bytes) -> bool:
    """Whether a line ends with the checksum of the rest of it.

    Example:
      >>> line = to_checked_line({"index": 0, "seed": 7}).encode()
      >>> has_own_checksum(line), has_own_checksum(line.replace(b": 7", b": 8"))
      (True, False)
    """
    found = _CHECKSUM.search(line)
    return found is not None and zlib.crc32(line[: found.start()] + b"}\n") == int(found[1], 16)


def count_faults(records: Iterable[Record]) -> Counter[str]:
    """Counts faulty records by kind, which is the part of ``error`` before the first colon."""
    return Counter(r["error"].partition(":")[0] for r in records if "error" in r)


def plain(value: Any) -> Any:
    """A number, or an array as JSON has it: lists of numbers."""
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return rounded(value) if isinstance(value, float) else value


def rounded(value: float) -> float | None:
    """Returns a number with nine digits, which identify any float32; None if it is not finite.

    Example:
      >>> rounded(1 / 3), rounded(math.inf)
      (0.333333333, None)
    """
    return float(f"{value:.9g}") if math.isfinite(value) else None


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
