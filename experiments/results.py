"""Files of results, and the tables of pages that are written from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from decoding_jax.testing.certificate.records import commit


def write_json(path: Path, results: Any) -> None:
    """Replaces a file at once, so that a run that is killed leaves a whole one.

    The file has the commit of the program that wrote it. Files that are older than this have the
    commit that brought them.

    Args:
      path: the file.
      results: a dictionary, or a list, which is under ``measurements``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    whole = results if isinstance(results, dict) else {"measurements": results}
    part.write_text(json.dumps({**whole, "commit": commit()}, indent=1) + "\n", "utf-8")
    part.replace(path)


def read_json(path: Path) -> Any:
    """What ``write_json`` was given; a dictionary has its ``commit`` too."""
    found = json.loads(path.read_text("utf-8"))
    return found.get("measurements", found)


def ledger_of(path: Path) -> dict[str, Any]:
    """The ledger of a file, with its ``rows``; one without rows where there is no file yet."""
    return read_json(path) if path.exists() else {"rows": {}}


def add_rows(
    ledger: dict[str, Any],
    settings: Sequence[Any],
    measure: Callable[[Any], dict[str, Any]],
    out: Path,
) -> None:
    """Measures the settings that a ledger lacks, and writes it after each, so that a run continues.

    Args:
      ledger: its ``rows`` are by the settings' names, and grow.
      settings: with a method ``name``.
      measure: makes the row of a setting.
      out: the ledger's file.
    """
    missing = [s for s in settings if s.name() not in ledger["rows"]]
    with tqdm(missing, unit="program") as progress:
        for setting in progress:
            progress.set_description(setting.name())
            ledger["rows"][setting.name()] = measure(setting)
            write_json(out, ledger)


def marks(name: str) -> tuple[str, str]:
    """The lines of a page between which a table is."""
    return f"<!-- {name} begins -->", f"<!-- {name} ends -->"


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Writes tables between their marks.

    Args:
      page: a Markdown file with the lines of ``marks`` for each name in ``tables``.
      tables: Markdown by name.
    """
    text = page.read_text("utf-8")
    for name, lines in tables.items():
        begin, end = marks(name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{lines}\n\n{end}{rest.split(end)[1]}"
    page.write_text(text, "utf-8")
