"""Writes the ledger: what the TPU compiler makes of strategies, models and meshes, without a TPU.

    python -m experiments.tpu_ledger --out docs/tpu_ledger.json

compiles the settings of ``grid`` one after another, and writes the file after each. Settings that
are in the file already are not compiled again, so a run that was killed continues. ``--only`` takes
the settings whose line contains a text. ``--report`` writes the table.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments import results


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.tpu_ledger")
    parser.add_argument("--out", type=Path, default=Path("docs/tpu_ledger.json"))
    parser.add_argument("--only", default="", help="a part of the lines of the settings to compile")
    parser.add_argument("--list", action="store_true", help="print the lines, compile nothing")
    parser.add_argument("--report", type=Path, help="the page whose table is written anew")
    args = parser.parse_args(argv)
    from experiments.tpu_ledger import topology
    from experiments.tpu_ledger.grid import grid

    settings = [s for s in grid() if args.only in s.name()]
    if args.list:
        print("\n".join(s.name() for s in settings))
        return 0
    ledger = results.ledger_of(args.out)
    if args.report:
        from experiments.tpu_ledger.report import write

        write(ledger, args.report)
        return 0
    if not topology.is_installed():
        print('libtpu: expected an environment with ".[tpu]" installed, got none', file=sys.stderr)
        return 1
    from experiments.tpu_ledger.rows import measure

    results.add_rows(ledger, settings, lambda s: {**measure(s), **_versions()}, args.out)
    return 0


def _versions() -> dict[str, Any]:
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {**{name: metadata.version(name) for name in ("jax", "libtpu")}, "date": day}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
