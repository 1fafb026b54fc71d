"""What the programs of this folder share. Each runs in its project's own environment.

Besides its project, a program needs NumPy alone, and this file. It reads the rows of the audit that
it is to run from a JSON file, and writes what it has counted to another:

    python projects/PROGRAM.py REQUEST.json ANSWER.json
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, Any]
# Runs a case and returns its tokens, int ``[samples]`` or ``[samples, n]``, or its texts.
Sampler = Callable[[Case, int], Any]


def main(samplers: dict[str, Sampler]) -> None:
    """Runs the requested rows, each a path of ``samplers`` with a case and a number of samples."""
    request, answer = (Path(argument) for argument in sys.argv[1:3])
    counted = []
    for row in json.loads(request.read_text()):
        begin = time.perf_counter()
        case = {**row["case"], "seed": row["seed"]}
        tokens = samplers[row["path"]](case, row["samples"])
        counts = count(row["case"], np.asarray(tokens)).tolist()
        counted.append({"counts": counts, "seconds": time.perf_counter() - begin})
    answer.write_text(json.dumps(counted))


def vocab_size(case: Case) -> int:
    return len(case["table"] if "table" in case else case["logits"])


def settings(case: Case, **defaults: Any) -> dict[str, Any]:
    """The settings of a case, completed by what a project takes for none."""
    return {**defaults, **case.get("settings", {})}


def table(case: Case) -> np.ndarray:
    """The logits of the token after each token, float32 ``[V, V]``."""
    size = vocab_size(case)
    rows = case["table"] if "table" in case else [case["logits"]] * size
    return np.asarray(rows, np.float32)


def draft_table(case: Case) -> np.ndarray:
    rows = case["draft_table"] if "draft_table" in case else [case["draft"]] * vocab_size(case)
    return np.asarray(rows, np.float32)


def count(case: Case, tokens: np.ndarray) -> np.ndarray:
    """How often each outcome of a case occurred."""
    size = vocab_size(case)
    if case["kind"] == "language":
        return np.bincount(
            [outcome(case, text) for text in tokens], minlength=len(case["texts"]) + 1
        )
    if case["kind"] == "token":
        return np.bincount(tokens.reshape(-1), minlength=size)
    if case["kind"] in ("pair", "beams"):
        tokens = np.sort(tokens, axis=1)
    pairs = tokens[:, 0] * size + tokens[:, 1]
    return np.bincount(pairs, minlength=size * size).reshape(size, size)


def outcome(case: Case, text: Any) -> int:
    """The number of a text of a ``language``, or the number of texts for every other one.

    Args:
      case: of the kind ``language``.
      text: a string, or token ids, which an end token ends.
    """
    if not isinstance(text, str):
        ids, end = list(text), vocab_size(case) - 1
        text = letters(case, ids[: ids.index(end)]) if end in ids else None
    return case["texts"].index(text) if text in case["texts"] else len(case["texts"])


def letters(case: Case, ids: Sequence[int]) -> str:
    return "".join(case.get("alphabet", "abc")[i] for i in ids)


def length(case: Case) -> int:
    """The number of tokens of the longest text of a ``language``, with its end token."""
    return max(map(len, case["texts"])) + 1


def draw(case: Case, samples: int, sampler: Callable[[Any, np.ndarray], Any]) -> np.ndarray:
    """Calls a JAX sampler once for each of ``samples`` keys.

    Args:
      case: of the kinds ``token``, for which each call has one row, ``pair`` and ``rows``, for
        which it has two.
      samples: the number of keys.
      sampler: from a key and logits ``[B, V]`` to tokens ``[B]``.
    """
    import jax

    rows = 1 if case["kind"] == "token" else 2
    logits = np.tile(np.asarray(case["logits"], np.float32), (rows, 1))
    keys = jax.random.split(jax.random.PRNGKey(case["seed"]), samples)
    return np.asarray(jax.jit(jax.vmap(lambda key: sampler(key, logits)))(keys))


def package(name: str, *folders: str) -> None:
    """Lets a package's modules be imported from a folder without running its ``__init__``."""
    module = types.ModuleType(name)
    module.__path__ = list(folders)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stubs(names: Sequence[str], **attributes: Any) -> None:
    """Modules that a sampler's file imports and that its sampling does not use.

    Whatever is imported from them is an empty class, except for ``attributes``.
    """
    for name in names:
        module = _Stub(name)
        module.__path__ = []
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
        sys.modules[name] = module


def source() -> Path:
    """The checkout beside the environment that this program runs in."""
    return Path(sys.prefix).parent / "source"
