"""What is known of a certificate's cases so far, in a file: a run that is killed goes on there."""

from __future__ import annotations

import json
from pathlib import Path

from decoding_jax.testing.certificate.pairwise import Case


class CaseLog:
    """Results by case, one JSON line each. Without a path nothing is kept.

    Args:
      path: of the file. A last line that was not written whole is cut off.

    Example:
      >>> log = CaseLog(None)
      >>> log.add({"strategy": "greedy"}, None, 0.5)
      >>> log.get({"strategy": "greedy"}), log.get({"strategy": "sample"})
      ((None, 0.5), None)
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._known: dict[str, tuple[str | None, float]] = {}
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            path.write_text("".join(whole), encoding="utf-8")
            for line in whole:
                entry = json.loads(line)
                self._known[_name(entry["case"])] = entry["failure"], entry["smallest_p"]

    def get(self, case: Case) -> tuple[str | None, float] | None:
        """The failure, if any, and the smallest p-value of a case; None if it was not run yet."""
        return self._known.get(_name(case))

    def add(self, case: Case, failure: str | None, smallest_p: float) -> None:
        """Keeps a case's result, on disk before this returns."""
        self._known[_name(case)] = failure, smallest_p
        if self._path is not None:
            entry = {"case": case, "failure": failure, "smallest_p": smallest_p}
            with open(self._path, "a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")


def _name(case: Case) -> str:
    return json.dumps(case, sort_keys=True)
