"""What the experiment on fewer samples shows: its figures, tables and plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import drawing
from experiments.papers.fewer_samples_truth import pass_of_independent
from experiments.papers.results import Estimate, shown, table

KINDS = {"first": "first token", "last": "last token", "whole": "whole text"}
CRITERIA = {"exact": "equals a reference", "chrf": "chrF"}
RESAMPLES = 2000


def as_many(curve: np.ndarray, counts: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The number of independent samples with that value, between counts by a line over log count.

    Args:
      curve: float64 ``[..., K]``, the value with each count; what falls is levelled.
      counts: float64 ``[K]``, rising.
      value: float64 ``[...]``.

    Returns:
      float64 ``[...]``: inf above the curve, and the first count below it.

    Example:
      >>> as_many(np.array([[0.2, 0.4], [0.2, 0.4]]), np.array([1.0, 4]), np.array([0.3, 0.5]))
      array([ 2., inf])
    """
    curve = np.maximum.accumulate(curve, -1)
    place = np.clip((curve < value[..., None]).sum(-1), 1, len(counts) - 1)
    low, high = (np.take_along_axis(curve, (place - i)[..., None], -1)[..., 0] for i in (1, 0))
    part = np.clip((value - low) / np.where(high > low, high - low, 1), 0, 1)
    logs = np.log(counts)
    found = np.exp(logs[place - 1] + part * (logs[place] - logs[place - 1]))
    return np.where(value > curve[..., -1], np.inf, found)


def compared(
    curves: np.ndarray, counts: Sequence[float], values: np.ndarray, count: int, seed: int
) -> dict[str, Any]:
    """Arithmetic samples beside independent ones, with 95% intervals by the bootstrap over tasks.

    Args:
      curves: float64 ``[tasks, K]``, of independent samples.
      counts: the K numbers of them.
      values: float64 ``[tasks]``, of N arithmetic samples.
      count: N.
      seed: of the bootstrap.

    Returns:
      The figures of a row. Numbers of samples end at the largest of ``counts``, which then means
      that many or more.
    """
    grid = np.asarray(counts, float)
    pick = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    weights = (pick[..., None] == np.arange(len(values))).sum(1) / len(values)
    curve, value = curves.mean(0), values.mean()
    alone = curves[:, int(np.argmin(np.abs(grid - count)))]
    many = min(as_many(curve[None], grid, value[None])[0], grid[-1])
    drawn = np.minimum(as_many(weights @ curves, grid, weights @ values), grid[-1])
    low, high = np.quantile(drawn, [0.025, 0.975])
    gain = weights @ (values - alone)
    return {
        "N": count,
        "arithmetic": float(value),
        "independent": float(alone.mean()),
        "gain": Estimate(
            float(value - alone.mean()), *map(float, np.quantile(gain, [0.025, 0.975]))
        ),
        "as_many": Estimate(float(many), float(low), float(high)),
        "fewer": Estimate(*(1 - count / float(n) for n in (many, low, high))),
        "largest": float(grid[-1]),
    }


def analyse(made: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What ``fewer_samples.json`` has as results."""
    found: dict[str, Any] = {"pass": [], "votes": [], "texts": []}
    by_sharpness: dict[float, list[dict[str, Any]]] = {s: [] for s in settings["sharpnesses"]}
    for name, value in made.items():
        if name.startswith("sharpness"):
            by_sharpness[value["sharpness"]] += value["tables"]
    counts, seed = settings["counts"], settings["seed"]
    fine = np.unique(np.concatenate([np.geomspace(1, 64 * max(counts), 400), counts]))
    for sharpness, rows in by_sharpness.items():
        entropy = float(np.mean([row["entropy"] for row in rows]))
        for kind in KINDS:
            share = np.array([row[kind]["share"] for row in rows])
            curves = pass_of_independent(share[:, None], fine[None])
            exact = np.array([row[kind]["exact"] for row in rows])
            measured = np.array([row[kind]["measured"] for row in rows])
            base = {"sharpness": sharpness, "entropy": entropy, "answer": kind}
            error = np.sqrt((exact * (1 - exact)).sum(0) / settings["runs"]) / len(rows)
            for i, count in enumerate(counts):
                row = compared(curves, fine.tolist(), exact[:, i], count, seed)
                deviation = (measured - exact)[:, i].mean() / max(error[i], 1e-12)
                found["pass"].append({**base, **row, "deviation": float(deviation)})
            if "vote" in rows[0][kind]:
                votes = np.array([row[kind]["vote_independent"] for row in rows])
                ours = np.array([row[kind]["vote"] for row in rows])
                for i, count in enumerate(counts):
                    if count < 3:  # A vote of two, whose ties are drawn, is that of one.
                        continue
                    row = compared(votes, settings["vote_counts"], ours[:, i], count, seed)
                    found["votes"].append({**base, **row})
    inputs = [value for name, value in made.items() if name.startswith("input")]
    lanes = settings["lanes"]
    for criterion in CRITERIA if inputs else ():
        right = [value[criterion]["right"] for value in inputs]
        curves = np.array([of_subsets(n, lanes) for n in right])
        passed = np.array([value[criterion]["passed"] for value in inputs])
        for i, count in enumerate(settings["text_counts"]):
            row = compared(curves, range(1, lanes + 1), passed[:, i], count, seed)
            found["texts"].append({"criterion": criterion, **row})
    return found


def of_subsets(right: int, count: int) -> list[float]:
    """pass@k for k from 1 to ``count``, from so many independent samples (Chen et al. 2021)."""
    whole = [math.comb(count, k) for k in range(1, count + 1)]
    return [1 - math.comb(count - right, k) / n for k, n in enumerate(whole, 1)]


def cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of ``COLUMNS``; beyond the largest number of independent samples, a bound."""
    largest = row["largest"]
    many = [f"{n:.1f}" if n < largest else f"over {largest:.0f}" for n in row["as_many"]]
    fewer = [
        f"{100 * part:.0f}" if n < largest else f"over {100 * part:.0f}"
        for part, n in zip(row["fewer"], row["as_many"], strict=True)
    ]
    return [
        str(row["N"]),
        f"{100 * row['arithmetic']:.2f}",
        f"{100 * row['independent']:.2f}",
        shown([100 * n for n in row["gain"]], 2),
        *(
            value if low.startswith("over") else f"{value} ({low} to {high})"
            for value, low, high in (many, fewer)
        ),
    ]


COLUMNS = [
    "N",
    "arithmetic %",
    "independent %",
    "difference",
    "independent samples for it",
    "fewer %",
]


def markdown(data: Mapping[str, Any]) -> str:
    """The tables."""
    found, settings = data["results"], data
    texts = data["vocab_size"] ** data["length"]
    parts = [
        "# Fewer samples for the same answer\n\n"
        f"{data['tables']} random tables at each sharpness, {data['vocab_size']} tokens, texts of "
        f"{data['length']} ({texts:,} texts); {data['runs']} calls of `arithmetic_sample` for each "
        f"table and N; seed {data['seed']}. Brackets hold 95% intervals, by the bootstrap over "
        "tables or inputs. The last column is N over the number of independent samples that reach "
        "the same percentage, taken from 100%.\n"
    ]
    titles = {"pass": "pass@N, exact", "votes": "Majority votes"}
    for part, title in titles.items():
        parts.append(f"\n## {title}\n\n")
        header = ["answer", "entropy of a text, bits", *COLUMNS]
        rows = [[KINDS[row["answer"]], f"{row['entropy']:.1f}", *cells(row)] for row in found[part]]
        parts.append(table(header, rows))
        if part == "pass":
            largest_deviation = max(abs(row["deviation"]) for row in found[part])
            parts.append(
                f"\nThe samples of `arithmetic_sample` itself differ from the exact pass@N by at "
                f"most {largest_deviation:.1f} standard errors in these {len(rows)} rows.\n"
            )
    if found["texts"]:
        parts.append(
            f"\n## {data['model']} on {data['task']['name']}\n\n{data['task']['inputs']} inputs, "
            f"{data['lanes']} samples of each, for each N and for independent ones.\n\n"
        )
        names = {**CRITERIA, "chrf": f"chrF of {settings['threshold']:g} or more"}
        rows = [[names[row["criterion"]], *cells(row)] for row in found["texts"]]
        parts.append(table(["right", *COLUMNS], rows))
    return "".join(parts)


def plot(data: Mapping[str, Any], path: Path) -> None:
    """How many times as many independent samples it takes, over N: pass@N, votes and texts.

    Random tables have a row for each mean entropy, and a model's texts have the last one.
    """
    parts = {"pass": ("pass@N", (0.8, 4)), "votes": ("majority votes", (0.6, 13))}
    texts = data["results"]["texts"]
    rows = len(data["sharpnesses"])
    figure, axes = drawing.panels(rows + bool(texts), 2, 2.9 * (rows + bool(texts)))
    for at, sharpness in enumerate(data["sharpnesses"]):
        for ax, (part, (title, limits)) in zip(axes[2 * at :], parts.items(), strict=False):
            mine = [r for r in data["results"][part] if r["sharpness"] == sharpness]
            _over_counts(ax, mine, "answer", KINDS)
            ax.set_title(f"{title}, tables of {mine[0]['entropy']:.1f} bits")
            drawing.counts_axis(ax, data["counts"], "arithmetic samples, N")
            ax.set_xlim(data["counts"][0] / 1.3, data["counts"][-1] * 1.3)
            ax.set_ylim(*limits)
    keys = axes[0].get_legend_handles_labels()
    if texts:
        ax, beside = axes[-2:]
        chrf = f"chrF of {data['threshold']:g} or more"
        _over_counts(ax, texts, "criterion", {**CRITERIA, "chrf": chrf}, first=len(KINDS))
        ax.set_title(f"pass@N, {data['model']}")
        drawing.counts_axis(ax, data["text_counts"], "arithmetic samples, N")
        keys = [a + b for a, b in zip(keys, ax.get_legend_handles_labels(), strict=True)]
        beside.set_axis_off()
        beside.legend(*keys, loc="center", title="a sample passes, or is voted for, by")
    else:
        axes[0].legend(*keys)
    for ax in axes[::2]:
        ax.set_ylabel("independent ones, over N")
    drawing.save(figure, path)


def _over_counts(
    ax: Any,
    rows: Sequence[Mapping[str, Any]],
    by: str,
    names: Mapping[str, str],
    first: int = 0,
) -> None:
    """How many times as many independent samples it takes over N, a series for each name."""
    series = {key: [r for r in rows if r[by] == key] for key in names}
    series = {key: mine for key, mine in series.items() if mine}
    for i, (key, mine) in enumerate(series.items()):
        n = np.array([row["N"] for row in mine], float)
        many = np.array([row["as_many"] for row in mine], float)
        many[many[:, 0] >= [row["largest"] for row in mine]] = np.nan
        at = n * 2 ** drawing.shifts(len(series), 0.16)[i]
        found, line = (many / n[:, None]).tolist(), drawing.LINES[i]
        drawing.intervals(ax, at, found, first + i, line, label=names[key], markersize=4)
    ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter("{x:g}")
