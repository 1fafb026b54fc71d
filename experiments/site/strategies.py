"""The page of what runs where: for each strategy, the models, the batch job, meshes and proofs.

Nothing in the table is written by hand. What a strategy needs of a model is found by tracing it
with models that lack something, the meshes are those whose compiled programs the test suite
counts, and the cases are those of the last full run of the certificate.
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

TITLE = "# What runs where"

LEGEND = """
- **Models.** *Appending*: rows advance in step, and a cache only grows, as in
  `adapters.from_cache` without positions. *Own positions*: each row writes where it is, and can go
  back. *Trees*: a token attends to chosen tokens. All networks of the library (see
  [models](../models.md)) and `adapters.from_logits` have trees.
- **Job.** Whether the [batch job](../infer.md) gives the place of a row that has ended to the next
  input.
- **Mesh.** Whether a test counts what the program for eight TPU chips sends between chips at a
  step, on meshes of 8x1, 2x4 and 1x8. These programs are compiled and not run (see
  [TPUs](../tpu.md)); on meshes of CPUs, every strategy runs in the tests.
- **Certified.** The cases of the last full run of the [certificate](../certificate.md), on {date},
  none of which failed.
"""


def page() -> str:
    """The page, in Markdown."""
    counted = json.loads((ROOT / "tests/sharding/tpu_programs.json").read_text())
    certificate = json.loads((ROOT / "docs/certificate.json").read_text())
    if certificate["failures"]:
        raise ValueError("certificate.json: got failures; the page says that there are none")
    on_mesh = {name.split(",")[0] for name in counted}
    cases: dict[str, int] = {}
    for name, count in certificate["cases_by_strategy"].items():
        strategy = name.split("/")[0]
        cases[strategy] = cases.get(strategy, 0) + count
    lines = [
        f"{TITLE}\n",
        "This table is made from the code and from the committed results when the site is built.\n",
        "| strategy | random | appending | own positions | trees | job | mesh | certified |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    kinds = models()
    for name, strategy in sorted(STRATEGIES.items()):
        drafter = {"drafter": kinds[-1]} if strategy.drafts else {}
        steps = strategy.build_steps(**drafter, **_settings(name))
        columns = [
            _yes(strategy.draws),
            *(_yes(runs_on(name, model)) for model in kinds),
            _yes(steps.row_done is not None),
            _yes(name in on_mesh),
            f"{cases[name]} cases" if name in cases else "no",
        ]
        lines.append(f"| [`{name}`](#decoding_jax.{name}) | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n" + LEGEND.format(date=certificate["date"])


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


def _yes(value: bool) -> str:
    return "yes" if value else "no"
