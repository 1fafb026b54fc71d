"""Eight samples from a lattice beside eight independent ones, of one text: the README's picture.

Of each text that was drawn, the picture has its number of samples by both ways, as dots, beside
eight times its probability, as a bar. One key draws both.

    python -m experiments.eight_samples --out runs/eight_samples
    python -m experiments.figures eight_samples.svg
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import decoding_jax
from decoding_jax import transforms
from experiments import drawing, quick
from experiments.results import write_json

WAYS = {"lattice": "arithmetic_sample", "independent": "sample"}
QUICK = {"model": quick.MODEL, "samples": 2}


def measure(model: str, text: str, samples: int, temperature: float, seed: int) -> dict[str, Any]:
    """Draws the samples: the number of each text by both ways, and its probability."""
    loaded = decoding_jax.load(model)
    counts: dict[str, Counter[str]] = {}
    probability: dict[str, float] = {}
    for way, strategy in WAYS.items():
        [row] = decoding_jax.generate(
            *loaded,
            [text],
            strategy=strategy,
            num_samples=samples,
            key=jax.random.key(seed),
            transform=transforms.temperature(temperature),
            with_sample_log_prob=True,
        )
        counts[way] = Counter(one.text for one in row)
        for one in row:
            assert one.sample_log_prob is not None
            probability[one.text] = math.exp(float(one.sample_log_prob.sum()))
    texts = sorted(probability, key=lambda text: -probability[text])
    rows = [
        {"text": text, "probability": probability[text], **{w: counts[w][text] for w in WAYS}}
        for text in texts
    ]
    settings = {"model": model, "text": text, "samples": samples, "temperature": temperature}
    return {**settings, "seed": seed, "rows": rows}


def plot(results: dict[str, Any], path: Path) -> None:
    """A line for each text: N p as a bar, and a dot for each sample, by both ways."""
    rows, count = results["rows"], results["samples"]
    figure, panels = drawing.panels(columns=2, height=0.9 + 0.28 * len(rows))
    expected = [count * row["probability"] for row in rows]
    most = max([*expected, *(row[way] for row in rows for way in WAYS)])
    for ax, way in zip(panels, WAYS, strict=True):
        ax.barh(range(len(rows)), expected, height=0.8, color=drawing.GREY, alpha=0.45, lw=0)
        for y, row in enumerate(rows):
            at = [i + 0.5 for i in range(row[way])]
            ax.plot(at, [y] * len(at), linestyle="none", **drawing.look(way))
        ax.set_title(f"{count} of a lattice" if way == "lattice" else f"{count} independent")
        ax.set_xlim(0, most + 0.2)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xticks([])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    panels[0].set_yticks(range(len(rows)), [row["text"] for row in rows])
    panels[1].set_yticks([])
    figure.supxlabel(f"bars: {count} times the probability", fontsize=10, color=drawing.GREY)
    drawing.save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--model", default="translation-en-fr")
    parser.add_argument("--text", default="Could you help me, please?")
    parser.add_argument("--samples", type=int, default=8, help="of each way")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    found = measure(args.model, args.text, args.samples, args.temperature, args.seed)
    for row in found["rows"]:
        drawn = "  ".join(f"{row[way]}" for way in WAYS)
        print(f"{args.samples * row['probability']:6.3f}  {drawn}  {row['text']}")
    write_json(args.out / "eight_samples.json", found)
    plot(found, args.out / "eight_samples.svg")


if __name__ == "__main__":
    main()
