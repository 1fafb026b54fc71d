"""The held-out sentences, each with all its French references, and the held-out functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).parent / "data" / "tatoeba_held_out.jsonl"

FUNCTIONS = Path(__file__).parent / "data" / "stdlib_held_out.jsonl"
"""Beginnings of functions of Python's standard library, as ``code_data.examples`` makes them."""

LINES = FUNCTIONS.with_stem("stdlib_held_out_lines")
"""Lines of such functions, as ``code_data.held_out_lines`` makes them."""


class Sentence(NamedTuple):
    """An English sentence and the French ones that it was paired with."""

    english: str
    references: list[str]


def read(path: Path = PATH) -> list[Sentence]:
    """Sentences in the file's order; pairs of one English sentence are one ``Sentence``."""
    found: dict[str, list[str]] = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            found.setdefault(pair["en"], []).append(pair["fr"])
    return [Sentence(english, references) for english, references in found.items()]


def columns(sentences: list[Sentence]) -> list[list[str | None]]:
    """References as sacrebleu takes them: one list for each rank, None where there is none."""
    most = max(len(s.references) for s in sentences)
    return [
        [s.references[i] if i < len(s.references) else None for s in sentences] for i in range(most)
    ]
