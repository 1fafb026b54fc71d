"""What the measurements of best-k search come to: names and estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers.results import difference, interval, mean

SCORES = ("last", "mean")
NOT_AVERAGED = ("texts", "seconds", "calls")
RULES = ("by log-probability", "by mean log-probability", "by minimum Bayes risk")


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


def columns_of(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The figures of the inputs by column; ``none`` is 1 for an input without a text."""
    found = {
        column: np.asarray([row[column] for row in rows], float)
        for column in rows[0]
        if column not in NOT_AVERAGED
    }
    return {**found, "none": (found["S"] == 0).astype(float)}


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
      each rule of reranking also has what it gains above a text's mean score, and each search of
      the ablation how it differs from that with the first kappa. ``times``:
      ``seconds`` of an input, ``calls`` of the model, and the ratios
      ``over beam search`` and ``best-first over it``. Inputs of a full batch have the same seconds,
      so the intervals of times in batches resample batches.
    """
    seed, first = given["seed"], given["metrics"][0]
    found: dict[str, Any] = {}
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, rows in measured.items():
        arrays[name] = values = columns_of(rows)
        for rule in RULES:
            if rule in values:
                values[f"{rule}, above the mean"] = values[rule] - values[first]
        found[name] = {column: interval(mean, x, seed=seed) for column, x in values.items()}
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


def searches_of_budgets(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of best-first and best-k search in the small budgets and the usual one.

    Args:
      data: has the settings, and ``results`` by strategy.
    """
    searches = ["best-first", name_of(max(data["ks"]), "last", data["kappa"])]
    return {
        name: [*(with_budget(name, small) for small in data["budgets"]), name]
        for name in searches
        if name in data["results"]
    }


def failures(data: Mapping[str, Any]) -> dict[str, list[Sequence[float]]]:
    """The shares of inputs without a text of each search over budgets."""
    return {
        name: [data["results"][at]["none"] for at in places]
        for name, places in searches_of_budgets(data).items()
    }
