"""A file of the results so far, so that an interrupted run of the certificate can resume."""

from __future__ import annotations

import json
from pathlib import Path

from decoding_jax.testing.certificate.pairwise import Case


class CaseLog:
    """Results by case, one JSON line per case.

    Args:
      path: the file, or None to keep results in memory only. An incomplete last line is removed.

    Example:
      >>> log = CaseLog(None)
      >>> log.add({"strategy": "greedy"}, None, 0.5)
      >>> log.get({"strategy": "greedy"}), log.get({"strategy": "sample"})
      ((None, 0.5), None)
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._results: dict[str, tuple[str | None, float]] = {}
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            path.write_text("".join(whole), encoding="utf-8")
            for line in whole:
                entry = json.loads(line)
                self._results[_name(entry["case"])] = entry["failure"], entry["smallest_p"]

    def get(self, case: Case) -> tuple[str | None, float] | None:
        """The failure, if any, and the smallest p-value of a case; None if it has not run."""
        return self._results.get(_name(case))

    def add(self, case: Case, failure: str | None, smallest_p: float) -> None:
        """Adds a case's result, and writes it to the file before returning."""
        self._results[_name(case)] = failure, smallest_p
        if self._path is not None:
            entry = {"case": case, "failure": failure, "smallest_p": smallest_p}
            with open(self._path, "a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")


def _name(case: Case) -> str:
    return json.dumps(case, sort_keys=True)
