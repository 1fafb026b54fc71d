"""Draws the figures of the pages again from the committed results, without measuring again.

    python -m experiments.figures
    python -m experiments.figures papers_arithmetic code_lines --out runs/figures

Each figure has a file of results in ``docs/``, which the command named on its page wrote.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from experiments.results import read_json

DOCS = Path(__file__).parents[1] / "docs"

FIGURES = {
    "batch_job": ("measured/batch_job.json", "benchmarks.batch_job"),
    "bayes_risk": ("papers/bayes_risk.json", "papers.bayes_risk"),
    "bayes_risk_spread": ("papers/bayes_risk_spread.json", "papers.bayes_risk_spread"),
    "beam_search": ("measured/beam_search.json", "benchmarks.beam_search"),
    "best_k": ("measured/best_k.json", "benchmarks.best_k"),
    "code_lines": ("papers/code_lines.json", "papers.code_lines"),
    "code_lines_functions": ("papers/code_lines_functions.json", "papers.code_lines"),
    "conditional": ("measured/conditional.json", "conditional"),
    "eight_samples.svg": ("measured/eight_samples.json", "eight_samples"),
    "fewer_samples": ("papers/fewer_samples.json", "papers.fewer_samples_results"),
    "pass_at_k": ("measured/pass_at_k.json", "pass_at_k"),
    "growth": ("measured/growth.json", "benchmarks.growth"),
    "large_models": ("measured/large_models.json", "benchmarks.large_models"),
    "papers_arithmetic": ("papers/arithmetic.json", "papers.arithmetic_report"),
    "papers_arithmetic_spread": ("papers/arithmetic_spread.json", "papers.arithmetic_report"),
    "papers_arithmetic_spread_128": (
        "papers/arithmetic_spread_128.json",
        "papers.arithmetic_report",
    ),
    "papers_best_k": ("papers/best_k.json", "papers.best_k_report"),
    "papers_best_k_differences": (
        "papers/best_k_differences.json",
        "papers.best_k_differences",
    ),
    "papers_speculative": ("papers/speculative.json", "papers.speculative_report"),
    "papers_speculative_temperatures": (
        "papers/speculative_temperatures.json",
        "papers.speculative_report",
    ),
    "quality_diversity": ("measured/quality_diversity.json", "quality_diversity"),
    "rollouts": ("measured/rollouts.json", "rollouts"),
    "rollouts_training": ("measured/rollouts_training.json", "rollouts_training"),
    "sampling_step": ("measured/sampling_step.json", "benchmarks.sampling_step"),
    "speculative": ("measured/speculative.json", "benchmarks.speculative"),
    "whole_decode": ("measured/whole_decode.json", "benchmarks.whole_decode"),
}
"""The results of each figure, and the module whose ``plot(results, path)`` draws it."""


def draw(name: str, out: Path) -> None:
    """Draws the figure of that name into a folder."""
    results, module = FIGURES[name]
    data = read_json(DOCS / results)
    importlib.import_module(f"experiments.{module}").plot(data, out / file_of(name))


def file_of(name: str) -> str:
    """The file of a figure: a PNG, unless the name has another ending."""
    return name if Path(name).suffix else f"{name}.png"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--out", type=Path, default=DOCS / "figures", help="a folder")
    args = parser.parse_args(argv)
    for name in args.names:
        if name not in FIGURES:
            parser.error(f"NAME: expected {', '.join(FIGURES)}, got {name!r}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or FIGURES:
        draw(name, args.out)


if __name__ == "__main__":
    main()
