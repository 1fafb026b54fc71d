"""Reads the code blocks of the documentation pages."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "gin/*.md", "decoding_jax/**/*.md", "experiments/**/*.md")
    for page in ROOT.glob(pattern)
)


class Block(NamedTuple):
    """A fenced block: its page, the number of its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    found, opened, lines = [], None, (ROOT / page).read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = line.lstrip().startswith("```")
        if fence and opened is None:
            opened = number, line.strip().removeprefix("```").strip()
        elif fence:
            start, language = opened
            text = textwrap.dedent("\n".join(lines[start : number - 1]) + "\n")
            found.append(Block(page, start + 1, language, text))
            opened = None
    assert opened is None, f"{page}: the block below line {opened} has no end"
    return found


def commands(block: Block) -> list[str]:
    """Returns the commands of a shell block with their continued lines, without comments.

    A block with a loop is one command.
    """
    if "\ndone\n" in block.text:
        return [block.text]
    whole = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in whole if line.strip() and not line.startswith("#")]


def links(page: str) -> list[str]:
    """Returns the targets of the links of a page, code excluded."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    return re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", text))
