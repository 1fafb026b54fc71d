"""What the certificate keeps of a run: the result of each case in a file, and a summary.

An interrupted run resumes after the cases in the file.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np

import decoding_jax
from decoding_jax.testing.certificate.cases import Case


class Entry(NamedTuple):
    """The result of a case.

    Attributes:
      failure: one line about what failed, or None.
      smallest_p: the smallest of the p-values; 1 if there are none.
      cpu_seconds: the processor time that the case took.
    """

    failure: str | None
    smallest_p: float
    cpu_seconds: float


class CaseLog:
    """Results by case, one JSON line per case.

    Args:
      path: the file, or None to keep results in memory only. An incomplete last line is removed.

    Example:
      >>> log = CaseLog(None)
      >>> log.add({"strategy": "greedy"}, Entry(None, 0.5, 1.0))
      >>> log.get({"strategy": "greedy"}).smallest_p, log.get({"strategy": "sample"})
      (0.5, None)
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._results: dict[str, Entry] = {}
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            path.write_text("".join(whole), encoding="utf-8")
            for line in whole:
                entry = json.loads(line)
                case = entry.pop("case")
                self._results[_name(case)] = Entry(**entry)

    def get(self, case: Case) -> Entry | None:
        """The result of a case; None if it has not run."""
        return self._results.get(_name(case))

    def add(self, case: Case, entry: Entry) -> None:
        """Adds a case's result, and writes it to the file before returning."""
        self._results[_name(case)] = entry
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as out:
                out.write(json.dumps({"case": case} | entry._asdict()) + "\n")


def _name(case: Case) -> str:
    return json.dumps(case, sort_keys=True)


def commit() -> str | None:
    """The commit of this checkout, with ``-dirty`` where files differ; None outside a checkout."""
    here = Path(__file__)
    known = ["git", "ls-files", "--error-unmatch", here.name]
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=7"]
    try:
        *_, done = (
            subprocess.run(line, cwd=here.parent, check=True, capture_output=True, text=True)
            for line in (known, asked)
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


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
        "commit": commit(),
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
