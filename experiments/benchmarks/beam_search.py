"""Beam search on a tree, beside the same driver with ``select``, and beside ``transformers``.

All decode the same random inputs with the same weights to the same number of tokens, no end token
stopping them, in one process, interleaved; the figures are medians, and medians of the ratios of
neighbouring runs.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax import Stop
from decoding_jax.pytrees import pytree
from decoding_jax.text import encode_batch
from experiments import drawing
from experiments.benchmarks.beside import torch_inputs, transformers_t5
from experiments.benchmarks.timing import interleaved, median_ratio
from experiments.results import write_json

MODEL = "translation-en-fr"
SOURCE_TOKENS = 16
NAMES = {"transformers": "transformers", "select": "lanes gathered at every step (select)"}
BATCHES, WIDTHS, LENGTHS = (1, 8), (4, 16), (128, 512)


@pytree
@dataclasses.dataclass(frozen=True)
class WithoutTrees:
    """A model whose hypotheses have lanes of their own, gathered by ``select`` at every step."""

    model: Any
    tree = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def select(self, cache: Any, lanes: Any) -> Any:
        return self.model.select(cache, lanes)


Run = Callable[[int], object]
"""Decodes that many tokens, at most those it was made for."""


def ours(ids: np.ndarray, width: int, new_tokens: int, *, tree: bool) -> Run:
    model, _ = decoding_jax.load(MODEL)
    bound, prompt = encode_batch(model, ids.tolist(), ids.shape[1])
    bound = bound if tree else WithoutTrees(bound)

    def run(count: int) -> None:
        # The limit of a row is a number, not a shape: a short run warms up the same program.
        output = decoding_jax.beam_search(
            bound,
            prompt,
            beam_size=width,
            num_return=1,
            max_new_tokens=new_tokens,
            stop=Stop(max_new_tokens=count),
        )
        jax.block_until_ready(output)

    return run


def theirs(ids: np.ndarray, width: int) -> Run:
    """The same search by ``transformers``, in float32 on as many threads as there are cores."""
    import torch

    model, inputs = transformers_t5(MODEL), torch_inputs(ids)
    settings: dict[str, Any] = {"num_beams": width, "do_sample": False, "use_cache": True}
    settings |= {"length_penalty": 0.0, "eos_token_id": None}

    def run(count: int) -> None:
        with torch.inference_mode():
            model.generate(**inputs, max_new_tokens=count, **settings)

    return run


def plot(rows: list[dict], path: Path) -> None:
    """How many times as long as on a tree the others take."""
    figure, (ax,) = drawing.panels(height=4.0)
    at = np.arange(len(rows))
    for i, (name, label) in enumerate(NAMES.items()):
        where = at + drawing.shifts(len(NAMES), 0.4)[i]
        ax.bar(where, [r[f"{name}/tree"] for r in rows], 0.38, label=label, **drawing.bar(name))
    ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    words = [f"batch {r['batch']}\nwidth {r['width']}\n{r['new_tokens']}" for r in rows]
    ax.set_xticks(at, words, fontsize=8)
    ax.set_xlabel("tokens of a text, in the last line")
    ax.set_ylabel("time / that on a tree")
    figure.legend(loc="outside upper center", ncols=1)
    drawing.save(figure, path)


def measure(out: Path, repeats: int = 3, points: list[tuple[int, int, int]] | None = None) -> None:
    """Times all points, prints a table, and writes ``beam_search.json`` and ``.png``.

    Args:
      out: folder.
      repeats: of every run at 128 tokens; fewer, one at least, where texts are longer.
      points: batch, width and length of each; all by default.
    """
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    if points is None:
        points = [(b, k, n) for n in LENGTHS for k in WIDTHS for b in BATCHES]
    rows = []
    print("batch  width  length   transformers        select          tree   over tree")
    for batch, width, new_tokens in tqdm(points, "beam search"):
        ids = rng.integers(3, 8000, (batch, SOURCE_TOKENS)).astype(np.int32)
        runs = {
            "tree": ours(ids, width, new_tokens, tree=True),
            "select": ours(ids, width, new_tokens, tree=False),
            "transformers": theirs(ids, width),
        }
        times = max(repeats * 128 // max(new_tokens, 128), 1)
        seconds = interleaved(
            {name: functools.partial(run, new_tokens) for name, run in runs.items()},
            times,
            {name: functools.partial(run, 4) for name, run in runs.items()},
        )
        row: dict[str, Any] = {"batch": batch, "width": width, "new_tokens": new_tokens}
        row |= {name: statistics.median(values) for name, values in seconds.items()}
        for name in ("transformers", "select"):
            row[f"{name}/tree"] = median_ratio(seconds, name, "tree")
        rows.append(row)
        step = {n: row[n] * 1e3 / new_tokens for n in ("transformers", "select", "tree")}
        tqdm.write(
            f"{batch:5d}  {width:5d}  {new_tokens:6d}   "
            + "   ".join(f"{ms:8.2f} ms" for ms in step.values())
            + f"   {row['transformers/tree']:.2f} {row['select/tree']:.2f}"
        )
        write_json(out / "beam_search.json", rows)
        plot(rows, out / "beam_search.png")
