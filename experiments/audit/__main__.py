"""Runs the samplers of other projects, and prints how far they are from what they promise.

    python -m experiments.audit --prepare t5x keras_hub --environments runs/audit
    python -m experiments.audit --only t5x --environments runs/audit

The first makes environments, which needs the network. The second runs what it finds there: it
prints a line for each row of ``rows``, and keeps it in ``--out`` in place of an earlier one.
``--report`` writes the tables of ``docs/measured/audit.md`` anew, and ``--figure`` draws the
picture.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoding_jax.testing.certificate.records import commit
from experiments.audit import environments, figure, judge, report
from experiments.audit.cases import CASES
from experiments.audit.row import Row
from experiments.audit.rows import ROWS

PROJECTS = Path(__file__).parent / "projects"


def main(argv: Sequence[str]) -> int:
    names = list(environments.ENVIRONMENTS)
    parser = argparse.ArgumentParser(prog="python -m experiments.audit")
    parser.add_argument("--only", choices=names, help="the one project to run")
    parser.add_argument("--prepare", nargs="+", choices=names, help="environments to make")
    parser.add_argument("--environments", type=Path, default=Path("runs/audit"))
    parser.add_argument("--out", type=Path, default=Path("docs/audit.json"))
    parser.add_argument("--report", type=Path, help="the page whose tables are written anew")
    parser.add_argument("--figure", type=Path, help="the PNG that is drawn anew")
    args = parser.parse_args(argv)
    args.environments = args.environments.absolute()
    if args.prepare:
        for name in args.prepare:
            try:
                environments.prepare(name, args.environments)
            except subprocess.CalledProcessError as e:
                print(
                    f"{name}: failed with status {e.returncode}: {shlex.join(e.cmd)}",
                    file=sys.stderr,
                )
                return 1
        return 0
    audit = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.report or args.figure:
        if args.report:
            report.write(audit, args.report)
        if args.figure:
            figure.draw(audit, args.figure)
        return 0
    for name in [args.only] if args.only else names:
        if not environments.python(name, args.environments).exists():
            print(f"{name}: no environment in {args.environments}", file=sys.stderr)
            if args.only:
                return 1
            continue
        rows = [row for row in ROWS if row.project == name]
        audit[name] = run(rows, args.environments)
        for line in audit[name]:
            print(report.line(line), flush=True)
        args.out.write_text(report.text(audit))
    return 0


def run(rows: Sequence[Row], directory: Path) -> list[dict[str, Any]]:
    """Runs the rows of one project in its environment, and judges their counts."""
    name = rows[0].project
    made = environments.ENVIRONMENTS[name]
    request = [
        {"path": row.path, "case": CASES[row.case], "samples": row.samples, "seed": seed}
        for seed, row in enumerate(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(request))
        variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
        if name == "decoding_jax":
            variables["PYTHONPATH"] = str(PROJECTS.parents[2])
        else:
            variables.pop("PYTHONPATH", None)
        line = [environments.python(name, directory), PROJECTS / made.program, question, answer]
        subprocess.run(line, check=True, env=variables)
        counted = json.loads(answer.read_text())
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [
        {
            **judge.judge(row, np.array(each["counts"])),
            "version": made.version,
            "date": day,
            "commit": commit(),
            "seconds": round(each["seconds"], 1),
        }
        for row, each in zip(rows, counted, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
