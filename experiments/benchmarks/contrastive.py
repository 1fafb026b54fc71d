"""Contrastive search beside greedy decoding, and beside ``transformers`` on the same weights.

A step of contrastive search feeds k candidates in place of one token, so its time over that of
greedy decoding is what the candidates and the comparison of hidden states cost. All decode the same
random inputs to the same number of tokens, in one process, interleaved; the figures are medians,
and medians of the ratios of neighbouring runs. ``transformers`` has the strategy up to version 4;
with a later one its column is left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax.text import encode_batch
from experiments.benchmarks.beside import torch_inputs, transformers_t5
from experiments.benchmarks.timing import interleaved, median_ratio
from experiments.results import write_json

MODEL = "translation-en-fr"
SOURCE_TOKENS = 16
ALPHA = 0.6
POINTS = [(batch, top_k, length) for length in (32, 128) for top_k in (4, 8) for batch in (1, 8)]


def ours(ids: np.ndarray, top_k: int, new_tokens: int) -> dict[str, Callable[[], object]]:
    """Greedy decoding and contrastive search by this library."""
    model, _ = decoding_jax.load(MODEL)
    bound, prompt = encode_batch(model, ids.tolist(), ids.shape[1])

    def greedy() -> object:
        output = decoding_jax.greedy(bound, prompt, max_new_tokens=new_tokens)
        return jax.block_until_ready(output)

    def contrastive() -> object:
        output = decoding_jax.contrastive_search(
            bound, prompt, penalty_alpha=ALPHA, top_k=top_k, max_new_tokens=new_tokens
        )
        return jax.block_until_ready(output)

    return {"greedy": greedy, "contrastive": contrastive}


def theirs(ids: np.ndarray, top_k: int, new_tokens: int) -> Callable[[], object] | None:
    """Contrastive search by ``transformers``, in float32; None where it has none."""
    if not all(importlib.util.find_spec(name) for name in ("transformers", "torch")):
        return None
    if int(importlib.metadata.version("transformers").split(".")[0]) > 4:
        return None
    import torch

    model, inputs = transformers_t5(MODEL), torch_inputs(ids)
    settings: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    settings |= {"do_sample": False, "penalty_alpha": ALPHA, "top_k": top_k}

    def run() -> None:
        with torch.inference_mode():
            model.generate(**inputs, **settings)

    return run


def measure(out: Path, repeats: int = 5, points: list[tuple[int, int, int]] | None = None) -> None:
    """Times all points, prints a table, and writes ``contrastive.json``."""
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = []
    for batch, top_k, new_tokens in tqdm(POINTS if points is None else points):
        ids = rng.integers(3, 8000, (batch, SOURCE_TOKENS)).astype(np.int32)
        runs = ours(ids, top_k, new_tokens)
        if (beside := theirs(ids, top_k, new_tokens)) is not None:
            runs["transformers"] = beside
        seconds = interleaved(runs, repeats)
        row: dict[str, Any] = {"batch": batch, "top_k": top_k, "new_tokens": new_tokens}
        row |= {name: statistics.median(values) for name, values in seconds.items()}
        row["contrastive over greedy"] = median_ratio(seconds, "contrastive", "greedy")
        if beside is not None:
            row["transformers over ours"] = median_ratio(seconds, "transformers", "contrastive")
        rows.append(row)
    print("batch  k    T     greedy   contrastive (times)   transformers (times)")
    for r in rows:
        line = f"{r['batch']:5d} {r['top_k']:2d} {r['new_tokens']:4d} {r['greedy'] * 1e3:7.1f} ms "
        line += f"{r['contrastive'] * 1e3:10.1f} ms ({r['contrastive over greedy']:.2f})"
        if "transformers" in r:
            line += f" {r['transformers'] * 1e3:11.1f} ms ({r['transformers over ours']:.2f})"
        print(line)
    write_json(out / "contrastive.json", rows)
