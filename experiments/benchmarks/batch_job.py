"""Sentences a second of the batch job: batches that are refilled beside sorted batches.

The embedded model translates the held-out sentences, shuffled, greedily and with four samples a
sentence. ``buckets`` are batches in file order, each of which lasts as long as its longest row;
``sorted`` are the same batches with the longest inputs first, which is the baseline; ``refilled``
is what the job does, which decodes 32 sentences for each row together. Where ``transformers`` is
installed, its ``generate`` decodes the sorted batches too. All in one process, interleaved;
medians, and medians of the ratios of neighbouring runs. The waste is that of ``RowSteps.waste``, as
in the job's ``summary.json``.

    python -m experiments.benchmarks.batch_job --out runs/benchmarks
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax.batches import RowDecoder, RowSteps, parse, widths
from decoding_jax.text import default_stop
from experiments import drawing, held_out
from experiments.benchmarks.beside import transformers_t5
from experiments.benchmarks.timing import interleaved, median_ratio
from experiments.results import write_json

MODEL = "translation-en-fr"
NEW_TOKENS = 64
STRATEGIES: dict[str, Any] = {
    "greedy": functools.partial(decoding_jax.greedy, max_new_tokens=NEW_TOKENS),
    "sample x4": functools.partial(decoding_jax.sample, max_new_tokens=NEW_TOKENS, num_samples=4),
}


WAYS = {"buckets": "in file order", "sorted": "sorted by length", "refilled": "refilled"}


class Usage(NamedTuple):
    """Rows in use over time.

    Attributes:
      periods: the steps of each period, one or more.
    """

    periods: list[RowSteps]

    @property
    def total(self) -> RowSteps:
        """The steps of all periods."""
        return functools.reduce(RowSteps.plus, self.periods, RowSteps())


class Job:
    """Decodes all sentences in one way.

    Args:
      ids: the tokens of the sentences.
      strategy: one of ``STRATEGIES``.
      batch_size: the number of rows.
      way: ``buckets``, ``sorted`` or ``refilled``.
      name: of the model.
    """

    def __init__(self, ids: list[list[int]], strategy: str, batch_size: int, way: str, name: str):
        model, tokenizer = decoding_jax.load(name)
        self.batch_size = batch_size
        self.ids = ids
        self.is_refilled = way == "refilled"
        of_inputs = widths.widths(max(len(x) for x in ids))
        stop = {"stop": default_stop(tokenizer)}
        self.decoder = RowDecoder(
            parse(model, STRATEGIES[strategy], stop, key=jax.random.key(0)),
            batch_size=batch_size,
            refill=self.is_refilled,
        )
        self.decoder.prepare(of_inputs[-1])
        size = self.decoder.together or len(ids)
        self.parts = [range(i, min(i + size, len(ids))) for i in range(0, len(ids), size)]
        self.by_width = [
            widths.by_width([len(ids[i]) for i in part], of_inputs) for part in self.parts
        ]
        if way == "buckets":
            [members] = self.by_width
            self.by_width = [{width: sorted(members[width]) for width in members}]
        self.usage = Usage([])
        self.counted = RowSteps()

    def __call__(self) -> None:
        self.usage = Usage([])
        for part, by_width in zip(self.parts, self.by_width, strict=True):
            for members, output in self.decoder.decode([self.ids[i] for i in part], part, by_width):
                self._count((output.length[: len(members)].max(-1) - 1).tolist())

    def _count(self, steps_of_rows: list[int]) -> None:
        """Counts the steps of a batch, or those up to the next inputs that have ended."""
        if self.is_refilled:
            before, self.counted = self.counted, self.decoder.row_steps
            period = RowSteps(*(a - b for a, b in zip(self.counted, before, strict=True)))
            if period.steps:
                self.usage.periods.append(period)
            return
        for step in range(max(steps_of_rows)):
            in_use = sum(n > step for n in steps_of_rows)
            self.usage.periods.append(RowSteps(1, self.batch_size, in_use))


def theirs(ids: list[list[int]], strategy: str, batch_size: int, name: str) -> Callable[[], object]:
    """The sorted batches by ``transformers``, in float32 on as many threads as there are cores."""
    import torch

    model = transformers_t5(name)
    by_length = sorted(ids, key=len, reverse=True)
    settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS}
    if strategy != "greedy":
        settings |= {"do_sample": True, "top_k": 0, "num_return_sequences": 4}

    def run() -> None:
        with torch.inference_mode():
            for first in range(0, len(ids), batch_size):
                batch = by_length[first : first + batch_size]
                length = np.asarray([len(x) for x in batch])
                mask = np.arange(length.max())[None] < length[:, None]
                tokens = np.zeros(mask.shape, np.int64)
                tokens[mask] = np.concatenate(batch)
                given = torch.from_numpy(tokens), torch.from_numpy(mask.astype(np.int64))
                model.generate(given[0], attention_mask=given[1], **settings)

    return run


def plot(case: dict[str, Any], path: Path) -> None:
    """Rows in use over steps, a panel for each way.

    Args:
      case: the strategy, the batch size, the number of inputs, and as ``usage``, of each period of
        each way, the steps, the steps of rows, and those in which a row was in use.
      path: of the PNG.
    """
    figure, axes = drawing.panels(len(WAYS), 1, 6.2)
    for i, (ax, (way, words)) in enumerate(zip(axes, WAYS.items(), strict=True)):
        steps, taken, used = np.asarray(case["usage"][way]).T
        ends = np.cumsum([0, *steps])
        in_use = [*(used / steps), 0]
        ax.fill_between(ends, in_use, step="post", color=drawing.COLOURS[i], linewidth=0)
        ax.set_title(f"{words}: {1 - used.sum() / taken.sum():.0%} of the rows' steps unused")
        ax.set_ylabel("rows in use")
        ax.set_ylim(0, case["batch_size"])
        ax.sharex(axes[0])
    axes[-1].set_xlabel(f"steps ({case['strategy']}, {case['inputs']:,} inputs)")
    drawing.save(figure, path)


def measure(
    out: Path,
    repeats: int = 3,
    batch_sizes: tuple[int, ...] = (32, 64),
    count: int | None = None,
    times: int = 2,
    strategies: Sequence[str] = tuple(STRATEGIES),
    name: str = MODEL,
) -> None:
    """Times all cases, prints a table, and writes ``batch_job.json``, and each case's rows in use.

    Args:
      out: a folder.
      repeats: how often each run is timed.
      batch_sizes: the numbers of rows.
      count: the number of different sentences; None for all.
      times: how often each sentence is an input.
      strategies: names in ``STRATEGIES``.
      name: of the model.
    """
    out.mkdir(parents=True, exist_ok=True)
    _, tokenizer = decoding_jax.load(name)
    sentences = [s.english for s in held_out.read()]
    random.Random(0).shuffle(sentences)
    ids = [tokenizer.encode(s) for s in sentences[:count]] * times
    beside = all(importlib.util.find_spec(name) for name in ("transformers", "torch"))
    rows = []
    for strategy, batch_size in tqdm([(s, b) for s in strategies for b in batch_sizes]):
        jobs = {w: Job(ids, strategy, batch_size, w, name) for w in WAYS}
        runs: dict[str, Callable[[], object]] = {**jobs}
        if beside:
            runs["transformers"] = theirs(ids, strategy, batch_size, name)
        seconds = interleaved(runs, repeats)
        rows.append(
            {
                "strategy": strategy,
                "batch_size": batch_size,
                "inputs": len(ids),
                "sentences_per_second": {
                    name: len(ids) / statistics.median(values) for name, values in seconds.items()
                },
                "speed_up": median_ratio(seconds, "sorted", "refilled"),
                "steps": {way: job.usage.total.steps for way, job in jobs.items()},
                "waste": {way: job.usage.total.waste for way, job in jobs.items()},
            }
        )
        usage = {way: [[*period] for period in job.usage.periods] for way, job in jobs.items()}
        case = {"strategy": strategy, "batch_size": batch_size, "inputs": len(ids), "usage": usage}
        file = out / f"batch_job_{strategy.replace(' ', '_')}_{batch_size}"
        write_json(file.with_suffix(".json"), case)
        plot(case, file.with_suffix(".png"))
    names = ("buckets", "sorted", "refilled", "transformers")
    print(f"{'strategy':10}  {'rows':>4}  " + "  ".join(f"{n:>12}" for n in names) + "  speed-up")
    for r in rows:
        rates = [r["sentences_per_second"].get(n) for n in names]
        columns = "  ".join("           -" if x is None else f"{x:10.1f}/s" for x in rates)
        print(f"{r['strategy']:10}  {r['batch_size']:4d}  {columns}  {r['speed_up']:8.2f}")
        of_ways = "  ".join(f"{100 * r['waste'][n]:11.1f}%" for n in names[:3])
        print(f"{'  waste':16}  {of_ways}")
    write_json(out / "batch_job.json", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON and plots")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--count", type=int, help="the number of different sentences")
    parser.add_argument("--times", type=int, default=2, help="how often each one is an input")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    args = parser.parse_args()
    sizes = tuple(args.batch_sizes)
    measure(args.out, args.repeats, sizes, args.count, args.times, args.strategies)


if __name__ == "__main__":
    main()
