"""How much less the mean of N arithmetic samples varies than that of N independent ones.

    python -m experiments.arithmetic_variance --out runs/variance

Every held-out sentence is decoded in many repeated runs, N samples each. The figure is the
standard deviation over runs of mean sentence-BLEU: of the mean over samples, then over sentences.
Sentences have keys of their own, so its square is the mean of the sentences' variances, divided by
their number; the 95% confidence interval of the ratio resamples sentences (bootstrap).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax
import matplotlib
import numpy as np
import sacrebleu
from tqdm import tqdm

import decoding_jax
from decoding_jax.text import completions, default_stop, encode_batch
from experiments import held_out, quick

matplotlib.use("Agg")
from matplotlib import pyplot as plt

STRATEGIES = {"independent": "iid", "arithmetic": "lattice"}
QUICK = {"model": quick.MODEL, "sentences": 2, "runs": 2, "num_samples": [2]}


def bleu_means(
    name: str,
    sentences: list[held_out.Sentence],
    points: str,
    count: int,
    runs: int,
    seed: int,
    bar: tqdm,
) -> np.ndarray:
    """Mean sentence-BLEU of ``count`` samples of a model: float64 ``[sentences, runs]``."""
    model, tokenizer = decoding_jax.load(name)
    stop = default_stop(tokenizer)
    ids = [tokenizer.encode(s.english) for s in sentences]
    width = max(len(row) for row in ids)
    key = jax.random.fold_in(jax.random.key(seed), count)
    means = np.zeros((len(sentences), runs))
    for i, sentence in enumerate(sentences):

        @cache
        def bleu(text: str, references: tuple[str, ...] = tuple(sentence.references)) -> float:
            return sacrebleu.sentence_bleu(text, list(references)).score

        # The runs of a sentence are the rows of one batch.
        bound, prompt = encode_batch(model, [ids[i]] * runs, width)
        keys = jax.random.split(jax.random.fold_in(key, i), runs)
        output = decoding_jax.arithmetic_sample(
            bound, prompt, keys, num_samples=count, points=points, max_new_tokens=32, stop=stop
        )
        for run, row in enumerate(completions(tokenizer, jax.device_get(output), runs)):
            means[i, run] = np.mean([bleu(c.text) for c in row])
        bar.update()
    return means


def ratio_interval(
    ours: np.ndarray, theirs: np.ndarray, rng: np.random.Generator, resamples: int = 4000
) -> tuple[float, float, float]:
    """Ratio of the standard deviations of the mean over sentences, and its 95% interval."""
    ours, theirs = ours.var(axis=1, ddof=1), theirs.var(axis=1, ddof=1)
    pick = rng.integers(0, len(ours), (resamples, len(ours)))
    ratios = np.sqrt(ours[pick].sum(1) / theirs[pick].sum(1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.sqrt(ours.sum() / theirs.sum())), float(low), float(high)


def plot(rows: list[dict], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    counts = [r["num_samples"] for r in rows]
    for name, marker in (("independent", "o"), ("arithmetic", "s")):
        axes.plot(counts, [r[name] for r in rows], marker=marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(c) for c in counts])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.set_xlabel("samples a sentence")
    axes.set_ylabel("standard deviation of mean BLEU")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="translation-en-fr", help="a directory, or a name")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--num_samples", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    args.out.mkdir(parents=True, exist_ok=True)

    everything = held_out.read()
    sentences = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    rng = np.random.default_rng(args.seed)
    rows = []
    total = len(sentences) * len(args.num_samples) * len(STRATEGIES)
    with tqdm(total=total, unit="sentence") as bar:
        for count in args.num_samples:
            means = {
                name: bleu_means(
                    args.model, sentences, points, count, args.runs, args.seed + s, bar
                )
                for s, (name, points) in enumerate(STRATEGIES.items())
            }
            ratio, low, high = ratio_interval(means["arithmetic"], means["independent"], rng)
            row = {"num_samples": count, "ratio": ratio, "low": low, "high": high}
            for name, values in means.items():
                variance = values.var(axis=1, ddof=1).sum() / len(sentences) ** 2
                row |= {name: float(np.sqrt(variance)), f"{name}_mean": float(values.mean())}
            rows.append(row)
    print(f"{len(sentences)} sentences, {args.runs} runs; standard deviation of mean BLEU")
    print("  N   independent   arithmetic   ratio   95% interval      means")
    for r in rows:
        print(
            f"{r['num_samples']:3d}   {r['independent']:11.4f}   {r['arithmetic']:10.4f}"
            f"   {r['ratio']:5.3f}   [{r['low']:.3f}, {r['high']:.3f}]"
            f"   {r['independent_mean']:.2f} {r['arithmetic_mean']:.2f}"
        )
    settings = {"sentences": len(sentences), "runs": args.runs, "seed": args.seed}
    (args.out / "variance.json").write_text(json.dumps({**settings, "rows": rows}, indent=2) + "\n")
    plot(rows, args.out / "variance.png")


if __name__ == "__main__":
    main()
