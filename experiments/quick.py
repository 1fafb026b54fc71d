"""The quick form of an experiment: all of it, so small that it measures nothing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

MODEL = "translation-en-fr-draft"
"""The smaller of the embedded models."""


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, quick: Mapping[str, Any]
) -> argparse.Namespace:
    """Parses arguments, to which ``--quick`` is added, an option that changes the defaults.

    Args:
      parser: has all other arguments.
      argv: the arguments; those of the process by default.
      quick: the defaults with ``--quick``, by name.

    Example:
      >>> parser = argparse.ArgumentParser()
      >>> _ = parser.add_argument("--runs", type=int, default=16)
      >>> parse(parser, ["--quick"], {"runs": 2}).runs
      2
    """
    parser.add_argument(
        "--quick", action="store_true", help="a small form, which shows that it runs"
    )
    if parser.parse_args(argv).quick:
        parser.set_defaults(**quick)
    return parser.parse_args(argv)
