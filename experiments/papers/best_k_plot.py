"""The panels of the experiment on best-k search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from experiments import drawing
from experiments.papers.best_k_results import SCORES, failures, first_names, name_of
from experiments.papers.metrics import NAMES


def plot(data: dict[str, Any], path: Path) -> None:
    """Quality over the number of texts, the ablation, and failures over budgets."""
    figure, axes = drawing.panels(2, 2, 8.6)
    names = first_names(data["results"], data)
    _quality(axes[0], data, names)
    metric = data["metrics"][0]
    _ablation(axes[2], data, "unique", "different texts of an input")
    _ablation(axes[3], data, metric, f"mean {NAMES[metric]} of a text")
    _failures(axes[1], data)
    numbered = [f"{i + 1}  {_short(name)}" for i, name in enumerate(names)]
    handles = [Line2D([], [], linestyle="none", label=words) for words in numbered]
    style = {"fontsize": 9, "handlelength": 0, "title": "numbers", "title_fontsize": 9}
    figure.legend(handles=handles, loc="outside lower center", ncols=3, **style)
    drawing.save(figure, path)


def _short(name: str) -> str:
    return name.replace("diverse beam search", "diverse").partition(", kappa")[0]


def _quality(ax: Any, data: dict[str, Any], names: Sequence[str]) -> None:
    metric, found = data["metrics"][0], data["results"]
    kinds = {True: "best-first and best-k", False: "beams and samples"}
    for searches, label in kinds.items():
        mine = [name for name in names if name.startswith("best-") == searches]
        x, y = ([found[name][column] for name in mine] for column in ("unique", metric))
        style: dict[str, Any] = {"label": label, "elinewidth": 0.7, "capsize": 0}
        style |= {"xerr": drawing.error(x), "marker": "^" if searches else "o"}
        look = "best-k search" if searches else "beam search"
        drawing.intervals(ax, [value for value, *_ in x], y, look, **style)
    drawing.numbers(ax, [(found[n]["unique"][0], found[n][metric][0]) for n in names])
    ax.set_xlabel("different texts of an input")
    ax.set_ylabel(f"mean {NAMES[metric]} of all texts")
    ax.set_title("quality and number of texts\n(numbers: see below)")
    ax.legend(fontsize=9, handlelength=1.2, loc="lower right")


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


def _failures(ax: Any, data: dict[str, Any]) -> None:
    """Shares of inputs without a text over budgets."""
    budgets = [*data["budgets"], data["budget"]]
    shares = failures(data)
    places = drawing.shifts(len(shares), 0.1)
    looks = (4, len(data["ks"]) - 1)  # The second is that of the same search in the ablation.
    for i, ((name, found), shift) in enumerate(zip(shares.items(), places, strict=True)):
        x = [at + shift for at in range(len(budgets))]
        drawing.intervals(ax, x, found, looks[i], drawing.LINES[1 - i], label=_short(name))
    ax.set_xticks(range(len(budgets)), [f"{budget}" for budget in budgets])
    ax.set_xlim(-0.4, len(budgets) - 0.6)
    ax.set_xlabel("budget")
    ax.set_ylim(0)
    ax.set_ylabel("share of inputs")
    ax.set_title("inputs without a text")
    ax.legend()
