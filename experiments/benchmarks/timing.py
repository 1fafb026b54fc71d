"""Timing side by side: runs in turns, in one process, after a warm-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np


def interleaved(
    runs: dict[str, Callable[[], object]],
    repeats: int,
    warm_up: dict[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Seconds of every run, taken in turns after one warm-up each.

    Args:
      runs: functions that return once their work is done.
      repeats: how often each is run.
      warm_up: what compiles and loads all that the runs need, where they take long themselves.
    """
    for run in (warm_up or runs).values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    """The median of the ratios of neighbouring runs."""
    pairs = zip(seconds[over], seconds[under], strict=True)
    return statistics.median(a / b for a, b in pairs)


def quartiles(values: Sequence[float]) -> list[float]:
    """The median, and the ends of the middle half.

    Example:
      >>> quartiles([4.0, 1, 2, 3, 5])
      [3.0, 2.0, 4.0]
    """
    return [float(value) for value in np.quantile(values, [0.5, 0.25, 0.75])]


def quartiles_of_ratios(seconds: dict[str, list[float]], over: str, under: str) -> list[float]:
    """The quartiles of the ratios of neighbouring runs."""
    return quartiles([a / b for a, b in zip(seconds[over], seconds[under], strict=True)])
