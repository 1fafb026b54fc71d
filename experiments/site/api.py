"""The pages of the public names: one for each name of each package's ``__all__``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
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

_INTRODUCTION = """\
Every name has a page with its arguments, their types, shapes, errors and source; the tests run the
examples.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yields the name of each page and its text, in Markdown."""
    documented: dict[int, str] = {}
    index = ["# Public names\n", _INTRODUCTION]
    for package, title in PACKAGES.items():
        names, described, others, listed = [], [], [], []
        for member, value in _members(package):
            name = f"{package}.{member}"
            listed.append(f"{{py:obj}}`{member} <{documented.get(id(value), name)}>`")
            if id(value) in documented:
                others.append(f"- `{member}` is {{py:obj}}`{documented[id(value)]}`")
                continue
            documented[id(value)] = name
            names.append(f"names/{name}")
            second = [other for other, same in _members(package) if same is value][1:]
            yield f"names/{name}", _page(name, value, second)
            if isinstance(value, dict):  # it has no docstring of its own
                others.append(f"- {{py:obj}}`{name}` is a table of names")
            else:
                described.append(name)
        yield package, _summary(package, title, names, described, others)
        index.append(
            f"## [{title}]({package}.md)\n\n{', '.join(sorted(listed, key=str.swapcase))}\n"
        )
    yield "index", "\n".join([*index, _contents(PACKAGES)])


def write(folder: Path) -> None:
    """Writes the pages into a folder, those that have changed, and removes any others."""
    written = set()
    for name, text in pages():
        path = folder / f"{name}.md"
        written.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in set(folder.rglob("*.md")) - written:
        path.unlink()


def origin(app: Any, package: str | None, name: str) -> str | None:
    """The module in which a compiled strategy is written, for ``viewcode-follow-imported``.

    It is None for names that say their modules themselves.
    """
    value: Any = getattr(sys.modules.get(package or ""), name, None)
    strategy = getattr(value, "strategy", None)
    return strategy.__module__ if inspect.isfunction(value) and strategy is not None else None


def _members(package: str) -> list[tuple[str, Any]]:
    """The names of a package and what they stand for; a class comes by its own name first."""
    module = importlib.import_module(package)
    members = [(member, getattr(module, member)) for member in module.__all__]
    members = [(m, v) for m, v in members if not (inspect.ismodule(v) and _has_page(v))]
    return sorted(members, key=lambda pair: (getattr(pair[1], "__name__", "") != pair[0], pair[0]))


def _summary(
    package: str, title: str, names: list[str], described: list[str], others: list[str]
) -> str:
    """The page of a package: a line for each name that is described, and a list of the others."""
    table = [".. autosummary::", "   :nosignatures:", "", *(f"   ~{name}" for name in described)]
    head = [f"# {title}", "", f"`{package}`", "", "```{eval-rst}", *table, "```", ""]
    return "\n".join([*head, *others, "", _contents(names)])


def _contents(names: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```", ""])


def _page(name: str, value: Any, second: list[str]) -> str:
    """The page of a name and of its second names, with the directive that describes it."""
    package, _, member = name.rpartition(".")
    names = ", also ".join(f"`{name}`" for name in [name, *(f"{package}.{n}" for n in second)])
    title = ", ".join([member, *second])
    return f"# {title}\n\n{names}\n\n```{{eval-rst}}\n{_description(name, value)}```\n"


def _description(name: str, value: Any) -> str:
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:\n"
    if isinstance(value, dict):
        names = ", ".join(f"``{key}``" for key in value)
        return f".. py:data:: {name}\n\n   A table of names: {names}.\n"
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {name}\n"


def _has_page(module: ModuleType) -> bool:
    """Whether a module is, or has modules that are, described on a page of its own."""
    return any(f"{name}.".startswith(f"{module.__name__}.") for name in PACKAGES)
