"""How strategies differ from beam search and best-first search, input by input.

``papers.best_k`` writes ``best_k_differences.json``, ``.md`` and ``.png`` beside its other results.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import drawing
from experiments.papers.best_k_results import (
    RULES,
    columns_of,
    first_names,
    searches_of_budgets,
)
from experiments.papers.metrics import NAMES
from experiments.papers.results import difference, mean, signed, table

BESIDE = ("beam search", "best-first")
"""The strategies that all others of the first tables are set beside."""


def analyse(
    measured: Mapping[str, list[dict[str, Any]]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """All differences, as JSON values.

    Args:
      measured: the figures of the inputs, for each strategy.
      given: the settings.

    Returns:
      ``above``: for each of ``BESIDE``, by strategy and column; ``failures``: of each budget, the
      share of inputs without a text of best-k search above that of best-first search, the names of
      which are ``searches``.
    """
    seed, first = given["seed"], given["metrics"][0]
    arrays = {name: columns_of(rows) for name, rows in measured.items()}
    columns = ("unique", first, f"{first} oracle", *RULES)
    names = first_names(arrays, given)

    def apart(ours: str, theirs: str, column: str) -> Any:
        return difference(mean, [arrays[ours][column]], [arrays[theirs][column]], seed=seed)

    above = {
        beside: {
            name: {column: apart(name, beside, column) for column in columns}
            for name in names
            if name != beside
        }
        for beside in BESIDE
        if beside in names
    }
    places = searches_of_budgets({**given, "results": arrays})
    pairs = zip(*places.values(), strict=True) if len(places) == 2 else ()
    return {
        "above": above,
        "failures": [apart(ours, base, "none") for base, ours in pairs],
        "searches": list(places),
    }


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``best_k_differences.md``."""
    parts = [
        f"# Best-k search, differences: {data['model']} on {data['task']['name']}\n\n"
        f"{data['task']['inputs']} inputs, at most {data['max_new_tokens']} tokens, in batches of "
        f"{data['batch_size']}; {data['beam_size']} beams or samples, a budget of "
        f"{data['budget']} expansions; seed {data['seed']}. Brackets hold 95% intervals, by the "
        "paired bootstrap over inputs. A difference is bold where its interval excludes 0.\n"
    ]
    for beside, found in data["above"].items():
        columns = list(next(iter(found.values())))
        rows = [[name, *(signed(row[c], 1) for c in columns)] for name, row in found.items()]
        parts.append(f"\n## Above {beside}, of the same inputs\n\n")
        parts.append(table(["strategy", *columns], rows))
    if data["failures"]:
        base, ours = data["searches"]
        parts.append(f"\n## Inputs without a text: the share of {ours} above {base}\n\n")
        cells = [signed(value, 2) for value in data["failures"]]
        parts.append(table(["budget", *map(str, _budgets(data))], [["difference", *cells]]))
    return "".join(parts)


def _budgets(data: Mapping[str, Any]) -> list[int]:
    return [*data["budgets"], data["budget"]]


def plot(data: dict[str, Any], path: Path) -> None:
    """Quality and number of texts above beam search, and failures above best-first search."""
    figure, axes = drawing.panels(2, 2, 9.4)
    metric, beside = data["metrics"][0], BESIDE[0]
    found = data["above"].get(beside, {})
    groups = (
        ({metric: "mean", f"{metric} oracle": "best"}, f"{NAMES[metric]} of the texts"),
        (
            dict(zip(RULES, ("probability", "its mean", "Bayes risk"), strict=True)),
            "the chosen text",
        ),
        ({"unique": "different texts"}, "different texts"),
    )
    words = [f"{NAMES[metric]} above {beside}"] * 2 + [f"number above {beside}"]
    for at, (ax, (columns, title)) in enumerate(zip(axes, groups, strict=False)):
        names = [_short(name) for name in found] if at % 2 == 0 else [""] * len(found)
        series = [[row[column] for row in found.values()] for column in columns]
        drawing.differences(ax, names, series, list(columns.values()))
        ax.set_title(title)
        ax.set_xlabel(words[at])
        if len(columns) > 1:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.11), "ncols": len(columns)}
            ax.legend(**below, fontsize=9, handlelength=1, columnspacing=0.8, handletextpad=0.3)
    if data["failures"]:
        drawing.intervals(axes[3], range(len(data["failures"])), data["failures"], 0)
        axes[3].set_xlim(-0.5, len(data["failures"]) - 0.5)
        axes[3].set_xticks(range(len(data["failures"])), [str(n) for n in _budgets(data)])
    axes[3].axhline(0, color=drawing.GREY, linewidth=0.9)
    axes[3].set_xlabel("budget")
    axes[3].set_ylabel("share, best-k above best-first")
    axes[3].set_title("inputs without a text")
    drawing.save(figure, path)


def _short(name: str) -> str:
    return name.replace("diverse beam search", "diverse").partition(", kappa")[0]
