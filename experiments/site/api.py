"""The pages of the public names: one for each package, with every name of its ``__all__``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = {
    "decoding_jax": "Strategies, models and texts",
    "decoding_jax.transforms": "Transforms of logits",
    "decoding_jax.strategies.beam": "Parts of beam search",
    "decoding_jax.strategies.best_first": "Parts of best-first search",
    "decoding_jax.strategies.speculative": "Drafters, verifiers and draft lengths",
    "decoding_jax.codes": "Arithmetic codes and point sets",
    "decoding_jax.estimators": "Estimators",
    "decoding_jax.adapters": "Models of your own",
    "decoding_jax.models": "Networks and checkpoints",
    "decoding_jax.text": "Tokenizers, texts and streams",
    "decoding_jax.infer": "The batch job",
    "decoding_jax.sharding": "Meshes",
    "decoding_jax.loop": "The loop, for strategies of your own",
    "decoding_jax.testing": "Tests by enumeration",
    "decoding_jax.t5x.decode_fns": "Decode functions for T5X",
}
"""The packages with their titles, in the order of the site."""


def pages() -> Iterator[tuple[str, str]]:
    """Yields the name of each page and its text, in Markdown."""
    listed = "\n".join(name for name in PACKAGES)
    yield (
        "index",
        "# Public names\n\nEvery name with its arguments, shapes, errors and source; the test suite"
        f" runs the examples.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
    )
    documented: dict[int, str] = {}
    for name, title in PACKAGES.items():
        package = importlib.import_module(name)
        yield name, "\n".join(_page(name, title, package, documented))


def write(folder: Path) -> None:
    """Writes the pages into a folder, those that have changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _page(name: str, title: str, package: ModuleType, documented: dict[int, str]) -> Iterator[str]:
    """The lines of a page. ``documented`` has the full names of what earlier pages describe."""
    yield f"# {title}\n\n`{name}`\n"
    yield "```{eval-rst}"
    # Functions come first, and classes that have a second name by that of the function.
    for member in sorted(package.__all__, key=lambda member: member[0].isupper()):
        value = getattr(package, member)
        if id(value) in documented:
            yield f"* ``{member}``: see :py:obj:`{documented[id(value)]}`\n"
        elif not (inspect.ismodule(value) and _has_page(value)):
            documented[id(value)] = f"{name}.{member}"
            yield _directive(f"{name}.{member}", value)
    yield "```\n"


def _has_page(module: ModuleType) -> bool:
    """Whether a module is, or has modules that are, described on a page of its own."""
    return any(f"{name}.".startswith(f"{module.__name__}.") for name in PACKAGES)


def _directive(name: str, value: Any) -> str:
    """The directive that describes a public name."""
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:\n"
    if isinstance(value, dict):
        names = ", ".join(f"``{key}``" for key in value)
        return f".. py:data:: {name}\n\n   A table of names: {names}.\n"
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {name}\n"
