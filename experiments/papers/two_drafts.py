"""Two drafts of one target, compared input by input after two runs of ``papers.speculative``.

    python -m experiments.papers.two_drafts runs/papers/speculative_code \
        runs/papers/speculative_code_deep --out runs/papers/two_drafts.md

The runs must have the same settings but for the draft and ``REPEATS``. Differences are of the same
inputs, and their intervals are by the bootstrap over inputs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.papers.results import difference, interval, shown, table
from experiments.papers.speculative_results import (
    acceptance,
    label,
    quotient,
    quotient_of_quotients,
)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the values by name of a finished run.

    Raises:
      ValueError: if the folder has no records, or not those of all inputs.
    """
    file = folder / "records.jsonl"
    if not file.is_file():
        raise ValueError(f"runs: expected folders of papers.speculative, got {str(folder)!r}")
    first, *lines = map(json.loads, file.read_text("utf-8").splitlines())
    settings, values = first["settings"], {line["name"]: line["value"] for line in lines}
    for pair in settings.get("settings", ()):
        for i in range(settings["task"]["inputs"]):
            if f"{label(pair)}, input {i}" not in values:
                raise ValueError(f"runs: got {str(folder)!r}, which is not finished")
    return settings, values


def markdown(runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """The table of two runs.

    Args:
      runs: what ``read`` returns for each.

    Raises:
      ValueError: if other settings than the draft and the repeats differ.
    """
    one, two = (settings for settings, _ in runs)
    free = ("draft", "repeats")
    different = [name for name in one if name not in free and one[name] != two.get(name)]
    if different:
        raise ValueError(
            f"runs: expected equal ones, got different settings ({', '.join(different)})"
        )
    names = [settings["draft"] for settings, _ in runs]
    rows = []
    for pair in one["settings"]:
        measured = [
            [values[f"{label(pair)}, input {i}"] for i in range(one["task"]["inputs"])]
            for _, values in runs
        ]
        rows += [[label(pair), *_row(measured, size, one["seed"])] for size in one["sizes"]]
    header = ["setting", "K"]
    for what in ("acceptance", "tokens of a loop", "speed-up"):
        header += [*(f"{what}, {name}" for name in names), "difference"]
    return (
        f"# Two drafts of {one['model']}: {names[0]} and {names[1]}\n\n"
        f"{one['task']['inputs']} inputs of the task {one['task']['name']}, at most"
        f" {one['max_new_tokens']} tokens. Differences are of the first draft above the second, for"
        " the same inputs. Brackets hold 95% intervals, by the bootstrap over inputs.\n\n"
        + table(header, rows)
    )


def _row(measured: Sequence[Sequence[dict[str, Any]]], size: int, seed: int) -> list[Any]:
    """K, then each figure of both drafts and its difference."""

    def column(run: int, way: str, name: str) -> np.ndarray:
        return np.asarray([row[way][name] for row in measured[run]], float)

    figures = (
        (acceptance, [(str(size), "accepted"), (str(size), "rejected")]),
        (quotient, [(str(size), "emitted"), (str(size), "blocks")]),
        (
            quotient_of_quotients,
            [(way, name) for way in ("target", str(size)) for name in ("seconds", "tokens")],
        ),
    )
    found: list[Any] = [size]
    for statistic, names in figures:
        both = [[column(run, *name) for name in names] for run in (0, 1)]
        estimates = [interval(statistic, *columns, seed=seed) for columns in both]
        estimates.append(difference(statistic, both[0], both[1], seed=seed))
        found += [shown(estimate, 2) for estimate in estimates]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs=2, help="folders of two runs")
    parser.add_argument("--out", type=Path, help="a file for the table, which is also printed")
    args = parser.parse_args(argv)
    try:
        text = markdown([read(folder) for folder in args.runs])
    except ValueError as e:
        parser.error(str(e))
    print(text)
    if args.out:
        args.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
