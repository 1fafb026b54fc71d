"""Spread samples beside independent ones and QuasiMoTTo's lattice: rows, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import drawing
from experiments.papers.fewer_samples_results import compared
from experiments.papers.results import difference, mean, shown, signed
from experiments.papers.samplers import PEER

COLUMNS = ["samples", "k", "figure", "of k independent", "difference"]
COLUMNS += ["above QuasiMoTTo's lattice", "independent samples for it", "fewer, %"]
NOTE = (
    "Brackets hold 95% intervals, by the bootstrap over {of}, which is paired for differences; they"
    " are bold where they exclude 0. The last columns are the number of independent samples that"
    " reach the same figure, and k over it, taken from 100%. They are open unless the interval"
    " of the difference is above 0, and that number ends within all that were drawn."
)


def rows_of(
    curves: np.ndarray,
    grid: Sequence[float],
    values: Mapping[str, np.ndarray],
    counts: Sequence[int],
    seed: int,
) -> list[dict[str, Any]]:
    """A row for each sampler and k.

    Args:
      curves: float64 ``[tasks, K]``, of independent samples.
      grid: the K numbers of them.
      values: by sampler, float64 ``[tasks, counts]``, of k spread samples.
      counts: the k.
      seed: of the bootstrap.
    """
    rows = []
    for name, ours in values.items():
        for i, count in enumerate(counts):
            row = compared(curves, grid, ours[:, i], count, seed)
            row["above_peer"] = difference(mean, [ours[:, i]], [values[PEER][:, i]], seed=seed)
            rows.append({"sampler": name, **row})
    return rows


def sizes(lanes: int) -> list[int]:
    """The numbers of independent samples: powers of 2 up to ``lanes``, and their middles.

    Example:
      >>> sizes(8)
      [1, 2, 3, 4, 6, 8]
    """
    twos = [2**i for i in range(lanes.bit_length())]
    return sorted({n for two in twos for n in (two, two * 3 // 2) if n <= lanes})


def is_shown(row: Mapping[str, Any]) -> bool:
    """Whether the difference's interval is above 0, and the number of samples has an end."""
    return row["gain"][1] > 0 and row["as_many"][2] < row["largest"]


def saved(row: Mapping[str, Any]) -> str:
    """The percentage of saved samples, where it is shown."""
    return shown([100 * x for x in row["fewer"]], 0) if is_shown(row) else "open"


def cells(row: Mapping[str, Any], scale: float, digits: int) -> list[Any]:
    """The cells of ``COLUMNS``, of a figure that is multiplied by ``scale``."""
    gain, above = ([scale * x for x in row[key]] for key in ("gain", "above_peer"))
    return [
        row["sampler"],
        row["N"],
        f"{scale * row['arithmetic']:.{digits}f}",
        f"{scale * row['independent']:.{digits}f}",
        signed(gain, digits),
        "" if row["sampler"] == PEER else signed(above, digits),
        shown(row["as_many"], 1) if is_shown(row) else "open",
        saved(row),
    ]


def plot_gains(
    ax: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str], counts: Sequence[int],
    scale: float,
) -> None:  # fmt: skip
    """How far each sampler is above independent samples, over k."""
    for i, name in enumerate(names):
        mine = [row for row in rows if row["sampler"] == name]
        at = np.array([row["N"] for row in mine]) * 2 ** drawing.shifts(len(names), 0.1)[i]
        found = [[scale * x for x in row["gain"]] for row in mine]
        drawing.named(ax, at, found, name)
    ax.axhline(0, color=drawing.GREY, linewidth=0.9)
    drawing.counts_axis(ax, counts, "samples, k")
