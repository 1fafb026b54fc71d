"""What the measurements of arithmetic sampling come to: estimates, differences and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.papers import arithmetic_variants
from experiments.papers.arithmetic_estimates import (
    halved,
    label,
    oracle_independent,
    oracle_lattice,
    ratio_of_deviations,
    variance_independent,
    variance_lattice,
)
from experiments.papers.results import difference, interval, mean


def analyse(
    measured: Mapping[str, list[dict[str, Any]]], cells: Mapping[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """All estimates, as JSON values."""
    inputs, largest, seed = given["task"]["inputs"], given["max_samples"], given["seed"]
    counts = [2**i for i in range(1, largest.bit_length())]

    def scores(name: str, metric: str) -> np.ndarray:
        rows = [row["scores"][metric] for row in measured[name]]
        return np.asarray(rows).reshape(inputs, cells[name].runs, -1)

    def surprises(of: str) -> np.ndarray:
        return np.asarray(measured[f"surprise, {of}"]).reshape(inputs, given["runs"], -1)

    varied = "variants" in given
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
            known = metric != "log_prob"  # The bound is of scores of texts.
            bounds = measured.get(f"bound, {of}", []) if known else []
            alone = np.asarray([row[metric] for row in bounds])
            for count in counts:
                theirs = variance_independent(iid, count)
                ours = variance_lattice(lattice, count)
                ratio = interval(ratio_of_deviations, ours, theirs, seed=seed)
                bound = above = None
                if known and count in given["bound_counts"]:
                    least = alone[:, given["bound_counts"].index(count)] / count
                    bound = interval(ratio_of_deviations, least, theirs, seed=seed)
                    both = [ours, theirs], [least, theirs]
                    above = difference(ratio_of_deviations, *both, seed=seed)
                deviation.append(
                    {
                        "setting": of,
                        "metric": metric,
                        "N": count,
                        "independent": float(np.sqrt(theirs.sum()) / inputs),
                        "lattice": float(np.sqrt(max(ours.sum(), 0)) / inputs),
                        "ratio": ratio,
                        "bound": bound,
                        "above bound": above,
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
                {
                    "setting": of,
                    "N": count,
                    **row,
                    "above independent": {
                        name: difference(mean, [v], [best["independent"]], seed=seed)
                        for name, v in best.items()
                        if name != "independent"
                    },
                    "share closed": share if defined else None,
                }
            )
    return {
        "means": means,
        "deviation": deviation,
        "oracle": oracle,
        "diversity": _diversity(measured, given),
        "points": _points(scores, given),
        "prefixes": _prefixes(measured, given),
        **({"variants": arithmetic_variants.analyse(scores, surprises, given)} if varied else {}),
    }


def _best(rows: list[dict[str, Any]], metric: str) -> np.ndarray:
    return np.asarray([max(row["scores"][metric]) for row in rows])


def _diversity(measured: Mapping[str, list[dict[str, Any]]], given: dict[str, Any]) -> list[dict]:
    """Mean score and diversity at one N; runs of an input are averaged.

    That of arithmetic samples is also above that of independent ones, for the same inputs.
    """
    count, metric, found = given["diversity_count"], given["metrics"][0], []
    of_inputs: dict[str, np.ndarray] = {}
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
        of_inputs[shown_as] = diversity.reshape(inputs, -1).mean(-1)
        quality = np.asarray([np.mean(row["scores"][metric]) for row in measured[name]])
        value = {
            "strategy": shown_as,
            "diversity": interval(mean, of_inputs[shown_as]),
            "mean": interval(mean, quality.reshape(inputs, -1).mean(-1)),
        }
        alone = of_inputs.get(shown_as.replace("arithmetic", "independent"))
        if shown_as.startswith("arithmetic") and alone is not None:
            value["above independent"] = difference(mean, [of_inputs[shown_as]], [alone])
        found.append(value)
    return found


def _points(scores: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Root mean square errors of an input's mean, over those of independent samples.

    Those of other point sets are also above that of the lattice, for the same inputs.
    """
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
        for points, error in errors.items():
            value = {"points": points, "N": count}
            value["ratio"] = interval(ratio_of_deviations, error, theirs)
            if points != "lattice":
                both = [error, theirs], [errors["lattice"], theirs]
                value["above lattice"] = difference(ratio_of_deviations, *both)
            found.append(value)
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
