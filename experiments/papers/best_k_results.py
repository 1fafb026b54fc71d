"""What the measurements of best-k search come to: estimates, tables and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from experiments.papers.results import interval, mean, shown, table

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SETS = ("S", "unique", "none", "distinct-1", "distinct-2", "distinct-3", "seconds")
SCORES = ("last", "mean")


def name_of(k: int, score: str, kappa: float) -> str:
    """The name of a best-k search.

    Example:
      >>> name_of(5, "last", 0.05)
      'best-5 last, kappa 0.05'
    """
    return f"best-{k} {score}, kappa {kappa:g}"


def analyse(measured: Mapping[str, list[dict[str, Any]]], given: dict[str, Any]) -> dict[str, Any]:
    """The estimate of every column for every strategy, as JSON values.

    ``none`` is the share of inputs without a completed text. ``seconds`` are of full batches; all
    inputs of a batch have the same, and its interval resamples batches.
    """
    found = {}
    for name, rows in measured.items():
        columns = {k: [row[k] for row in rows] for k in rows[0] if k != "seconds"}
        columns["none"] = [float(row["S"] == 0) for row in rows]
        timed = [row["seconds"] for row in rows[:: given["batch_size"]]]
        columns["seconds"] = [s for s in timed if s is not None]
        found[name] = {
            column: interval(mean, np.asarray(values, float), seed=given["seed"])
            for column, values in columns.items()
            if values
        }
    return found


def _ablated(data: dict[str, Any]) -> list[str]:
    names = [
        name_of(k, score, kappa) for score in SCORES for k in data["ks"] for kappa in data["kappas"]
    ]
    return [name for name in names if name in data["results"]]


def _main(data: dict[str, Any]) -> list[str]:
    chosen = [name_of(k, score, data["kappa"]) for score in SCORES for k in data["ks"]]
    others = [name for name in data["results"] if name not in _ablated(data)]
    return [*others, *chosen]


def _table(data: dict[str, Any], names: list[str], columns: list[str]) -> str:
    digits = {"S": 1, "unique": 1, "none": 2, "seconds": 3}

    def cell(name: str, column: str) -> str:
        found = data["results"][name].get(column)
        default = 2 if column.startswith("distinct") else 1
        return "" if found is None else shown(found, digits.get(column, default))

    return table(["strategy", *columns], ([n, *(cell(n, c) for c in columns)] for n in names))


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``best_k.md``."""
    first = data["metrics"][0]
    quality = [*data["metrics"], f"{first} oracle"]
    return "".join(
        [
            f"# Best-k search: {data['model']} on {data['task']['name']}\n\n"
            f"{data['task']['inputs']} inputs; {data['beam_size']} beams or samples, a budget of "
            f"{data['budget']} expansions; nucleus {data['nucleus']:g}, typical "
            f"{data['typical']:g}; seed {data['seed']}. Brackets hold 95% intervals, by the "
            "bootstrap over inputs.\n",
            "\n## Completed texts of an input\n\n",
            _table(data, _main(data), list(SETS)),
            "\n## Mean scores of a text, and of the best text of an input\n\n",
            _table(data, _main(data), quality),
            "\n## k, score and kappa\n\n",
            _table(data, _ablated(data), ["S", "unique", "distinct-2", first, f"{first} oracle"]),
        ]
    )


def plot(data: dict[str, Any], path: Path) -> None:
    """Quality over diversity, and the ablation: unique texts and mean quality over kappa."""
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4), layout="constrained")
    first, found = data["metrics"][0], data["results"]
    for i, name in enumerate(_main(data)):
        (x, left, right), (y, low, high) = found[name]["unique"], found[name][first]
        axes[0].errorbar(
            x,
            y,
            xerr=[[x - left], [right - x]],
            yerr=[[y - low], [high - y]],
            fmt="^" if name.startswith("best-") else "o",
            color=plt.get_cmap("tab20")(i),
            elinewidth=0.6,
            label=name,
        )
    axes[0].set_xlabel("different texts of an input")
    axes[0].set_ylabel(f"mean {first} of a text")
    if all(found[name]["unique"][1] > 0 for name in _main(data)):
        axes[0].set_xscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    labels = {"unique": "different texts of an input", first: f"mean {first} of a text"}
    for ax, (column, words) in zip(axes[1:], labels.items(), strict=True):
        for score, style in zip(SCORES, ("-", "--"), strict=True):
            for i, k in enumerate(data["ks"]):
                names = [name_of(k, score, kappa) for kappa in data["kappas"]]
                values = np.asarray([found[name][column] for name in names], float).T
                at = range(len(names))
                error = np.abs(values[1:] - values[0])
                ax.errorbar(
                    at,
                    values[0],
                    error,
                    fmt=f"o{style}",
                    color=f"C{i}",
                    capsize=2,
                    markersize=4,
                    label=f"k = {k}, {score}",
                )
        ax.set_xticks(range(len(data["kappas"])), [f"{kappa:g}" for kappa in data["kappas"]])
        ax.set_xlabel("kappa")
        ax.set_ylabel(words)
    axes[1].legend(fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)
