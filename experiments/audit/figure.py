"""The picture of the audit: how far each row is from what is promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.audit.judge import DEVIATES


def draw(audit: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws one line for each project, with a point for each row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = sorted(audit, reverse=True)
    figure, axes = plt.subplots(figsize=(8, 5.4), layout="constrained")
    kinds = {
        "no deviation found": {"marker": "o", "color": "#4878a8", "facecolors": "none", "s": 26},
        "deviates": {"marker": "D", "color": "#c03028", "s": 30},
    }
    for verdict, style in kinds.items():
        points = [
            (max(row["distance"], 1e-4), height + _spread(i, len(audit[name])))
            for height, name in enumerate(names)
            for i, row in enumerate(audit[name])
            if (row["verdict"] == DEVIATES) == (verdict == "deviates")
        ]
        axes.scatter(*zip(*points, strict=True), label=verdict, zorder=2, **style)
    for height, name in enumerate(names):
        limits = sorted({row["detectable"] for row in audit[name]})
        axes.fill_betweenx(
            (height - 0.4, height + 0.4), limits[0], limits[-1], color="0.85", zorder=1
        )
    axes.fill_betweenx((), (), color="0.85", label="detectable with 90% power, by the row")
    axes.set_xscale("log")
    axes.set_xlabel("total variation between what is drawn and what is promised")
    axes.set_yticks(range(len(names)), names)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _spread(i: int, count: int) -> float:
    """A place within a project's line, so that points do not cover one another."""
    return 0.6 * (i + 0.5) / count - 0.3
