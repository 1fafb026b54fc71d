"""Two drafts of one target, compared input by input after two runs of ``papers.speculative``.

    python -m experiments.papers.two_drafts runs/papers/speculative_code \
        runs/papers/speculative_code_deep --out runs/papers/two_drafts

It writes ``two_drafts.md`` and ``two_drafts.json`` into that folder.
The runs must have the same settings but for the draft and ``REPEATS``. Differences are of the same
inputs, and their intervals are by the bootstrap over inputs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.papers.results import Estimate, difference, interval, shown, table
from experiments.papers.speculative_results import (
    acceptance,
    label,
    quotient,
    quotient_of_quotients,
)
from experiments.results import write_json


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


FIGURES = ("acceptance", "tokens of a loop", "speed-up")


def compare(runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Each figure of both drafts and its difference, over settings and K, as JSON values.

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
    rows = []
    for pair in one["settings"]:
        measured = [
            [values[f"{label(pair)}, input {i}"] for i in range(one["task"]["inputs"])]
            for _, values in runs
        ]
        rows += [
            {"setting": label(pair), "K": size, **_figures(measured, size, one["seed"])}
            for size in one["sizes"]
        ]
    drafts = [settings["draft"] for settings, _ in runs]
    return {"experiment": "two drafts of one target", **one, "draft": drafts, "rows": rows}


def markdown(data: dict[str, Any]) -> str:
    """The table of what ``compare`` returns."""
    names = data["draft"]
    header = ["setting", "K"]
    for what in FIGURES:
        header += [*(f"{what}, {name}" for name in names), "difference"]
    rows = [
        [row["setting"], row["K"], *(shown(x, 2) for what in FIGURES for x in row[what])]
        for row in data["rows"]
    ]
    return (
        f"# Two drafts of {data['model']}: {names[0]} and {names[1]}\n\n"
        f"{data['task']['inputs']} inputs of the task {data['task']['name']}, at most"
        f" {data['max_new_tokens']} tokens. Differences are of the first draft above the second,"
        " for the same inputs. Brackets hold 95% intervals, by the bootstrap over inputs.\n\n"
        + table(header, rows)
    )


def _figures(
    measured: Sequence[Sequence[dict[str, Any]]], size: int, seed: int
) -> dict[str, list[Estimate]]:
    """Each figure of both drafts, and the difference of the first above the second."""

    def column(run: int, way: str, name: str) -> np.ndarray:
        return np.asarray([row[way][name] for row in measured[run]], float)

    k = str(size)
    figures: tuple[tuple[Callable[..., np.ndarray], list[tuple[str, str]]], ...] = (
        (acceptance, [(k, "accepted"), (k, "rejected")]),
        (quotient, [(k, "emitted"), (k, "blocks")]),
        (
            quotient_of_quotients,
            [(way, name) for way in ("target", k) for name in ("seconds", "tokens")],
        ),
    )
    found = {}
    for what, (statistic, names) in zip(FIGURES, figures, strict=True):
        both = [[column(run, *name) for name in names] for run in (0, 1)]
        estimates = [interval(statistic, *columns, seed=seed) for columns in both]
        found[what] = [*estimates, difference(statistic, both[0], both[1], seed=seed)]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs=2, help="folders of two runs")
    parser.add_argument("--out", type=Path, help="a folder for the table, which is also printed")
    args = parser.parse_args(argv)
    try:
        data = compare([read(folder) for folder in args.runs])
    except ValueError as e:
        parser.error(str(e))
    text = markdown(data)
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / "two_drafts.json", data)
        (args.out / "two_drafts.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
