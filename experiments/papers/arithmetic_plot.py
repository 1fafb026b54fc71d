"""The panels of arithmetic sampling: a drawing of a toy model, and the measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from matplotlib.patches import Rectangle

from decoding_jax.codes import point_sets
from decoding_jax.ops import uint64
from experiments import drawing
from experiments.papers.metrics import NAMES

# A language model of two words and an end, as a tree: the probabilities of a, b and the end.
TOY = {"": (0.5, 0.3, 0.2), "a": (0.2, 0.5, 0.3), "b": (0.6, 0.1, 0.3)}
COLOURS = {"a": "#c5dbea", "b": "#f6e2b5", ".": "#e3e3e3"}


def plot(data: dict[str, Any], path: Path) -> None:
    """Eight panels; the first is the toy model, with its codes."""
    figure, axes = drawing.panels(4, 2, 13.2)
    _toy(axes[0])
    settings = list(dict.fromkeys(r["setting"] for r in data["results"]["deviation"]))
    _deviation(axes[1], data, settings, "ratio", "measured")
    _deviation(axes[2], data, settings, "bound", "its lower bound")
    _oracle(axes[3], data)
    _diversity(axes[4], data)
    _diversity_above(axes[5], data)
    _prefixes(axes[6], data)
    _points(axes[7], data)
    drawing.save(figure, path)


def _toy(ax: Any) -> None:
    """The intervals of a toy model, with eight codes of a lattice and eight independent ones."""

    def draw(prefix: str, left: float, width: float) -> None:
        for word, share in zip("ab.", TOY[prefix], strict=True):
            depth, part = len(prefix), width * share
            ax.add_patch(
                Rectangle((left, -depth), part, -0.9, facecolor=COLOURS[word], edgecolor="0.4")
            )
            if part > 0.035:
                ax.text(left + part / 2, -depth - 0.45, word, ha="center", va="center")
            if word != "." and prefix + word in TOY:
                draw(prefix + word, left, part)
            left += part

    draw("", 0.0, 1.0)
    key = jax.random.key(3)
    for i, (points, name) in enumerate({"lattice": "arithmetic", "iid": "independent"}.items()):
        codes = [int(x) / 2**64 for x in uint64.to_ints(getattr(point_sets, points)(key, 8))]
        y = -2.2 - 0.3 * i
        style = {"linestyle": "none", "markersize": 5, **drawing.look(i)}
        ax.plot(codes, [y] * 8, label=f"8 {name}", **style)
        for code in codes if points == "lattice" else ():
            ax.plot([code, code], [0, y], color=drawing.COLOURS[i], linewidth=0.8, linestyle="--")
    ax.set_xlim(0, 1)
    ax.set_ylim(-3.3, 0.05)
    ax.set_yticks([-0.45, -1.45], ["1st\ntoken", "2nd\ntoken"])
    ax.set_xlabel("code")
    ax.set_title("a drawing: texts own\nintervals of codes")
    ax.legend(loc="lower center", ncols=2, handlelength=1, columnspacing=1)


def _deviation(ax: Any, data: dict[str, Any], settings: list[str], name: str, title: str) -> None:
    """The ratio of deviations over N, or its bound, for each setting."""
    metric = data["metrics"][0]
    rows = [r for r in data["results"]["deviation"] if r["metric"] == metric and r[name]]
    for i, (setting, shift) in enumerate(
        zip(settings, 2 ** drawing.shifts(len(settings), 0.13), strict=True)
    ):
        mine = [r for r in rows if r["setting"] == setting]
        n = [r["N"] * shift for r in mine]
        line, label = drawing.LINES[i % 4], _short(setting)
        drawing.intervals(ax, n, [r[name] for r in mine], i, line, markersize=4, label=label)
    ax.axhline(0.5, color=drawing.GREY, linewidth=0.9)
    drawing.counts_axis(ax, sorted({r["N"] for r in rows}), "samples, N")
    ax.set_ylim(0, 1.15)
    ax.set_ylabel("arithmetic / independent")
    ax.set_title(f"deviation of mean\n{NAMES[metric]}: {title}")
    if name == "bound":
        ax.legend(title="temperature", fontsize=9, title_fontsize=9, labelspacing=0.2)


def _short(setting: str) -> str:
    return setting.removeprefix("temperature ")


def _oracle(ax: Any, data: dict[str, Any]) -> None:
    """The best of the most samples, above the best of as many independent ones."""
    count = max(r["N"] for r in data["results"]["oracle"])
    rows = [r for r in data["results"]["oracle"] if r["N"] == count]
    column = [r["above independent"]["lattice"] for r in rows]
    drawing.differences(ax, [_short(r["setting"]) for r in rows], [column], ["arithmetic"])
    ax.set_ylabel("temperature")
    ax.set_xlabel(f"{NAMES[data['metrics'][0]]} above independent")
    ax.set_title(f"the best of {count}\narithmetic samples")


def _diversity(ax: Any, data: dict[str, Any]) -> None:
    kinds = ("arithmetic", "independent", "beam search", "stochastic beam search")
    for kind in kinds:
        mine = [r for r in data["results"]["diversity"] if r["strategy"].startswith(kind)]
        x, y = ([r[name] for r in mine] for name in ("diversity", "mean"))
        across: dict[str, Any] = {"label": kind, "elinewidth": 0.7, "capsize": 0}
        across["xerr"] = drawing.error(x)
        drawing.intervals(ax, [value for value, *_ in x], y, kind, **across)
        for r in mine if kind == "independent" else ():
            text = _short(r["strategy"].removeprefix("independent, "))
            at, up = (r["diversity"][0], r["mean"][0]), -13 if "top-k" in text else 5
            ax.annotate(text, at, (-4, up), textcoords="offset points", fontsize=9, ha="right")
    ax.set_xlabel(f"n-gram diversity of {data['diversity_count']} completions")
    ax.set_ylabel(f"mean {NAMES[data['metrics'][0]]}")
    ax.set_title("quality and diversity\n(numbers: temperature)")
    ax.legend(fontsize=9, handlelength=1.2, labelspacing=0.2, loc="lower left")


def _diversity_above(ax: Any, data: dict[str, Any]) -> None:
    rows = [r for r in data["results"]["diversity"] if "above independent" in r]
    names = [_short(r["strategy"].removeprefix("arithmetic, ")) for r in rows]
    drawing.differences(ax, names, [[r["above independent"] for r in rows]], ["arithmetic"])
    ax.set_ylabel("temperature")
    ax.set_xlabel("above independent")
    ax.set_title("diversity of\narithmetic samples")


def _prefixes(ax: Any, data: dict[str, Any]) -> None:
    alone, *rows = data["results"]["prefixes"]
    x, found = [r["distance"] for r in rows], [r["tokens"] for r in rows]
    series = (
        (x, found, "-", "arithmetic"),
        ([0, 1], [alone["tokens"]] * 2, "--", "independent"),
    )
    for i, (at, estimates, line, label) in enumerate(series):
        value, low, high = zip(*estimates, strict=True)
        ax.plot(at, value, line, color=drawing.COLOURS[i], label=label)
        ax.fill_between(at, low, high, color=drawing.COLOURS[i], alpha=0.2, linewidth=0)
    ax.set_ylim(0)
    ax.set_xlabel("distance of two codes")
    ax.set_ylabel("tokens of the shared prefix")
    ax.set_title("codes that are close\nshare prefixes")
    ax.legend()


def _points(ax: Any, data: dict[str, Any]) -> None:
    rows = data["results"]["points"]
    names = {"lattice": "lattice", "deterministic": "lattice,\nno shift"}
    points = list(dict.fromkeys(r["points"] for r in rows))
    counts = data["point_counts"]
    for i, (count, shift) in enumerate(zip(counts, drawing.shifts(len(counts), 0.25), strict=True)):
        mine = [r["ratio"] for r in rows if r["N"] == count]
        at = [place + shift for place in range(len(points))]
        drawing.intervals(ax, at, mine, i, label=f"N = {count}")
    ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    words = [names.get(p, p.replace("_", "\n")) for p in points]
    ax.set_xticks(range(len(points)), words, fontsize=9)
    ax.set_ylim(0)
    ax.set_ylabel("error / independent")
    of = data["settings"][-1][0]
    ax.set_title(f"error of an input's mean,\ntemperature {of:g}")
    ax.legend(loc="lower center", ncols=2, handlelength=1.2)
