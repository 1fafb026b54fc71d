"""What the measurements of arithmetic sampling come to: estimates, tables and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.papers.arithmetic_estimates import (
    diversity_of,
    halved,
    label,
    oracle_independent,
    oracle_lattice,
    ratio_of_deviations,
    variance_independent,
    variance_lattice,
)
from experiments.papers.arithmetic_plot import plot
from experiments.papers.results import interval, mean, shown, table

__all__ = ["analyse", "diversity_of", "label", "markdown", "plot"]


def analyse(
    measured: Mapping[str, list[dict[str, Any]]], cells: Mapping[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """All estimates, as JSON values."""
    inputs, largest, seed = given["task"]["inputs"], given["max_samples"], given["seed"]
    counts = [2**i for i in range(1, largest.bit_length())]

    def scores(name: str, metric: str) -> np.ndarray:
        rows = [row["scores"][metric] for row in measured[name]]
        return np.asarray(rows).reshape(inputs, cells[name].runs, -1)

    deviation, means, oracle = [], [], []
    for pair in given["settings"]:
        of = label(pair)
        for metric in given["metrics"]:
            iid, lattice = scores(f"iid, {of}", metric), scores(f"lattice, {of}", metric)
            gap = interval(mean, lattice.mean((1, 2)) - iid.mean((1, 2)), seed=seed)
            means.append(
                {
                    "setting": of,
                    "metric": metric,
                    "independent": iid.mean(),
                    "lattice": lattice.mean(),
                    "difference": gap,
                }
            )
            alone = np.asarray([row[metric] for row in measured.get(f"bound, {of}", [])])
            for count in counts:
                theirs = variance_independent(iid, count)
                ours = variance_lattice(lattice, count)
                ratio = interval(ratio_of_deviations, ours, theirs, seed=seed)
                bound = None
                if count in given["bound_counts"]:
                    least = alone[:, given["bound_counts"].index(count)] / count
                    bound = interval(ratio_of_deviations, least, theirs, seed=seed)
                deviation.append(
                    {
                        "setting": of,
                        "metric": metric,
                        "N": count,
                        "independent": float(np.sqrt(theirs.sum()) / inputs),
                        "lattice": float(np.sqrt(max(ours.sum(), 0)) / inputs),
                        "ratio": ratio,
                        "bound": bound,
                        "halved": halved(ratio),
                    }
                )
        metric = given["metrics"][0]
        for count in sorted(set(counts) & set(given["beams"])):
            best = {
                "independent": oracle_independent(scores(f"iid, {of}", metric), count),
                "lattice": oracle_lattice(scores(f"lattice, {of}", metric), count),
                "beam search": _best(measured[f"beam search, {count}"], metric),
                "stochastic beam search": _best(
                    measured[f"stochastic beam search, {count}"], metric
                ),
            }
            row = {k: interval(mean, v, seed=seed) for k, v in best.items()}
            beam = best["beam search"] - best["independent"]
            share = interval(
                lambda ours, gap: ours.mean(-1) / gap.mean(-1),
                best["lattice"] - best["independent"],
                beam,
                seed=seed,
            )
            defined = interval(mean, beam, seed=seed).low > 0
            oracle.append(
                {"setting": of, "N": count, **row, "share closed": share if defined else None}
            )
    return {
        "means": means,
        "deviation": deviation,
        "oracle": oracle,
        "diversity": _diversity(measured, given),
        "points": _points(scores, given),
        "prefixes": _prefixes(measured, given),
    }


def _best(rows: list[dict[str, Any]], metric: str) -> np.ndarray:
    return np.asarray([max(row["scores"][metric]) for row in rows])


def _diversity(measured: Mapping[str, list[dict[str, Any]]], given: dict[str, Any]) -> list[dict]:
    """Mean score and diversity at one N; runs of an input are averaged."""
    count, metric, found = given["diversity_count"], given["metrics"][0], []
    names = {
        f"beam search, {count}": "beam search",
        f"stochastic beam search, {count}": "stochastic beam search",
    }
    for pair in given["settings"]:
        of = label(pair)
        names[f"iid, {of}"] = f"independent, {of}"
        names[f"lattice, {of}"] = f"arithmetic, {of}"
    for name, shown_as in names.items():
        inputs = given["task"]["inputs"]
        diversity = np.asarray([row["diversity"] for row in measured[name]])
        quality = np.asarray([np.mean(row["scores"][metric]) for row in measured[name]])
        found.append(
            {
                "strategy": shown_as,
                "diversity": interval(mean, diversity.reshape(inputs, -1).mean(-1)),
                "mean": interval(mean, quality.reshape(inputs, -1).mean(-1)),
            }
        )
    return found


def _points(scores: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Root mean square errors of an input's mean, over those of independent samples."""
    of, metric = label(given["settings"][-1]), given["metrics"][0]
    iid, lattice = scores(f"iid, {of}", metric), scores(f"lattice, {of}", metric)
    truth = lattice.mean((1, 2))
    found = []
    for count in given["point_counts"]:
        theirs = variance_independent(iid, count)
        errors = {"lattice": variance_lattice(lattice, count)}
        for points in given["point_sets"]:
            off = scores(f"{points}, {count}", metric).mean(-1) - truth[:, None]
            errors[points] = (off**2).mean(-1)
        found += [
            {"points": p, "N": count, "ratio": interval(ratio_of_deviations, e, theirs)}
            for p, e in errors.items()
        ]
    return found


def _prefixes(measured: Mapping[str, list[dict[str, Any]]], given: dict[str, Any]) -> list[dict]:
    """Tokens shared by samples whose codes are a distance apart, and by independent ones."""
    of, largest = label(given["settings"][-1]), given["max_samples"]
    coded = np.asarray([row["prefixes"] for row in measured["deterministic"]])
    alone = np.asarray([row["prefixes"][0] for row in measured[f"iid, {of}"]])
    found: list[dict[str, Any]] = [
        {"distance": (i + 1) / (largest + 1), "tokens": interval(mean, coded[:, i], resamples=1000)}
        for i in range(largest - 1)
    ]
    return [{"distance": None, "tokens": interval(mean, alone, resamples=1000)}, *found]


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``arithmetic.md``."""
    found, largest = data["results"], data["max_samples"]
    counts = [2**i for i in range(1, largest.bit_length())]
    parts = [
        f"# Arithmetic sampling: {data['model']} on {data['task']['name']}\n\n"
        f"{data['task']['inputs']} inputs, {data['runs']} runs of {largest} samples, seed "
        f"{data['seed']}. Brackets hold 95% intervals, by the bootstrap over inputs.\n"
    ]
    for metric in data["metrics"]:
        parts.append(
            f"\n## Standard deviation of mean {metric}, arithmetic over independent samples\n\n"
        )
        rows = []
        for pair in data["settings"]:
            mine = [
                r
                for r in found["deviation"]
                if r["setting"] == label(pair) and r["metric"] == metric
            ]
            rows.append([label(pair), *(shown(r["ratio"], 2) for r in mine)])
            if data["bound_counts"]:
                rows.append(
                    ["lower bound", *(shown(r["bound"], 2) if r["bound"] else "" for r in mine)]
                )
            rows.append(["below one half", *(r["halved"] for r in mine)])
        parts.append(table(["setting", *(f"N = {n}" for n in counts)], rows))
    parts.append("\n## Means of one sample, which do not depend on the point set\n\n")
    header = ["setting", "metric", "independent", "arithmetic", "difference"]
    parts.append(
        table(
            header,
            (
                [
                    r["setting"],
                    r["metric"],
                    f"{r['independent']:.2f}",
                    f"{r['lattice']:.2f}",
                    shown(r["difference"], 2),
                ]
                for r in found["means"]
            ),
        )
    )
    names = ["independent", "lattice", "beam search", "stochastic beam search"]
    parts.append("\nStochastic beam search draws at the last of the settings above.\n")
    parts.append(f"\n## Best {data['metrics'][0]} of N, and the gap to beam search\n\n")
    parts.append(
        table(
            ["setting", "N", *names, "share of the gap closed"],
            (
                [
                    r["setting"],
                    r["N"],
                    *(shown(r[n], 1) for n in names),
                    "no gap" if r["share closed"] is None else shown(r["share closed"], 2),
                ]
                for r in found["oracle"]
            ),
        )
    )
    parts.append(f"\n## Diversity of {data['diversity_count']} completions\n\n")
    parts.append(
        table(
            ["strategy", "n-gram diversity", f"mean {data['metrics'][0]}"],
            (
                [r["strategy"], shown(r["diversity"], 2), shown(r["mean"], 1)]
                for r in found["diversity"]
            ),
        )
    )
    of = label(data["settings"][-1])
    parts.append(f"\n## Error of an input's mean over that of independent samples, {of}\n\n")
    rows = []
    for points in ("lattice", *data["point_sets"]):
        mine = [r for r in found["points"] if r["points"] == points]
        rows.append([points, *(shown(r["ratio"], 2) for r in mine)])
    parts.append(table(["points", *(f"N = {n}" for n in data["point_counts"])], rows))
    return "".join(parts)
