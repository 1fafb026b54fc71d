"""What the measurements of best-k search come to: names and estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers.results import difference, interval, mean

SCORES = ("last", "mean")
NOT_AVERAGED = ("texts", "seconds", "calls")
RULES = ("by log-probability", "by mean log-probability", "by minimum Bayes risk")
BESIDE = ("beam search", "best-first")
"""The strategies that all others of the first tables are set beside, input by input."""


def name_of(k: int, score: str, kappa: float) -> str:
    """The name of a best-k search.

    Example:
      >>> name_of(5, "last", 0.05)
      'best-5 last, kappa 0.05'
    """
    return f"best-{k} {score}, kappa {kappa:g}"


def with_budget(name: str, budget: int) -> str:
    """The name of a search in another budget than that of the first tables.

    Example:
      >>> with_budget("best-first", 24)
      'best-first, budget 24'
    """
    return f"{name}, budget {budget}"


def ablated_names(data: Mapping[str, Any]) -> list[str]:
    """The names of the best-k searches of the ablation."""
    return [
        name_of(k, score, kappa) for score in SCORES for k in data["ks"] for kappa in data["kappas"]
    ]


def first_names(names: Iterable[str], data: Mapping[str, Any]) -> list[str]:
    """The names of the first tables, among those of the budget that they share."""
    chosen = [name_of(k, score, data["kappa"]) for score in SCORES for k in data["ks"]]
    ablated = set(ablated_names(data))
    others = [name for name in names if name not in ablated and ", budget " not in name]
    return [*others, *chosen]


def compared_columns(first: str) -> tuple[str, ...]:
    """What is compared input by input.

    Args:
      first: the metric of the plots.
    """
    return "unique", first, f"{first} oracle", *RULES


def above(column: str, name: str) -> str:
    """The name of the difference of a column from that of another strategy.

    Example:
      >>> above("bleu", "beam search")
      'bleu, above beam search'
    """
    return f"{column}, above {name}"


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The sum of one column over that of another, for ``interval``."""
    return above.sum(-1) / below.sum(-1)


def analyse(
    measured: Mapping[str, list[dict[str, Any]]],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """The estimates of all columns, as JSON values.

    Args:
      measured: the figures of the inputs, for each strategy.
      given: the settings.

    Returns:
      ``results``, by strategy and column: ``none`` is the share of inputs without a completed text,
      each rule of reranking also has what it gains above a text's mean score, each strategy how it
      differs from those of ``BESIDE`` in the same budget, and each search of the ablation how it
      differs from that with the first kappa. ``times``:
      ``seconds`` of an input, ``calls`` of the model, and the ratios
      ``over beam search`` and ``best-first over it``. Inputs of a full batch have the same seconds,
      so the intervals of times in batches resample batches.
    """
    seed, first = given["seed"], given["metrics"][0]
    found: dict[str, Any] = {}
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, rows in measured.items():
        values = {
            column: np.asarray([row[column] for row in rows], float)
            for column in rows[0]
            if column not in NOT_AVERAGED
        }
        values["none"] = np.asarray([row["S"] == 0 for row in rows], float)
        for rule in RULES:
            if rule in values:
                values[f"{rule}, above the mean"] = values[rule] - values[first]
        arrays[name] = values
        found[name] = {column: interval(mean, x, seed=seed) for column, x in values.items()}
    for name, ours in arrays.items():
        _, _, budget = name.partition(", budget ")
        columns = (*compared_columns(first), "none") if RULES[0] in ours else ("none",)
        for beside in BESIDE:
            theirs = arrays.get(with_budget(beside, int(budget)) if budget else beside, {})
            for column in (c for c in columns if c in theirs):
                both = [ours[column]], [theirs[column]]
                found[name][above(column, beside)] = difference(mean, *both, seed=seed)
    for score in SCORES:
        for k in given["ks"]:
            names = [name_of(k, score, kappa) for kappa in given["kappas"]]
            for column in ("unique", first):
                base = [arrays[names[0]][column]]
                for name in names:
                    change = difference(mean, [arrays[name][column]], base, seed=seed)
                    found[name][f"{column}, change"] = change
    full = {
        name: [row for row in rows[:: given["batch_size"]] if row["seconds"] is not None]
        for name, rows in measured.items()
        if ", budget " not in name
    }
    return {"results": found, "times": _times(full, seed)}


def _times(timed: Mapping[str, list[dict[str, Any]]], seed: int) -> dict[str, Any]:
    columns = {
        name: np.asarray([row["seconds"] for row in rows], float)
        for name, rows in timed.items()
        if rows
    }
    found = {}
    for name, seconds in columns.items():
        value: dict[str, Any] = {"seconds": interval(mean, seconds, seed=seed)}
        calls = [row["calls"] for row in timed[name]]
        if None not in calls:
            value["calls"] = interval(mean, np.asarray(calls, float), seed=seed)
        if "beam search" in columns:
            value["over beam search"] = interval(ratio, seconds, columns["beam search"], seed=seed)
        if "best-first" in columns:
            value["best-first over it"] = interval(ratio, columns["best-first"], seconds, seed=seed)
        found[name] = value
    return found


def failures(
    data: Mapping[str, Any],
) -> tuple[dict[str, list[Sequence[float]]], list[Sequence[float]]]:
    """The shares of inputs without a text, in the small budgets and the usual one.

    Args:
      data: what ``best_k.json`` contains.

    Returns:
      The shares of best-first search and of best-k search, as far as they were run, and the
      differences of the second from the first, of the same inputs.
    """
    found = data["results"]
    searches = ["best-first", name_of(max(data["ks"]), "last", data["kappa"])]
    names = {
        name: [*(with_budget(name, small) for small in data["budgets"]), name]
        for name in searches
        if name in found
    }
    shares = {name: [found[at]["none"] for at in places] for name, places in names.items()}
    if len(names) < 2:
        return shares, []
    key = above("none", searches[0])
    return shares, [found[at][key] for at in names[searches[1]]]
