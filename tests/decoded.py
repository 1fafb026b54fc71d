"""One strategy of each kind of step, called in one way: what the laws of strategies run."""

from __future__ import annotations

from typing import Any

import examples
import jax
import numpy as np

from decoding_jax import DecodeOutput, Prompt, Stop, registry, transforms
from decoding_jax.testing import TableLM

ROWS, VOCAB, LENGTH, END = 3, 5, 5, 0
MODEL = TableLM.random(jax.random.key(0), VOCAB, zeros=0.1)
DRAFT = TableLM.random(jax.random.key(1), VOCAB)
PROMPT = Prompt(
    np.array([[1, 2, 3], [4, 0, 0], [2, 1, 0]], np.int32), np.array([3, 1, 2], np.int32)
)
KEYS = jax.random.split(jax.random.key(2), ROWS)


def limits(*limits: int) -> Stop:
    """The end token of every row, and the limit of each."""
    return Stop(np.full((ROWS, 1), END, np.int32), max_new_tokens=np.array(limits, np.int32))


def warped(allowed: np.ndarray, factor: float = 1) -> Any:
    """A transform with numbers of each row, which leaves the tokens ``[B, V]`` that are True."""
    values = np.array([0.8, 1.3, 1.0], np.float32) * np.float32(factor)
    return transforms.chain(transforms.temperature(values), transforms.allowed_tokens(allowed))


ALL = np.ones((ROWS, VOCAB), bool)
OWN = np.array([0.6, 0.2, 0.9], np.float32)  # a number of each row, for settings that take one

# Settings over those of ``examples.STRATEGIES``.
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {},
    "arithmetic_sample": {"num_samples": 3},
    "beam_search": {"length_penalty": OWN},
    "beam_sample": {},
    "diverse_beam_search": {},
    "stochastic_beam_search": {},
    "contrastive_search": {"penalty_alpha": OWN},
    "best_k_search": {},
    "smc_sample": {},
    "metropolis_sample": {"num_samples": 2, "alpha": 1 + OWN},
    "speculative_sample": {"num_samples": 3},
}


def call(name: str, changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model, drafter, prompt and key of a strategy, and its settings."""
    entry = registry.STRATEGIES[name]
    given = {
        "max_new_tokens": LENGTH,
        "stop": limits(LENGTH, LENGTH, LENGTH - 1),
        "transform": warped(ALL),
        "model": MODEL,
        "drafter": DRAFT if entry.drafts else None,
        "prompt": PROMPT,
        "key": KEYS if entry.draws else None,
        **examples.STRATEGIES[name],
        **SETTINGS[name],
        **changes,
    }
    return {k: given.pop(k) for k in ("model", "drafter", "prompt", "key")}, given


def decode(name: str, **changes: Any) -> DecodeOutput:
    """The output on the host; ``changes`` are settings, or the model, drafter, prompt or key."""
    who, settings = call(name, changes)
    entry = registry.STRATEGIES[name]
    drafter, key = (who["drafter"],) * entry.drafts, (who["key"],) * entry.draws
    return jax.device_get(entry.function(who["model"], *drafter, who["prompt"], *key, **settings))


def rows_of(x: Any, rows: Any) -> Any:
    """Some rows of every array whose first axis is that of rows, and all of any other."""
    return jax.tree.map(lambda a: a[rows] if np.shape(a)[:1] == (ROWS,) else a, x)


def rows_of_call(name: str, rows: Any) -> dict[str, Any]:
    """The ``changes`` by which ``decode`` decodes these rows of a call alone."""
    who, settings = call(name, {})
    return {k: rows_of(v, rows) for k, v in {**who, **settings}.items() if k != "model"}
