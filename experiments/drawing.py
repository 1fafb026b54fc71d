"""What all figures share: how series are told apart, sizes of text, intervals, and files.

Series differ in colour, in marker and in the dashes of their lines. The colours are those of Okabe
and Ito (2008), which colour-blind readers tell apart; in grey, the markers do it. A figure is as
wide as a page, so that its text is read on a phone, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#808080", "#9c6b30")
MARKERS = "osD^vPX*"
LINES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xx")
WIDTH, DPI = 5.6, 160
# It is read on white and on black, as are the colours: figures have no background.
GREY = "#7a7a7a"
NAMES = {
    "one code": "lattice",
    "QuasiMoTTo": "QuasiMoTTo, lattice",
    "ordered": "knowing the scores",
}
"""What figures call a thing, where results have another name for it."""
SERIES = {
    "lattice": 0,
    "arithmetic": 0,
    "decoding_jax": 0,
    "independent": 1,
    "sample": 1,
    "transformers": 1,
    "samples": 1,
    "by probability": 2,
    "categorical": 2,
    "select": 2,
    "best-k search": 2,
    "several codes": 3,
    "softmax": 3,
    "beams": 3,
    "beam search": 3,
    "QuasiMoTTo, lattice": 4,
    "argmax": 4,
    "stochastic beam search": 4,
    "QuasiMoTTo, strata": 5,
    "by embedding": 5,
    "knowing the scores": 6,
    "QuasiMoTTo, Sobol": 7,
    "control variate": 7,
}
"""The number of the series that has the name, in every figure; none has two of one number."""

plt.rcParams |= {
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 3.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "errorbar.capsize": 2.5,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "decoding_jax",
}


def panels(rows: int = 1, columns: int = 1, height: float = 3.4) -> tuple[Any, list[Any]]:
    """A figure of the width of a page, and its axes, row by row.

    Args:
      rows, columns: of the axes.
      height: in inches; a page is 7 wide.
    """
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False
    )
    return figure, list(axes.flat)


def save(figure: Any, path: Path) -> None:
    """Writes a figure, and forgets it. An SVG has the same bytes every time."""
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=DPI, metadata=metadata)
    plt.close(figure)


def number(series: int | str) -> int:
    """The number of a series, or of that of a name (``SERIES``)."""
    return SERIES[NAMES.get(series, series)] if isinstance(series, str) else series


def look(series: int | str) -> dict[str, Any]:
    """The colour and marker of a series, which is a number or a name of ``SERIES``."""
    i = number(series)
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def bar(series: int | str) -> dict[str, Any]:
    """The colour and hatch of a series of bars."""
    i = number(series)
    return {"color": COLOURS[i], "hatch": HATCHES[i], "edgecolor": "white", "linewidth": 0}


def error(estimates: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
    """The distances from values to the ends of their intervals: ``[2, n]``.

    Args:
      estimates: values, each with its interval.

    Example:
      >>> error([(2, 1, 5)]).tolist()
      [[1.0], [3.0]]
    """
    value, low, high = np.asarray(estimates, float).reshape(-1, 3).T
    return np.maximum([value - low, high - value], 0)


def intervals(
    ax: Any,
    x: Any,
    estimates: Sequence[Sequence[float]],
    i: int | str,
    line: str = "",
    **style: Any,
) -> None:
    """A series: estimates over x with their intervals, joined by a line unless it is empty.

    Args:
      ax: the axes.
      x: of each estimate.
      estimates: values, each with its interval.
      i: the number of the series, or its name.
      line: the line's style.
      style: other arguments of ``errorbar``.
    """
    given = {**look(i), "linestyle": line or "none", "elinewidth": 1.1, **style}
    ax.errorbar(x, [value for value, *_ in estimates], error(estimates), **given)


def named(ax: Any, x: Any, estimates: Sequence[Sequence[float]], name: str) -> None:
    """The series of a name of ``SERIES``, as ``intervals``, with its line and its label."""
    line, label = LINES[number(name) % len(LINES)], NAMES.get(name, name)
    intervals(ax, x, estimates, name, line, label=label, markersize=4)


def shifts(count: int, width: float) -> np.ndarray:
    """Places of ``count`` series beside each other, around 0, ``width`` apart.

    Example:
      >>> shifts(3, 0.5).tolist()
      [-0.5, 0.0, 0.5]
    """
    return width * (np.arange(count) - (count - 1) / 2)


def differences(
    ax: Any,
    names: Sequence[str],
    columns: Sequence[Sequence[Sequence[float] | None]],
    labels: Sequence[str],
) -> None:
    """Differences with their intervals from top to bottom, beside a line at 0.

    Args:
      ax: the axes.
      names: of the rows.
      columns: of each series, the estimate of each row, or None.
      labels: of the series.
    """
    for i, (column, label) in enumerate(zip(columns, labels, strict=True)):
        rows = [(y, estimate) for y, estimate in enumerate(column) if estimate is not None]
        at = [y + shifts(len(columns), 0.26)[i] for y, _ in rows]
        values = [value for _, (value, *_) in rows]
        given = {**look(i), "linestyle": "none", "elinewidth": 1.1, "markersize": 5}
        ax.errorbar(values, at, xerr=error([found for _, found in rows]), label=label, **given)
    ax.axvline(0, color=GREY, linewidth=0.9)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)


def numbers(ax: Any, points: Sequence[tuple[float, float]]) -> None:
    """The numbers of points, from 1, on different sides of neighbouring ones."""
    sides = ((5, 3), (-5, -11), (-5, 3), (5, -11), (-5, 3))
    for i, at in enumerate(points):
        across, up = sides[i % len(sides)]
        given = {"textcoords": "offset points", "ha": "left" if across > 0 else "right"}
        ax.annotate(f"{i + 1}", at, (across, up), fontsize=9, **given)


def counts_axis(ax: Any, counts: Sequence[int], label: str) -> None:
    """Numbers of samples, each twice the last or more, on the axis of x."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(n) for n in counts])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(label)
