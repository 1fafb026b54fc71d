"""What the measurements of speculative sampling come to: estimates, tables and panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from decoding_jax.strategies.speculative import emitted_tokens, speed_up
from experiments.papers.results import Estimate, interval, mean, shown, table

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PERCENTILES = (50, 90, 99)


def label(pair: Sequence[float]) -> str:
    """The name of a temperature and a top-p.

    Example:
      >>> label((0.0, 1.0)), label((1.0, 0.8)), label((0.8, 0.95))
      ('greedy', 'nucleus 0.8', 'temperature 0.8, top-p 0.95')
    """
    temperature, top_p = pair
    if temperature == 0:
        return "greedy"
    if temperature == 1:
        return f"nucleus {top_p:g}"
    return f"temperature {temperature:g}, top-p {top_p:g}"


def quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The sum of one column over that of another, for ``interval``."""
    return above.sum(-1) / below.sum(-1)


def quotient_of_quotients(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """``(a / b) / (c / d)`` of the sums of columns, for ``interval``."""
    return quotient(a, b) / quotient(c, d)


def percentile(
    rows: Sequence[Sequence[float]], q: float, seed: int, resamples: int = 500
) -> Estimate:
    """A percentile of the values of all inputs together; its interval resamples inputs."""
    lists = [np.asarray(row) for row in rows if len(row)]
    if not lists:
        return Estimate(float("nan"), float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    drawn = [
        np.percentile(
            np.concatenate([lists[i] for i in rng.integers(0, len(lists), len(lists))]), q
        )
        for _ in range(resamples)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(np.percentile(np.concatenate(lists), q)), float(low), float(high))


def analyse(
    measured: Mapping[str, list[dict[str, Any]]], costs: dict[str, float], given: dict[str, Any]
) -> dict[str, Any]:
    """All estimates, as JSON values."""
    seed = given["seed"]
    ways = ["target", "draft", *map(str, given["sizes"])]
    found: dict[str, Any] = {"block costs": costs, "settings": {}}
    for of, rows in measured.items():

        def column(way: str, name: str, rows: list[Any] = rows) -> np.ndarray:
            return np.asarray([row[way][name] for row in rows], float)

        target = column("target", "seconds"), column("target", "tokens")
        cost = interval(
            quotient_of_quotients,
            column("draft", "seconds"),
            column("draft", "tokens"),
            *target,
            seed=seed,
        )
        of_ways: dict[str, Any] = {}
        for way in ways:
            seconds, tokens = column(way, "seconds"), column(way, "tokens")
            each = 1e3 * seconds / np.maximum(tokens, 1)
            value: dict[str, Any] = {
                "ms a token": interval(quotient, 1e3 * seconds, tokens, seed=seed),
                "deviation of ms a token": float(each.std(ddof=1)) if len(each) > 1 else 0.0,
                "speed-up": interval(quotient_of_quotients, *target, seconds, tokens, seed=seed),
                "scores": {
                    metric: interval(
                        mean, np.asarray([row[way]["scores"][metric] for row in rows]), seed=seed
                    )
                    for metric in given["metrics"]
                },
            }
            if way not in ("target", "draft"):
                value |= _loops(column, way, seconds, cost.value, costs[way], seed)
            if "latencies" in rows[0][way]:
                lists = [row[way]["latencies"] for row in rows]
                value["latency"] = {str(q): percentile(lists, q, seed) for q in PERCENTILES}
            of_ways[way] = value
        found["settings"][of] = {"cost of a drafted token": cost, "ways": of_ways}
    return found


def _loops(
    column: Any, way: str, seconds: np.ndarray, cost: float, block: float, seed: int
) -> dict[str, Any]:
    """The figures of speculation with K drafted tokens."""
    size = int(way)
    accepted, rejected = column(way, "accepted"), column(way, "rejected")
    emitted, blocks = column(way, "emitted"), np.maximum(column(way, "blocks"), 1)
    rate = interval(quotient, accepted, np.maximum(accepted + rejected, 1e-9), seed=seed)
    return {
        "acceptance": rate,
        "tokens a loop over K + 1": interval(quotient, emitted, blocks * (size + 1), seed=seed),
        "theory of tokens a loop": float(emitted_tokens(rate.value, size)) / (size + 1),
        "ms a loop": interval(quotient, 1e3 * seconds, blocks, seed=seed),
        "theory of speed-up": float(speed_up(emitted_tokens(rate.value, size), size, cost, block)),
    }


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``speculative.md``."""
    chosen, found = str(data["table_size"]), data["results"]["settings"]
    first, latency, over_k = [], [], []
    for of, values in found.items():
        for way in ("target", chosen):
            name = "plain" if way == "target" else f"speculative, K = {chosen}"
            value = values["ways"][way]
            first.append(
                [
                    of,
                    name,
                    *(shown(value["scores"][m], 1) for m in data["metrics"]),
                    shown(value["ms a token"], 2),
                    shown(value["speed-up"], 2) if way != "target" else "1",
                ]
            )
            latency.append([of, name, *(shown(value["latency"][str(q)], 2) for q in PERCENTILES)])
        for size in map(str, data["sizes"]):
            value = values["ways"][size]
            over_k.append(
                [
                    of,
                    size,
                    shown(value["acceptance"], 2),
                    shown(value["tokens a loop over K + 1"], 2),
                    f"{value['theory of tokens a loop']:.2f}",
                    shown(value["ms a token"], 2),
                    shown(value["ms a loop"], 2),
                    shown(value["speed-up"], 2),
                    f"{value['theory of speed-up']:.2f}",
                ]
            )
    costs = ", ".join(f"{v:.2f} for K = {k}" for k, v in data["results"]["block costs"].items())
    drafts = "; ".join(
        f"{shown(v['cost of a drafted token'], 2)} ({of})" for of, v in found.items()
    )
    return "".join(
        [
            f"# Speculative sampling: {data['model']} with {data['draft']} on "
            f"{data['task']['name']}\n\n"
            f"{data['task']['inputs']} inputs, one at a time, at most {data['max_new_tokens']} "
            f"tokens, the median of {data['repeats']} timed runs in turn, on "
            f"{data['versions']['cpus']} processors ({data['versions']['device']}); "
            f"verifier {data['verifier']}, seed {data['seed']}. Brackets hold 95% "
            "intervals, by the bootstrap over inputs.\n\n"
            f"Relative to a token of the target, a drafted token takes {drafts}. A call of the "
            f"target with K + 1 tokens takes, relative to one with a single token, {costs}.\n",
            "\n## Quality and time\n\n",
            table(["setting", "decoding", *data["metrics"], "ms a token", "speed-up"], first),
            "\n## Percentiles of a token's latency, ms\n\n",
            table(["setting", "decoding", *(f"{q}th" for q in PERCENTILES)], latency),
            "\n## Over K\n\n",
            table(
                [
                    "setting",
                    "K",
                    "acceptance",
                    "tokens a loop / (K + 1)",
                    "in theory",
                    "ms a token",
                    "ms a loop",
                    "speed-up",
                    "in theory",
                ],
                over_k,
            ),
        ]
    )


def plot(data: dict[str, Any], path: Path) -> None:
    """Over K: the time of a token, the tokens of a loop, the time of a loop, and the speed-up."""
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.8), layout="constrained")
    sizes = data["sizes"]
    for i, (of, values) in enumerate(data["results"]["settings"].items()):
        ways = [values["ways"][str(size)] for size in sizes]
        plain = values["ways"]["target"]
        axes[0].errorbar(
            [0, *sizes],
            [w["ms a token"][0] for w in (plain, *ways)],
            [w["deviation of ms a token"] for w in (plain, *ways)],
            fmt="o-",
            color=f"C{i}",
            capsize=2,
            markersize=4,
            label=of,
        )
        for ax, name in zip(
            axes[1:], ("tokens a loop over K + 1", "ms a loop", "speed-up"), strict=True
        ):
            value = np.asarray([w[name] for w in ways], float).T
            ax.errorbar(
                sizes,
                value[0],
                np.abs(value[1:] - value[0]),
                fmt="o-",
                color=f"C{i}",
                capsize=2,
                markersize=4,
            )
        for ax, name in ((axes[1], "theory of tokens a loop"), (axes[3], "theory of speed-up")):
            ax.plot(sizes, [w[name] for w in ways], ":", color=f"C{i}")
    labels = (
        "ms a token, with deviation over inputs",
        "tokens of a loop / (K + 1)  (dotted: theory)",
        "ms of a loop",
        "speed-up (dotted: theory)",
    )
    for ax, words in zip(axes, labels, strict=True):
        ax.set_xlabel("K")
        ax.set_ylabel(words)
    axes[0].set_xlabel("K (0: plain decoding)")
    axes[0].set_ylim(0)
    axes[3].axhline(1, color="0.5", linestyle="--", linewidth=0.8)
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)
