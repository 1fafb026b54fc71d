"""The table of what each strategy needs, and where tests count and certify it.

Nothing in the table is written by hand. What a strategy needs of a model is found by tracing it
with models that lack something, the meshes are those whose compiled programs the test suite
counts, and certified is what is in the last full run of the certificate.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Prompt
from decoding_jax.registry import STRATEGIES
from decoding_jax.shell.options import settings_of
from decoding_jax.strategies.beam import Constraints
from decoding_jax.testing import TableLM

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- the strategies begin -->", "<!-- the strategies end -->"


def write(page: Path) -> None:
    """Writes the table between two marks of a page.

    Args:
      page: a Markdown file with the lines ``BEGIN`` and ``END``.
    """
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


def table() -> str:
    """The table, in Markdown."""
    counted = json.loads((ROOT / "tests/sharding/tpu_programs.json").read_text())
    certificate = json.loads((ROOT / "docs/certificate.json").read_text())
    if certificate["failures"]:
        raise ValueError("certificate.json: got failures; the page says that there are none")
    on_mesh = {name.split(",")[0] for name in counted}
    certified = {name.split("/")[0] for name in certificate["cases_by_strategy"]}
    lines = [
        "| strategy | random | appending | own positions | trees | job | counted | certified |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    kinds = models()
    for name, strategy in sorted(STRATEGIES.items()):
        drafter = {"drafter": kinds[-1]} if strategy.drafts else {}
        made: Any = strategy.strategy
        steps = made(**drafter, **_settings(name))
        columns = [
            strategy.draws,
            *(runs_on(name, model) for model in kinds),
            steps.refills,
            name in on_mesh,
            name in certified,
        ]
        said = " | ".join("yes" if value else "no" for value in columns)
        lines.append(f"| `{name}` | {said} |")
    return "\n".join(lines)


def models() -> list[TableLM]:
    """Models that append, that have positions of their own, and that have trees."""
    table = TableLM.random(jax.random.key(0), 5)
    return [table.lockstep(), dataclasses.replace(table, tree=False), table]


def runs_on(name: str, model: TableLM) -> bool:
    """Whether a strategy takes such a model; it is traced, and nothing is compiled.

    Example:
      >>> [runs_on("best_first_search", model) for model in models()]
      [False, False, True]
    """
    strategy = STRATEGIES[name]
    prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
    drafter = (models()[-1],) if strategy.drafts else ()
    keys = (jax.random.key(0),) if strategy.draws else ()
    settings = _settings(name)
    try:
        jax.eval_shape(lambda: strategy.function(model, *drafter, prompt, *keys, **settings))
    except ValueError as error:
        if str(error).startswith("model: "):
            return False
        raise
    return True


def _settings(name: str) -> dict[str, Any]:
    """Settings for a short call."""
    settings = {**settings_of(name), "max_new_tokens": 2}
    if "constraints" in inspect.signature(STRATEGIES[name].function).parameters:
        settings["constraints"] = Constraints(phrases=((1,),))
    return settings
