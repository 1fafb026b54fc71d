"""The audit as lines and as the tables of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BEGIN, END = "<!-- the audit begins -->", "<!-- the audit ends -->"
_SUMMARY = "| project | version | date | rows | exact | deviate | greatest deviation | command |"
_HEAD = "| path | case | promised | total variation | floor | p-value | samples | verdict |"


def line(row: dict[str, Any]) -> str:
    """One row as a line of text."""
    name = f"{row['project']}: {row['path']}: {row['case']}"
    found = f"{row['distance']:.4f} (floor {row['floor']:.4f}), p {row['p_value']:.2g}"
    return f"{name:70} {found:38} {_verdict(row)}"


def write(audit: dict[str, list[dict[str, Any]]], page: Path) -> None:
    """Writes the tables between two marks of a page.

    Args:
      audit: the rows of each project.
      page: a Markdown file with the lines ``BEGIN`` and ``END``.
    """
    text = page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{tables(audit)}\n\n{END}{after}")


def tables(audit: dict[str, list[dict[str, Any]]]) -> str:
    """A summary, and a section for each project."""
    names = sorted(audit)
    summary = [_SUMMARY, "| --- " * 8 + "|", *(_project(name, audit[name]) for name in names)]
    sections = ["\n".join(summary)]
    for name in names:
        lines = [f"### {name}", "", _HEAD, "| --- " * 8 + "|", *map(_cells, audit[name])]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _project(name: str, rows: list[dict[str, Any]]) -> str:
    wrong = [row for row in rows if row["verdict"] == "deviates"]
    worst = max(wrong, key=lambda row: row["distance"], default=None)
    found = f"{worst['distance']:.3f} (floor {worst['floor']:.3f})" if worst else ""
    counts = [str(len(rows)), str(len(rows) - len(wrong)), str(len(wrong))]
    command = f"`python -m experiments.audit --only {name}`"
    return "| " + " | ".join([name, *_made(rows), *counts, found, command]) + " |"


def _made(rows: list[dict[str, Any]]) -> list[str]:
    return [rows[0]["version"], rows[0]["date"]]


def _cells(row: dict[str, Any]) -> str:
    figures = [f"{row['distance']:.4f}", f"{row['floor']:.4f}", f"{row['p_value']:.2g}"]
    cells = [f"`{row['path']}`", row["case"], row["promise"], *figures]
    return "| " + " | ".join([*cells, f"{row['samples']:,}", _verdict(row)]) + " |"


def _verdict(row: dict[str, Any]) -> str:
    return f"{row['verdict']} ({row['convention']})" if row["convention"] else row["verdict"]
