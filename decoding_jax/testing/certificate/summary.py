"""The summary of a run of the certificate: what ran, with which versions, and the result."""

from __future__ import annotations

import collections
import datetime
import os
import platform
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

import decoding_jax
from decoding_jax.testing.certificate.case_log import Entry
from decoding_jax.testing.certificate.pairwise import Case


def summarize(
    cases: Sequence[Case], entries: Sequence[Entry], *, level: float, tests: int, failures: int
) -> dict[str, Any]:
    """The summary of a run, as JSON holds it.

    Args:
      cases: the cases.
      entries: the result of each.
      level: the level that all tests share.
      tests: the largest number of statistical tests that the cases can make.
      failures: the number of failures.
    """
    by_strategy = collections.Counter(case["strategy"] for case in cases)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "decoding_jax": decoding_jax.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": f"{platform.system()} {platform.machine()}, {jax.default_backend()}",
        "devices": jax.device_count(),
        "processors": os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "cases": len(cases),
        "cases_by_strategy": dict(by_strategy),
        "level": level,
        "statistical_tests": tests,
        "smallest_p": min((entry.smallest_p for entry in entries), default=1.0),
        "failures": failures,
        "cpu_seconds": round(sum(entry.cpu_seconds for entry in entries)),
    }
