"""The tables of the experiment on arithmetic sampling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.papers import arithmetic_plot, arithmetic_variants
from experiments.papers.arithmetic_estimates import label
from experiments.papers.results import shown, signed, table


def plot(data: dict[str, Any], path: Path) -> None:
    """All panels, or those of the variants where the run has some."""
    (arithmetic_variants if "variants" in data else arithmetic_plot).plot(data, path)


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``arithmetic.md``."""
    return "".join(
        [
            f"# Arithmetic sampling: {data['model']} on {data['task']['name']}\n\n"
            f"{data['task']['inputs']} inputs, {data['runs']} runs of {data['max_samples']} "
            f"samples, seed {data['seed']}. Brackets hold 95% intervals, by the bootstrap over "
            "inputs, which is paired for differences. A difference is bold where its interval "
            "excludes 0.\n",
            *_deviations(data),
            *_means(data),
            *_best(data),
            *_diversity(data),
            *_points(data),
            *(arithmetic_variants.markdown(data) if "variants" in data else ()),
        ]
    )


def _deviations(data: dict[str, Any]) -> Iterator[str]:
    counts = [2**i for i in range(1, data["max_samples"].bit_length())]
    for metric in data["metrics"]:
        yield f"\n## Standard deviation of mean {metric}, arithmetic over independent samples\n\n"
        rows = []
        for pair in data["settings"]:
            mine = [
                r
                for r in data["results"]["deviation"]
                if r["setting"] == label(pair) and r["metric"] == metric
            ]
            rows.append([label(pair), *(shown(r["ratio"], 2) for r in mine)])
            if data["bound_counts"]:
                for title, key, form in (
                    ("lower bound", "bound", shown),
                    ("above the bound", "above bound", signed),
                ):
                    rows.append([title, *(form(r[key], 2) if r[key] else "" for r in mine)])
            rows.append(["below one half", *(r["halved"] for r in mine)])
        yield table(["setting", *(f"N = {n}" for n in counts)], rows)


def _means(data: dict[str, Any]) -> Iterator[str]:
    yield "\n## Means of one sample, which do not depend on the point set\n\n"
    header = ["setting", "metric", "independent", "arithmetic", "difference"]
    rows = (
        [
            r["setting"],
            r["metric"],
            f"{r['independent']:.2f}",
            f"{r['lattice']:.2f}",
            signed(r["difference"], 2),
        ]
        for r in data["results"]["means"]
    )
    yield table(header, rows)


def _best(data: dict[str, Any]) -> Iterator[str]:
    names = {"independent": "independent", "lattice": "arithmetic", "beam search": "beam search"}
    names["stochastic beam search"] = "stochastic beam search"
    found, header = data["results"]["oracle"], ["setting", "N"]
    yield f"\n## Best {data['metrics'][0]} of N, and the gap to beam search\n\n"
    yield "Stochastic beam search draws at the last of the settings above.\n\n"
    rows = (
        [
            *(r["setting"], r["N"]),
            *(shown(r[name], 1) for name in names),
            "no gap" if r["share closed"] is None else shown(r["share closed"], 2),
        ]
        for r in found
    )
    yield table([*header, *names.values(), "share of the gap closed"], rows)
    yield "\nAbove the best of N independent samples:\n\n"
    others = [name for name in names if name != "independent"]
    rows = (
        [*(r["setting"], r["N"]), *(signed(r["above independent"][name], 2) for name in others)]
        for r in found
    )
    yield table([*header, *(names[name] for name in others)], rows)


def _diversity(data: dict[str, Any]) -> Iterator[str]:
    yield f"\n## Diversity of {data['diversity_count']} completions\n\n"
    rows = (
        [
            r["strategy"],
            shown(r["diversity"], 2),
            signed(r["above independent"], 2) if "above independent" in r else "",
            shown(r["mean"], 1),
        ]
        for r in data["results"]["diversity"]
    )
    header = ["strategy", "n-gram diversity", "above independent", f"mean {data['metrics'][0]}"]
    yield table(header, rows)


def _points(data: dict[str, Any]) -> Iterator[str]:
    of = label(data["settings"][-1])
    yield f"\n## Error of an input's mean over that of independent samples, {of}\n\n"
    rows = []
    for points in ("lattice", *data["point_sets"]):
        mine = [r for r in data["results"]["points"] if r["points"] == points]
        above = [signed(r["above lattice"], 2) if "above lattice" in r else "" for r in mine]
        rows.append([points, *(shown(r["ratio"], 2) for r in mine), *above])
    counts = data["point_counts"]
    header = [f"N = {n}" for n in counts], [f"above the lattice, N = {n}" for n in counts]
    yield table(["points", *header[0], *header[1]], rows)
