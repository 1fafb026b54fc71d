"""Whole decodes of the embedded model, beside ``transformers`` on the same weights.

    python experiments/benchmarks/whole_decode.py --out runs/whole_decode

Both decode the same random inputs to the same number of tokens, no end token stopping them, in one
process, interleaved; the figures are medians, and the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import matplotlib
import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

import decoding_jax
from decoding_jax.text import embedded, encode_batch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

MODEL = "translation-en-fr"
SOURCE_TOKENS = 16


def ours(ids: np.ndarray, samples: int, new_tokens: int) -> Callable[[], None]:
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


def theirs(ids: np.ndarray, samples: int, new_tokens: int) -> Callable[[], None]:
    """The same decode by ``transformers``, in float32 on as many threads as there are cores."""
    import torch
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(embedded()[MODEL], dtype=torch.float32)
    model.eval()
    inputs = torch.from_numpy(ids.astype(np.int64))
    mask = torch.ones_like(inputs)
    settings = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "use_cache": True}
    if samples:
        settings |= {"do_sample": True, "top_k": 0, "num_return_sequences": samples}

    def run() -> None:
        with torch.inference_mode():
            model.generate(inputs, attention_mask=mask, **settings)

    return run


def interleaved(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every run, taken in turns after one warm-up each."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def plot(rows: list[dict], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    at = np.arange(len(rows))
    for i, name in enumerate(("transformers", "decoding_jax")):
        axes.bar(at + 0.4 * i - 0.2, [r[name] * 1e3 for r in rows], 0.38, label=name)
    axes.set_xticks(at, [f"{r['strategy']}\nbatch {r['batch']}" for r in rows])
    axes.set_ylabel(f"ms for {rows[0]['new_tokens']} tokens")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--new_tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    rng = np.random.default_rng(0)
    cases = [(batch, samples) for batch in (1, 8) for samples in (0, 1, 8)]
    rows = []
    for batch, samples in tqdm(cases):
        ids = rng.integers(3, 8000, (batch, SOURCE_TOKENS)).astype(np.int32)
        seconds = interleaved(
            {
                "decoding_jax": ours(ids, samples, args.new_tokens),
                "transformers": theirs(ids, samples, args.new_tokens),
            },
            args.repeats,
        )
        pairs = zip(seconds["transformers"], seconds["decoding_jax"], strict=True)
        rows.append(
            {
                "strategy": f"sample x{samples}" if samples else "greedy",
                "batch": batch,
                "new_tokens": args.new_tokens,
                **{name: statistics.median(values) for name, values in seconds.items()},
                "speedup": statistics.median(a / b for a, b in pairs),
            }
        )
    print("strategy    batch   transformers   decoding_jax   speed-up")
    for r in rows:
        print(
            f"{r['strategy']:10}  {r['batch']:5d}   {r['transformers'] * 1e3:9.1f} ms"
            f"   {r['decoding_jax'] * 1e3:9.1f} ms   {r['speedup']:8.2f}"
        )
    (args.out / "whole_decode.json").write_text(json.dumps(rows, indent=2) + "\n")
    plot(rows, args.out / "whole_decode.png")


if __name__ == "__main__":
    main()
