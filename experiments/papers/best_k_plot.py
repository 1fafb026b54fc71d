"""The panels of the experiment on best-k search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import drawing
from experiments.papers.best_k_results import (
    BESIDE,
    RULES,
    SCORES,
    above,
    failures,
    first_names,
    name_of,
)
from experiments.papers.metrics import NAMES


def plot(data: dict[str, Any], path: Path) -> None:
    """Quality over diversity, differences from beam search, the ablation, and failures."""
    figure, axes = drawing.panels(3, 2, 12.6)
    names = first_names(data["results"], data)
    _quality(axes[0], data, names)
    _differences(axes[1], data, names)
    metric = data["metrics"][0]
    _ablation(axes[2], data, "unique", "different texts of an input")
    _ablation(axes[3], data, metric, f"mean {NAMES[metric]} of a text")
    _failures(axes[4], axes[5], data)
    drawing.save(figure, path)


def _numbered(names: Sequence[str]) -> list[str]:
    return [f"{i + 1}  {_short(name)}" for i, name in enumerate(names)]


def _short(name: str) -> str:
    return name.replace("diverse beam search", "diverse").partition(", kappa")[0]


def _quality(ax: Any, data: dict[str, Any], names: Sequence[str]) -> None:
    metric, found = data["metrics"][0], data["results"]
    kinds = {True: "best-first and best-k", False: "beams and samples"}
    for i, (searches, label) in enumerate(kinds.items()):
        mine = [name for name in names if name.startswith("best-") == searches]
        x, y = ([found[name][column] for name in mine] for column in ("unique", metric))
        style: dict[str, Any] = {"label": label, "elinewidth": 0.7, "capsize": 0}
        style |= {"xerr": drawing.error(x), "marker": "^" if searches else "o"}
        drawing.intervals(ax, [value for value, *_ in x], y, 5 + i, **style)
    for i, name in enumerate(names):
        at = found[name]["unique"][0], found[name][metric][0]
        shift, side = (-5, "right") if i % 2 else (5, "left")
        ax.annotate(f"{i + 1}", at, (shift, 2), textcoords="offset points", fontsize=9, ha=side)
    ax.set_xlabel("different texts of an input")
    ax.set_ylabel(f"mean {NAMES[metric]} of all texts")
    ax.set_title("quality and number of texts\n(numbers: as on the right)")
    ax.legend(fontsize=9, handlelength=1.2, loc="lower right")


def _differences(ax: Any, data: dict[str, Any], names: Sequence[str]) -> None:
    metric, beside, found = data["metrics"][0], BESIDE[0], data["results"]
    columns = {metric: "mean", RULES[0]: "most probable", f"{metric} oracle": "best"}
    drawing.differences(
        ax,
        _numbered(names),
        [
            [None if n == beside else found[n].get(above(column, beside)) for n in names]
            for column in columns
        ],
        list(columns.values()),
    )
    ax.set_xlabel(f"{NAMES[metric]} above {beside}")
    ax.set_title("texts of an input, and its\nmost probable and best text")
    ax.legend(fontsize=9, handlelength=1.2, labelspacing=0.2, loc="lower left")


def _ablation(ax: Any, data: dict[str, Any], column: str, words: str) -> None:
    """Changes of a column over kappa."""
    pairs = [(score, k) for score in SCORES for k in data["ks"]]
    places = drawing.shifts(len(pairs), 0.1)
    for i, ((score, k), shift) in enumerate(zip(pairs, places, strict=True)):
        names = [name_of(k, score, kappa) for kappa in data["kappas"]]
        found = [data["results"][name][f"{column}, change"] for name in names]
        line, label = drawing.LINES[SCORES.index(score)], f"best-{k} {score}"
        x = [at + shift for at in range(len(names))]
        drawing.intervals(ax, x, found, i, line, label=label, markersize=4)
    ax.set_xticks(range(len(data["kappas"])), [f"{kappa:g}" for kappa in data["kappas"]])
    ax.set_xlabel("kappa")
    ax.set_ylabel(f"change from kappa = {data['kappas'][0]:g}")
    ax.set_title(words)
    ax.axhline(0, color=drawing.GREY, linewidth=0.9)
    if column == "unique":
        ax.legend(fontsize=9, loc="upper left")


def _failures(left: Any, right: Any, data: dict[str, Any]) -> None:
    """Shares of inputs without a text over budgets, and their differences."""
    budgets = [*data["budgets"], data["budget"]]
    shares, apart = failures(data)
    places = drawing.shifts(len(shares), 0.1)
    looks = (4, len(data["ks"]) - 1)  # The second is that of the same search in the ablation.
    for i, ((name, found), shift) in enumerate(zip(shares.items(), places, strict=True)):
        x = [at + shift for at in range(len(budgets))]
        drawing.intervals(left, x, found, looks[i], drawing.LINES[i - 1], label=_short(name))
    if apart:
        drawing.intervals(right, range(len(budgets)), apart, looks[1])
    for ax in (left, right):
        ax.set_xticks(range(len(budgets)), [f"{budget}" for budget in budgets])
        ax.set_xlim(-0.4, len(budgets) - 0.6)
        ax.set_xlabel("budget")
    left.set_ylim(0)
    left.set_ylabel("share of inputs")
    left.set_title("inputs without a text")
    left.legend()
    right.axhline(0, color=drawing.GREY, linewidth=0.9)
    first, *others = map(_short, shares)
    right.set_ylabel("difference of the shares")
    right.set_title(f"{' and '.join(others)} above\n{first}, of the same inputs")
