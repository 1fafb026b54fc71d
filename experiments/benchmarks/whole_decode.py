"""Whole decodes of the embedded model, beside ``transformers`` on the same weights.

Both decode the same random inputs to the same number of tokens, no end token stopping them, in one
process, interleaved; the figures are medians, and the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax.text import encode_batch
from experiments import drawing
from experiments.benchmarks.beside import torch_inputs, transformers_t5
from experiments.benchmarks.timing import (
    interleaved,
    median_ratio,
    quartiles,
    quartiles_of_ratios,
)
from experiments.results import write_json

MODEL = "translation-en-fr"
SOURCE_TOKENS = 16
NAMES = ("transformers", "decoding_jax")
CASES = [(batch, samples) for batch in (1, 8) for samples in (0, 1, 8)]


def ours(ids: np.ndarray, samples: int, new_tokens: int) -> Callable[[], object]:
    """A decode by this library; greedy where ``samples`` is 0."""
    model, _ = decoding_jax.load(MODEL)
    bound, prompt = encode_batch(model, ids.tolist(), ids.shape[1])
    key = jax.random.key(0)

    def run() -> None:
        if samples == 0:
            output = decoding_jax.greedy(bound, prompt, max_new_tokens=new_tokens)
        else:
            output = decoding_jax.sample(
                bound, prompt, key, num_samples=samples, max_new_tokens=new_tokens
            )
        jax.block_until_ready(output)

    return run


def theirs(ids: np.ndarray, samples: int, new_tokens: int) -> Callable[[], object]:
    """The same decode by ``transformers``, in float32 on as many threads as there are cores."""
    import torch

    model, inputs = transformers_t5(MODEL), torch_inputs(ids)
    settings = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "use_cache": True}
    if samples:
        settings |= {"do_sample": True, "top_k": 0, "num_return_sequences": samples}

    def run() -> None:
        with torch.inference_mode():
            model.generate(**inputs, **settings)

    return run


def plot(rows: list[dict], path: Path) -> None:
    """How many times faster, with the middle half of the runs."""
    figure, (ax,) = drawing.panels(height=3.2)
    at = np.arange(len(rows))
    drawing.intervals(ax, at, [r["quartiles"]["speedup"] for r in rows], "decoding_jax")
    ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    ax.set_xticks(at, [f"{r['strategy'].replace(' ', chr(10))}\nbatch {r['batch']}" for r in rows])
    ax.set_ylim(0)
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.set_ylabel(f"time for {rows[0]['new_tokens']} tokens:\n" + " / ".join(NAMES))
    drawing.save(figure, path)


def measure(
    out: Path,
    repeats: int = 9,
    new_tokens: int = 32,
    cases: Sequence[tuple[int, int]] = CASES,
) -> None:
    """Times all cases, prints a table, and writes ``whole_decode.json`` and ``.png``."""
    out.mkdir(parents=True, exist_ok=True)

    rng = np.random.default_rng(0)
    rows = []
    for batch, samples in tqdm(cases):
        ids = rng.integers(3, 8000, (batch, SOURCE_TOKENS)).astype(np.int32)
        seconds = interleaved(
            {
                "decoding_jax": ours(ids, samples, new_tokens),
                "transformers": theirs(ids, samples, new_tokens),
            },
            repeats,
        )
        rows.append(
            {
                "strategy": f"sample x{samples}" if samples else "greedy",
                "batch": batch,
                "new_tokens": new_tokens,
                **{name: statistics.median(values) for name, values in seconds.items()},
                "speedup": median_ratio(seconds, *NAMES),
                "quartiles": {
                    **{name: quartiles(values) for name, values in seconds.items()},
                    "speedup": quartiles_of_ratios(seconds, *NAMES),
                },
            }
        )
    print("strategy    batch   transformers   decoding_jax   speed-up")
    for r in rows:
        print(
            f"{r['strategy']:10}  {r['batch']:5d}   {r['transformers'] * 1e3:9.1f} ms"
            f"   {r['decoding_jax'] * 1e3:9.1f} ms   {r['speedup']:8.2f}"
        )
    write_json(out / "whole_decode.json", rows)
    plot(rows, out / "whole_decode.png")
