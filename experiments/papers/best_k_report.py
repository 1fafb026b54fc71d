"""The tables of the experiment on best-k search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.papers.best_k_plot import plot
from experiments.papers.best_k_results import (
    RULES,
    ablated_names,
    failures,
    first_names,
)
from experiments.papers.results import shown, table

__all__ = ["markdown", "plot"]

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
        _table(data, main, [first, *RULES, f"{first} oracle", f"{RULES[0]}, above the mean"]),
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
        header = ["strategy", *map(str, [*data["budgets"], data["budget"]])]
        rows = [
            [name, *(shown(value, 2) for value in values)]
            for name, values in failures(data).items()
        ]
        parts += ["\n## The share of inputs without a text, over budgets\n\n", table(header, rows)]
    return "".join(parts)


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
