"""The panels of arithmetic sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np

from decoding_jax.codes import point_sets
from decoding_jax.ops import uint64

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# A language model of two words and an end, as a tree: the probabilities of a, b and the end.
TOY = {"": (0.5, 0.3, 0.2), "a": (0.2, 0.5, 0.3), "b": (0.6, 0.1, 0.3)}
COLOURS = {"a": "#9ecae1", "b": "#fdd0a2", ".": "#d9d9d9"}


def plot(data: dict[str, Any], path: Path) -> None:
    """Six panels: the toy figure, deviations, the best of N, diversity, prefixes, point sets."""
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.4), layout="constrained")
    _toy(axes[0, 0])
    _deviation(axes[0, 1], data)
    _oracle(axes[0, 2], data)
    _diversity(axes[1, 0], data)
    _prefixes(axes[1, 1], data)
    _points(axes[1, 2], data)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _toy(ax: Any) -> None:
    """The intervals of a toy model, with eight codes of a lattice and eight independent ones."""

    def draw(prefix: str, left: float, width: float) -> None:
        for word, share in zip("ab.", TOY[prefix], strict=True):
            depth, part = len(prefix), width * share
            ax.add_patch(
                plt.Rectangle((left, -depth), part, -0.9, facecolor=COLOURS[word], edgecolor="0.4")
            )
            if part > 0.035:
                ax.text(left + part / 2, -depth - 0.45, word, ha="center", va="center")
            if word != "." and prefix + word in TOY:
                draw(prefix + word, left, part)
            left += part

    draw("", 0.0, 1.0)
    key, at, handles = jax.random.key(3), {}, []
    for row, name in enumerate(("lattice", "iid")):
        codes = getattr(point_sets, name)(key, 8)
        at[name] = [int(x) / 2**64 for x in uint64.to_ints(codes)]
        handles += ax.plot(at[name], [-2.2 - 0.3 * row] * 8, "|" if row else "x", markersize=8)
    for code in at["lattice"]:
        ax.plot([code, code], [0, -2.1], color="tab:blue", linewidth=0.7, linestyle="--")
    ax.set_xlim(0, 1)
    ax.set_ylim(-3.1, 0.05)
    ax.set_yticks([-0.45, -1.45], ["1st token", "2nd token"])
    ax.set_xlabel("code")
    ax.set_title("a toy model: texts own intervals of codes")
    ax.legend(handles, ["lattice of 8", "8 independent"], loc="lower center", ncols=2, fontsize=7)


def _band(ax: Any, x: Any, estimates: list[Any], **style: Any) -> None:
    values = np.asarray(estimates, float).T
    (line,) = ax.plot(x, values[0], markersize=4, **style)
    ax.fill_between(x, values[1], values[2], color=line.get_color(), alpha=0.15, linewidth=0)


def _log_counts(ax: Any, counts: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(c) for c in counts])
    ax.set_xlabel("N samples")


def _deviation(ax: Any, data: dict[str, Any]) -> None:
    metric = data["metrics"][0]
    rows = [r for r in data["results"]["deviation"] if r["metric"] == metric]
    for setting in dict.fromkeys(r["setting"] for r in rows):
        mine = [r for r in rows if r["setting"] == setting]
        _band(ax, [r["N"] for r in mine], [r["ratio"] for r in mine], marker="o", label=setting)
        colour = ax.lines[-1].get_color()
        known = [r for r in mine if r["bound"]]
        ax.plot([r["N"] for r in known], [r["bound"][0] for r in known], ":", color=colour)
    if any(r["bound"] for r in rows):
        ax.plot([], [], ":", color="0.4", label="lower bound")
    ax.axhline(0.5, color="0.4", linestyle="--", linewidth=0.8)
    _log_counts(ax, sorted({r["N"] for r in rows}))
    ax.set_ylim(0, 1.1)
    ax.set_ylabel("arithmetic / independent")
    ax.set_title(f"standard deviation of mean {metric}")
    ax.legend(fontsize=7)


def _oracle(ax: Any, data: dict[str, Any]) -> None:
    rows = data["results"]["oracle"]
    last = rows[-1]["setting"]
    mine = [r for r in rows if r["setting"] == last]
    names = {"independent": "o", "lattice": "s", "stochastic beam search": "^", "beam search": "D"}
    for name, marker in names.items():
        _band(ax, [r["N"] for r in mine], [r[name] for r in mine], marker=marker, label=name)
    _log_counts(ax, [r["N"] for r in mine])
    ax.set_ylabel(f"best {data['metrics'][0]} of N")
    ax.set_title(f"the best of N, {last}")
    ax.legend(fontsize=7)


def _diversity(ax: Any, data: dict[str, Any]) -> None:
    markers = {"independent": "o", "arithmetic": "s", "stochastic": "^", "beam search": "D"}
    for i, (kind, marker) in enumerate(markers.items()):
        mine = [r for r in data["results"]["diversity"] if r["strategy"].startswith(kind)]
        for r in mine:
            (x, left, right), (y, low, high) = r["diversity"], r["mean"]
            ax.errorbar(
                x,
                y,
                xerr=[[x - left], [right - x]],
                yerr=[[y - low], [high - y]],
                fmt=marker,
                color=f"C{i}",
                elinewidth=0.6,
                label=kind if r is mine[0] else None,
            )
            if kind == "independent":
                text = r["strategy"].removeprefix("independent, temperature ")
                ax.annotate(text, (x, y), (4, 4), textcoords="offset points", fontsize=7)
    ax.set_xlabel(f"n-gram diversity of {data['diversity_count']} completions")
    ax.set_ylabel(f"mean {data['metrics'][0]}")
    ax.set_title("quality and diversity (numbers: temperature)")
    ax.legend(fontsize=7)


def _prefixes(ax: Any, data: dict[str, Any]) -> None:
    alone, *rows = data["results"]["prefixes"]
    _band(ax, [r["distance"] for r in rows], [r["tokens"] for r in rows], label="codes this far")
    value, low, high = alone["tokens"]
    ax.axhline(value, color="C1", linestyle="--", label="independent samples")
    ax.axhspan(low, high, color="C1", alpha=0.15, linewidth=0)
    ax.set_ylim(0)
    ax.set_xlabel("distance of two codes")
    ax.set_ylabel("tokens of the shared prefix")
    ax.set_title("codes that are close share prefixes")
    ax.legend(fontsize=7)


def _points(ax: Any, data: dict[str, Any]) -> None:
    rows = data["results"]["points"]
    names = list(dict.fromkeys(r["points"] for r in rows))
    counts = data["point_counts"]
    for i, count in enumerate(counts):
        mine = np.asarray([r["ratio"] for r in rows if r["N"] == count], float)
        at = np.arange(len(names)) + 0.25 * (i - (len(counts) - 1) / 2)
        error = np.abs(mine[:, 1:].T - mine[:, 0])
        ax.errorbar(at, mine[:, 0], error, fmt="o", capsize=3, label=f"N = {count}")
    ax.axhline(1, color="0.4", linestyle="--", linewidth=0.8)
    ax.set_xticks(range(len(names)), [n.replace("_", "\n") for n in names], fontsize=8)
    ax.set_ylim(0)
    ax.set_ylabel("error / independent")
    ax.set_title("error of an input's mean, by point set")
    ax.legend(fontsize=7)
