"""The tables and panels of the experiment on best-k search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from experiments.papers.best_k_results import (
    RULES,
    SCORES,
    ablated_names,
    first_names,
    name_of,
    with_budget,
)
from experiments.papers.results import shown, table

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SETS = ("S", "unique", "none", "distinct-1", "distinct-2", "distinct-3")
DIGITS = {"distinct-1": 2, "distinct-2": 2, "distinct-3": 2, "none": 2}


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``best_k.md``."""
    first, metrics = data["metrics"][0], data["metrics"]
    main = first_names(data["results"], data)
    used = data["versions"]["cpus_used"] or data["versions"]["cpus"]
    parts = [
        f"# Best-k search: {data['model']} on {data['task']['name']}\n\n"
        f"{data['task']['inputs']} inputs, at most {data['max_new_tokens']} tokens; "
        f"{data['beam_size']} beams or samples, a budget of "
        f"{data['budget']} expansions; diversity penalty {data['diversity_penalty']:g}, nucleus "
        f"{data['nucleus']:g}, typical {data['typical']:g}; seed {data['seed']}; "
        f"{used} of {data['versions']['cpus']} processors ({data['versions']['device']}). Brackets "
        "hold 95% intervals, by the bootstrap over inputs; those of times, over "
        "batches.\n",
        "\n## Completed texts of an input\n\n",
        'S counts the texts, "unique" the different ones, and "none" is the share of inputs '
        "without any.\n\n",
        _table(data, main, SETS),
        "\n## Mean scores of a text\n\n",
        _table(data, main, metrics),
        "\n## Scores of the best text of an input\n\n",
        _table(data, main, [f"{metric} oracle" for metric in metrics]),
        f"\n## Reranking: the {first} of the text that a rule chooses\n\n",
        _table(data, main, [first, *RULES, f"{first} oracle"]),
        *_naturalness(data),
        "\n## Time\n\n",
        f"Seconds of an input, in batches of {data['batch_size']}, all decoded in turn in one "
        "process. Calls are those of the model, for the searches that count them.\n\n",
        _times(data, main),
        "\n## k, score and kappa\n\n",
        f"Changes are from kappa = {data['kappas'][0]:g} with the same k and score.\n\n",
        _table(
            data,
            ablated_names(data),
            [
                *("S", "unique", "unique, change", "distinct-2"),
                *(first, f"{first}, change", f"{first} oracle"),
            ],
        ),
    ]
    if data["budgets"]:
        parts += [
            "\n## The share of inputs without a text, over budgets\n\n",
            table(
                ["strategy", *map(str, [*data["budgets"], data["budget"]])],
                (
                    [name, *(shown(value, 2) for value in values)]
                    for name, values in failures(data).items()
                ),
            ),
        ]
    return "".join(parts)


def failures(data: dict[str, Any]) -> dict[str, list[Sequence[float]]]:
    """The share of inputs without a text of each search, in the small budgets and the usual one."""
    searches = ["best-first", name_of(max(data["ks"]), "last", data["kappa"])]
    found = data["results"]
    return {
        name: [
            found[at]["none"]
            for at in (*(with_budget(name, small) for small in data["budgets"]), name)
        ]
        for name in searches
        if name in found
    }


def _table(data: dict[str, Any], names: Sequence[str], columns: Sequence[str]) -> str:
    def cell(name: str, column: str) -> str:
        return shown(data["results"][name][column], DIGITS.get(column, 1))

    return table(["strategy", *columns], ([n, *(cell(n, c) for c in columns)] for n in names))


def _naturalness(data: dict[str, Any]) -> list[str]:
    found = data.get("naturalness")
    if found is None:
        return []
    return [
        "\n## MAUVE\n\n",
        f"The features are the hidden states of {data['model']}, averaged over a text, and the "
        "values cannot be compared with those by GPT-2. All texts of a strategy, at most "
        f"{data['beam_size']} of an input, are beside all {found['references']} references, in "
        f"{found['buckets']} clusters, which each resample of the bootstrap makes anew.\n\n",
        table(
            ["texts", "number", "MAUVE"],
            (
                [name, found["texts"][name], "no text" if value is None else shown(value, 2)]
                for name, value in found["values"].items()
            ),
        ),
    ]


def _times(data: dict[str, Any], names: Sequence[str]) -> str:
    times = data["times"]
    columns = {"seconds": 3, "over beam search": 2, "best-first over it": 2, "calls": 0}
    rows = [
        [
            name,
            *(
                shown(times[name][c], digits) if c in times[name] else ""
                for c, digits in columns.items()
            ),
        ]
        for name in names
        if name in times
    ]
    return table(["strategy", *columns], rows)


def plot(data: dict[str, Any], path: Path) -> None:
    """Quality over diversity, the ablation, and failures over budgets."""
    figure, axes = plt.subplots(1, 4, figsize=(17, 4.6), layout="constrained")
    first, found = data["metrics"][0], data["results"]
    main = first_names(found, data)
    for i, name in enumerate(main):
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
    if all(found[name]["unique"][1] > 0 for name in main):
        axes[0].set_xscale("log")
        low, high = axes[0].get_xlim()
        axes[0].set_xticks([], minor=True)
        ticks = [x for x in (1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= x <= high]
        axes[0].set_xticks(ticks, [f"{x}" for x in ticks])
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    base = f"change from kappa = {data['kappas'][0]:g}"
    labels = {
        "unique, change": f"different texts of an input: {base}",
        f"{first}, change": f"mean {first} of a text: {base}",
    }
    for ax, (column, words) in zip(axes[1:3], labels.items(), strict=True):
        for j, score in enumerate(SCORES):
            for i, k in enumerate(data["ks"]):
                names = [name_of(k, score, kappa) for kappa in data["kappas"]]
                values = np.asarray([found[name][column] for name in names], float).T
                ax.errorbar(
                    np.arange(len(names)) + 0.08 * (i + len(data["ks"]) * j - 1),
                    values[0],
                    np.abs(values[1:] - values[0]),
                    fmt=("o-", "o--")[j],
                    color=f"C{i}",
                    capsize=2,
                    markersize=4,
                    label=f"k = {k}, {score}",
                )
        ax.set_xticks(range(len(data["kappas"])), [f"{kappa:g}" for kappa in data["kappas"]])
        ax.set_xlabel("kappa")
        ax.set_ylabel(words, fontsize=9)
        ax.axhline(0, color="0.5", linewidth=0.8)
    axes[1].legend(fontsize=8)
    budgets = [*data["budgets"], data["budget"]]
    for i, (name, shares) in enumerate(failures(data).items()):
        value = np.asarray(shares, float).T
        axes[3].errorbar(
            np.arange(len(budgets)) + 0.08 * (i - 1),
            value[0],
            np.abs(value[1:] - value[0]),
            fmt="o-",
            color=f"C{i + 2}",
            capsize=2,
            markersize=4,
            label=name,
        )
    axes[3].set_xticks(range(len(budgets)), [f"{budget}" for budget in budgets])
    axes[3].set_xlabel("budget")
    axes[3].set_ylabel("share of inputs without a text")
    axes[3].set_ylim(0)
    axes[3].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
