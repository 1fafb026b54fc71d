"""Docstrings as Sphinx's extension Napoleon reads them."""

from __future__ import annotations

from typing import Any


def prepare(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrites the lines of a docstring in place, for ``autodoc-process-docstring``."""
    lines[:] = joined(lines)


def joined(lines: list[str]) -> list[str]:
    """Joins names of arguments that are wrapped over lines, and escapes their stars.

    Example:
      >>> joined(["Args:", "  model, tokenizer, texts,", "    **settings: as for ``generate``."])
      ['Args:', '  model, tokenizer, texts, \\\\*\\\\*settings: as for ``generate``.']
    """
    result: list[str] = []
    in_section, wrapped = False, False
    for line in lines:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if text and indent == 0:
            in_section = text in ("Args:", "Attributes:")
        names = text.partition(":")[0]
        if wrapped:
            line = f"{result.pop()} {text}"
            names = line.strip().partition(":")[0]
        wrapped = in_section and (indent == 2 or wrapped) and ":" not in line and bool(text)
        if in_section and not wrapped and ":" in line and "," in names and "**" in names:
            line = line.replace("**", "\\*\\*", 1)
        result.append(line)
    return result
