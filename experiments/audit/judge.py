"""The verdict on a row: its counts beside the distribution that is promised."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.audit import distributions, environments, measure
from experiments.audit.cases import CASES
from experiments.audit.row import Row
from experiments.audit.rows import ROWS

LEVEL = 0.001 / len(ROWS)
"""Of each row: all together have 0.001."""

EXACT, DEVIATES = "no deviation found", "deviates"


def judge(row: Row, counts: np.ndarray) -> dict[str, Any]:
    """Compares counts with the nearest of the distributions that a row's documentation allows.

    All rows share a level of 0.001: an audit in which every sampler is exact finds a deviation once
    in a thousand times.
    """
    case = CASES[row.case]
    convention, distribution = distributions.nearest(case, row.allowed, counts)
    p = measure.p_value(counts, distribution)
    samples = int(counts.sum())
    return {
        "project": row.project,
        "path": row.path,
        "case": row.case,
        "promise": row.promise,
        "link": environments.ENVIRONMENTS[row.project].link(row.at),
        "convention": convention.name(case),
        "samples": samples,
        "distance": round(measure.total_variation(counts, distribution), 4),
        "floor": round(measure.noise_floor(distribution, samples), 4),
        "detectable": round(measure.detectable(distribution, samples, LEVEL), 4),
        "p_value": float(f"{p:.2g}"),
        "verdict": EXACT if p >= LEVEL else DEVIATES,
        "counts": counts.ravel().tolist(),
    }
