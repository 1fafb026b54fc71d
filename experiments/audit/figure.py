"""The picture of the audit: how far each row is from what is promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.audit.judge import DEVIATES


def draw(audit: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws one line for each project, with a point for each row."""
    from experiments import drawing

    names = sorted(audit, reverse=True)
    figure, (axes,) = drawing.panels(height=5.4)
    kinds = {
        "no deviation found": {
            "marker": "o",
            "color": drawing.COLOURS[0],
            "facecolors": "none",
            "s": 26,
        },
        "deviates": {"marker": "D", "color": drawing.COLOURS[3], "s": 30},
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
            (height - 0.4, height + 0.4),
            limits[0],
            limits[-1],
            color=drawing.GREY,
            alpha=0.3,
            linewidth=0,
            zorder=1,
        )
    axes.fill_betweenx(
        (), (), color=drawing.GREY, alpha=0.3, linewidth=0, label="detectable in 90% of audits"
    )
    axes.set_xscale("log")
    axes.set_xlabel("total variation of what is drawn and what is promised")
    axes.set_yticks(range(len(names)), names)
    figure.legend(loc="outside upper center", ncols=2)
    drawing.save(figure, path)


def _spread(i: int, count: int) -> float:
    """A place within a project's line, so that points do not cover one another."""
    return 0.6 * (i + 0.5) / count - 0.3
