"""Intervals, tables in Markdown, and files of results."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.results import read_json, write_json

PACKAGES = ("jax", "numpy", "sacrebleu", "rouge-score", "nltk", "mauve-text")


class Estimate(NamedTuple):
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


def interval(
    statistic: Callable[..., np.ndarray],
    *columns: np.ndarray,
    seed: int = 0,
    resamples: int = 4000,
) -> Estimate:
    """A statistic of a task, and its 95% interval by the bootstrap over inputs.

    Args:
      statistic: from arrays ``[..., n]``, one for each column, to an array ``[...]``.
      columns: float64 ``[n]``, the values of each input.
      seed: of the resampling.
      resamples: how many.

    Example:
      >>> interval(lambda x: x.mean(-1), np.array([2.0, 2.0]))
      Estimate(value=2.0, low=2.0, high=2.0)
    """
    pick = np.random.default_rng(seed).integers(0, len(columns[0]), (resamples, len(columns[0])))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(*columns))
        drawn = statistic(*(column[pick] for column in columns))
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high))


def difference(
    statistic: Callable[..., np.ndarray],
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    seed: int = 0,
    resamples: int = 4000,
) -> Estimate:
    """How much more a statistic is for one thing than for another of the same inputs.

    The bootstrap is paired: each resample takes the same inputs for both. What both find hard or
    easy in an input cancels out, so that the interval may lie above 0 where the intervals of the
    two statistics overlap.

    Args:
      statistic: as in ``interval``.
      ours: its columns for the one, values of each input.
      theirs: its columns for the other, in the same order of inputs.
      seed: of the resampling.
      resamples: how many.

    Example:
      >>> easy_and_hard = np.array([10.0, 90.0])
      >>> difference(mean, [easy_and_hard + 1], [easy_and_hard])
      Estimate(value=1.0, low=1.0, high=1.0)
    """

    def apart(*columns: np.ndarray) -> np.ndarray:
        return statistic(*columns[: len(ours)]) - statistic(*columns[len(ours) :])

    return interval(apart, *ours, *theirs, seed=seed, resamples=resamples)


def between_groups(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """How much more a statistic is for one group of inputs than for another, from its intervals.

    The groups have no input in common, so their estimates are independent, and the distances of
    each from the ends of its interval add in squares (Zou & Donner 2008, "Construction of
    confidence limits about effect measures", equation 7). The interval of the difference may
    exclude 0 where the two intervals overlap.

    Args:
      ours: the statistic of the one group with its interval, an ``Estimate``.
      theirs: that of the other.

    Example:
      >>> between_groups(Estimate(0.75, 0.5, 1.0), Estimate(0.5, 0.5, 0.5))
      Estimate(value=0.25, low=0.0, high=0.5)
    """
    (a, a_low, a_high), (b, b_low, b_high) = ours, theirs
    low = a - b - math.hypot(a - a_low, b_high - b)
    return Estimate(a - b, low, a - b + math.hypot(a_high - a, b - b_low))


def mean(values: np.ndarray) -> np.ndarray:
    """The mean over inputs, for ``interval``."""
    return values.mean(-1)


def signed(estimate: Sequence[float], digits: int) -> str:
    """A difference with its interval, for a table; in bold where the interval excludes 0.

    Example:
      >>> signed(Estimate(0.5, 0.25, 1), 2), signed(Estimate(-0.5, -1, 0), 1)
      ('**+0.50 (0.25 to 1.00)**', '-0.5 (-1.0 to 0.0)')
    """
    value, low, high = estimate
    text = f"{value:+.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def shown(estimate: Sequence[float], digits: int) -> str:
    """A number with its interval, for a table.

    Example:
      >>> shown(Estimate(0.5, 0.25, 1), 2)
      '0.50 (0.25 to 1.00)'
    """
    value, low, high = estimate
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown.

    Example:
      >>> print(table(["N", "ratio"], [[2, "0.5"]]), end="")
      | N | ratio |
      | --- | --- |
      | 2 | 0.5 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def versions() -> dict[str, Any]:
    """The versions of packages, and the machine's processors."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        **found,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cpus": os.cpu_count(),
        "cpus_used": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def write(
    folder: Path,
    name: str,
    data: dict[str, Any],
    markdown: Callable[[dict[str, Any]], str],
    plot: Callable[[dict[str, Any], Path], None],
) -> None:
    """Writes ``NAME.json``, ``NAME.md`` and ``NAME.png``, and prints the tables."""
    file = folder / f"{name}.json"
    write_json(file, data)
    made = markdown(read_json(file))
    (folder / f"{name}.md").write_text(made, "utf-8")
    plot(read_json(file), folder / f"{name}.png")
    print(made)
