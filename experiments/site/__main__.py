"""Builds the documentation site, with warnings as errors.

    python -m experiments.site --out runs/site

The pages are those of ``docs``, and those that ``api`` makes of the code when Sphinx starts. Open
``runs/site/index.html``. With ``--table docs/models.md``, no site is built, and the table of
strategies on that page is written anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.site import strategies

DOCS = Path(__file__).resolve().parents[2] / "docs"


def build(out: Path) -> int:
    """Builds the site in a folder; returns an exit status."""
    from sphinx.cmd.build import build_main

    cache = out / ".doctrees"
    return build_main(["-W", "--keep-going", "-q", "-d", str(cache), str(DOCS), str(out)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--out", type=Path, help="a folder for the pages")
    wanted.add_argument("--table", type=Path, help="the page whose table is written anew")
    args = parser.parse_args()
    if args.table:
        strategies.write(args.table)
        return 0
    return build(args.out)


if __name__ == "__main__":
    sys.exit(main())
