"""Best-k search beside a beam search of the same budget: k = b hypotheses a call, C = b T in all.

Both decode the same random inputs with the same weights, no end token stopping them, in one
process, interleaved; the figures are medians, and medians of the ratios of neighbouring runs. The
slots of the cache that best-k search wrote are set beside those that it held.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax.text import encode_batch
from experiments import drawing
from experiments.benchmarks.timing import interleaved, median_ratio, quartiles_of_ratios
from experiments.results import write_json

MODEL = "translation-en-fr"
SOURCE_TOKENS = 16
POINTS = [(batch, width, length) for length in (32, 128) for width in (4, 8) for batch in (1, 8)]
KAPPAS = (0.0, 0.2)


def searches(ids: np.ndarray, width: int, new_tokens: int) -> dict[str, Callable[[], Any]]:
    """The beam search, and best-k search without and with decay."""
    model, _ = decoding_jax.load(MODEL)
    bound, prompt = encode_batch(model, ids.tolist(), ids.shape[1])

    def beam() -> Any:
        output = decoding_jax.beam_search(bound, prompt, beam_size=width, max_new_tokens=new_tokens)
        return jax.block_until_ready(output)

    def best_k(kappa: float) -> Any:
        output = decoding_jax.best_k_search(
            bound,
            prompt,
            k=width,
            budget=width * new_tokens,
            max_new_tokens=new_tokens,
            decay=kappa,
        )
        return jax.block_until_ready(output)

    found = {f"best-k {kappa}": lambda kappa=kappa: best_k(kappa) for kappa in KAPPAS}
    return {"beam": beam, **found}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time of best-k search over that of the beam search, with the middle half of the runs."""
    figure, (ax,) = drawing.panels(height=3.8)
    for i, kappa in enumerate(KAPPAS):
        found = [r["quartiles"][f"best-k {kappa}"] for r in rows]
        at = np.arange(len(rows)) + drawing.shifts(len(KAPPAS), 0.25)[i]
        drawing.intervals(ax, at, found, i, label=f"kappa = {kappa:g}")
    ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    ax.set_ylim(0)
    words = [f"batch {r['batch']}\nwidth {r['width']}\n{r['new_tokens']}" for r in rows]
    ax.set_xticks(range(len(rows)), words, fontsize=9)
    ax.set_xlabel("tokens of a text, in the last line")
    ax.set_ylabel("time of best-k search / beam search")
    ax.legend(ncols=2, handlelength=1.2, loc="lower right")
    drawing.save(figure, path)


def measure(out: Path, repeats: int = 5, points: list[tuple[int, int, int]] | None = None) -> None:
    """Times all points, prints a table, and writes ``best_k.json`` and ``.png``."""
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = []
    for batch, width, new_tokens in tqdm(POINTS if points is None else points):
        ids = rng.integers(3, 8000, (batch, SOURCE_TOKENS)).astype(np.int32)
        runs = searches(ids, width, new_tokens)
        seconds = interleaved(runs, repeats)
        info = runs[f"best-k {KAPPAS[0]}"]().info
        row: dict[str, Any] = {"batch": batch, "width": width, "new_tokens": new_tokens}
        row |= {name: statistics.median(values) for name, values in seconds.items()}
        row["quartiles"] = {}
        for kappa in KAPPAS:
            name = f"best-k {kappa}"
            row[f"{name} over beam"] = median_ratio(seconds, name, "beam")
            row["quartiles"][name] = quartiles_of_ratios(seconds, name, "beam")
        row |= {
            "model_calls": int(info.model_calls),
            "slots_used": float(np.mean(info.slots_used)),
            "slots_held": int(info.slots_held),
        }
        rows.append(row)
    print("batch  b    T       beam   " + "   ".join(f"best-k {k} (times)" for k in KAPPAS), end="")
    print("   calls   slots used/held")
    for r in rows:
        print(
            f"{r['batch']:5d} {r['width']:2d} {r['new_tokens']:4d} {r['beam'] * 1e3:7.1f} ms",
            end="",
        )
        for kappa in KAPPAS:
            name = f"best-k {kappa}"
            print(f"   {r[name] * 1e3:7.1f} ms ({r[f'{name} over beam']:.2f})", end="")
        print(f"   {r['model_calls']:5d}   {r['slots_used']:6.1f}/{r['slots_held']}")
    write_json(out / "best_k.json", rows)
    plot(rows, out / "best_k.png")
