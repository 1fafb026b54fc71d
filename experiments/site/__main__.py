"""Builds the documentation site, with warnings as errors.

    python -m experiments.site --out runs/site

The pages are those of ``docs``, and those that ``api`` and ``strategies`` make of the code when
Sphinx starts. Open ``runs/site/index.html``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def build(out: Path) -> int:
    """Builds the site in a folder; returns an exit status."""
    from sphinx.cmd.build import build_main

    cache = out / ".doctrees"
    return build_main(["-W", "--keep-going", "-q", "-d", str(cache), str(DOCS), str(out)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the pages")
    return build(parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
