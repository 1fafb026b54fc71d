"""The sampling step alone, beside a softmax, an argmax and ``jax.random.categorical``.

One step on random logits ``[rows, V]``, each row a lane: this library's draw (fresh bits and their
inversion), its arithmetic step (a code carried and inverted), and three yardsticks. All in one
process, interleaved; the figures are medians, and medians of the ratios of neighbouring runs.

    python -m experiments.benchmarks.sampling_step --out runs/benchmarks
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from decoding_jax import codes
from decoding_jax.ops import random
from experiments import drawing
from experiments.benchmarks.timing import interleaved, median_ratio
from experiments.results import write_json

VOCABULARIES = (32_128, 256_000)
ROWS = (8, 64)
NAMES = ("sample", "arithmetic", "categorical", "softmax", "argmax")


def steps(rows: int, vocab_size: int) -> dict[str, Callable[[], object]]:
    """The contestants, compiled, on the same logits."""
    logits = 2 * jax.random.normal(jax.random.key(0), (rows, 1, vocab_size))
    keys = random.lane_keys(random.row_keys(jax.random.key(1), rows), 1)
    # Eight samples a row share a prefix at first, so codes are carried, not fresh.
    spread = 8
    lanes = logits.reshape(rows // spread, spread, vocab_size)
    code = codes.start("lattice", random.row_keys(jax.random.key(2), rows // spread), spread)
    functions: dict[str, Callable[[], object]] = {}

    def add(name: str, function: Callable, *args: object) -> None:
        compiled = jax.jit(function)
        functions[name] = lambda: jax.block_until_ready(compiled(*args))

    position = jnp.int32(3)
    add("sample", lambda x, k, t: codes.draw(x, random.bits_at(k, t)), logits, keys, position)
    add("arithmetic", lambda x, c, t: codes.choose(c, x, t), lanes, code, position)
    add("categorical", lambda x, k: jax.random.categorical(k, x), logits, jax.random.key(3))
    add("softmax", lambda x: jax.nn.softmax(x), logits)
    add("argmax", lambda x: jnp.argmax(x, -1), logits)
    return functions


def plot(table: list[dict], path: Path) -> None:
    """Times over that of a softmax, on a logarithmic axis."""
    figure, (ax,) = drawing.panels(height=4.4)
    for i, name in enumerate(NAMES):
        ratios = [r[f"{name}/softmax"] for r in table]
        at = np.arange(len(table)) + drawing.shifts(len(NAMES), 0.16)[i]
        ax.plot(at, ratios, linestyle="none", label=name, **drawing.look(name))
        for place in zip(at, ratios, strict=True):
            given = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
            ax.annotate(f"{place[1]:.1f}", place, (0, 6), **given)
    ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    ax.set_yscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylim(0.4, 28)
    sizes = [f"V = {r['vocab_size']:,}\n{r['rows']} rows" for r in table]
    ax.set_xticks(range(len(table)), sizes)
    ax.set_xlim(-0.5, len(table) - 0.5)
    ax.set_ylabel("time of a step / one softmax")
    figure.legend(loc="outside upper center", ncols=3, handlelength=1.2, columnspacing=1.2)
    drawing.save(figure, path)


def measure(
    out: Path,
    repeats: int = 25,
    vocabularies: Sequence[int] = VOCABULARIES,
    row_counts: Sequence[int] = ROWS,
) -> None:
    """Times all sizes, prints a table, and writes ``sampling_step.json`` and ``.png``."""
    out.mkdir(parents=True, exist_ok=True)

    table = []
    for vocab_size, rows in tqdm([(v, r) for v in vocabularies for r in row_counts]):
        seconds = interleaved(steps(rows, vocab_size), repeats)
        row: dict = {"vocab_size": vocab_size, "rows": rows}
        for name in NAMES:
            row[f"{name}_ms"] = statistics.median(seconds[name]) * 1e3
            row[f"{name}/softmax"] = median_ratio(seconds, name, "softmax")
        for name in ("sample", "arithmetic"):
            row[f"categorical/{name}"] = median_ratio(seconds, "categorical", name)
        table.append(row)
    print("                  ms of a step, and over one softmax")
    print("      V  rows" + "".join(f"{name:>19}" for name in NAMES))
    for r in table:
        cells = (f"{r[f'{n}_ms']:11.2f} ({r[f'{n}/softmax']:4.1f}x)" for n in NAMES)
        print(f"{r['vocab_size']:7d}  {r['rows']:4d}" + "".join(cells))
    for r in table:
        print(
            f"V = {r['vocab_size']:,}, {r['rows']} rows: categorical takes"
            f" {r['categorical/sample']:.1f} times a sample,"
            f" {r['categorical/arithmetic']:.1f} times an arithmetic step"
        )
    write_json(out / "sampling_step.json", table)
    plot(table, out / "sampling_step.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON and the plot")
    parser.add_argument("--repeats", type=int, default=25, help="runs of each contestant")
    args = parser.parse_args()
    measure(args.out, args.repeats)


if __name__ == "__main__":
    main()
