"""The audit as lines, and as the tables of its page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.audit.judge import DEVIATES

BEGIN, END = "<!-- the audit begins -->", "<!-- the audit ends -->"
Found = dict[str, Any]


def line(row: Found) -> str:
    """One row as a line of text."""
    name = f"{row['project']}: {row['path']}: {row['case']}"
    found = f"{row['distance']:.4f} (floor {row['floor']:.4f}), p {row['p_value']:.2g}"
    return f"{name:70} {found:38} {row['verdict']} {row['convention']}".rstrip()


def text(audit: dict[str, list[Found]]) -> str:
    """The audit as JSON, with a line for each row."""
    projects = [
        f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
        for name, rows in audit.items()
    ]
    return "{\n" + ",\n".join(projects) + "\n}\n"


def write(audit: dict[str, list[Found]], page: Path) -> None:
    """Writes the tables between two marks of a page.

    Args:
      audit: the rows of each project.
      page: a Markdown file with the lines ``BEGIN`` and ``END``.
    """
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{tables(audit)}\n\n{END}{after}")


def tables(audit: dict[str, list[Found]]) -> str:
    """A summary, what deviates, the promises, and the rows that are one sampler."""
    rows = [row for name in sorted(audit) for row in audit[name]]
    parts = [
        "### Projects",
        _table(
            ("project", "version", "date", "rows", "deviate", "detectable"),
            (_project(audit[name]) for name in sorted(audit)),
        ),
        "### Rows that deviate",
        _table(
            ("project", "path", "case", "total variation", "floor", "samples", "reading"),
            (_deviation(row) for row in rows if row["verdict"] == DEVIATES),
        ),
        "### Promises",
        _table(("project", "paths", "promised", "cases"), _promises(rows)),
        "### Rows that are one sampler",
        _table(("samplers with equal counts", "cases"), _equal(rows)),
    ]
    return "\n\n".join(parts)


def equal_counts(rows: Iterable[Found]) -> dict[tuple[tuple[str, str], ...], list[str]]:
    """The cases in which samplers of several projects drew the same counts, by the samplers."""
    drawn: dict[tuple[str, tuple[int, ...]], list[tuple[str, str]]] = {}
    for row in rows:
        key = row["case"], tuple(row["counts"])
        drawn.setdefault(key, []).append((row["project"], row["path"]))
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for (case, _), samplers in drawn.items():
        if len({project for project, _ in samplers}) > 1:
            groups.setdefault(tuple(samplers), []).append(case)
    return groups


def _project(rows: list[Found]) -> tuple[str, ...]:
    least, most = (f(row["detectable"] for row in rows) for f in (min, max))
    wrong = sum(row["verdict"] == DEVIATES for row in rows)
    found = f"{least:.3f} to {most:.3f}"
    return (*(rows[0][key] for key in ("project", "version", "date")), len(rows), wrong, found)


def _deviation(row: Found) -> tuple[str, ...]:
    figures = (f"{row['distance']:.4f}", f"{row['floor']:.4f}", f"{row['samples']:,}")
    return (row["project"], f"`{row['path']}`", row["case"], *figures, row["convention"])


def _promises(rows: Iterable[Found]) -> Iterator[tuple[str, ...]]:
    held: dict[tuple[str, str, str], list[Found]] = {}
    for row in rows:
        held.setdefault((row["project"], row["promise"], row["link"]), []).append(row)
    for (project, promise, link), of in held.items():
        paths = dict.fromkeys(f"`{row['path']}`" for row in of)
        cases = dict.fromkeys(row["case"] for row in of)
        yield project, ", ".join(paths), f"{promise} ([source]({link}))", "; ".join(cases)


def _equal(rows: Iterable[Found]) -> Iterator[tuple[str, ...]]:
    for samplers, cases in equal_counts(rows).items():
        yield ", ".join(f"{name} `{path}`" for name, path in samplers), "; ".join(cases)


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)
