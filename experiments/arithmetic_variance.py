"""How much less the mean of N arithmetic samples varies than that of N independent ones.

    python -m experiments.arithmetic_variance --out runs/variance

Every held-out sentence is decoded in many repeated runs, N samples each. The figure is the
standard deviation over runs of mean sentence-BLEU: of the mean over samples, then over sentences.
Sentences have keys of their own, so its square is the mean of the sentences' variances, divided by
their number; the 95% confidence interval of the ratio resamples sentences (bootstrap).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax
import numpy as np
import sacrebleu
from tqdm import tqdm

import decoding_jax
from decoding_jax.text import completions, default_stop, encode_batch
from experiments import held_out, quick
from experiments.papers.arithmetic_estimates import ratio_of_deviations
from experiments.papers.results import interval
from experiments.results import write_json

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


def deviation(variances: np.ndarray) -> np.ndarray:
    """The standard deviation of the mean over sentences, for ``interval``."""
    return np.sqrt(variances.sum(-1)) / variances.shape[-1]


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
            variances = {name: values.var(axis=1, ddof=1) for name, values in means.items()}
            both = variances["arithmetic"], variances["independent"]
            ratio, low, high = interval(ratio_of_deviations, *both, seed=args.seed)
            found = {n: interval(deviation, x, seed=args.seed) for n, x in variances.items()}
            row = {"num_samples": count, "ratio": ratio, "low": low, "high": high}
            row |= {f"{name}_mean": float(values.mean()) for name, values in means.items()}
            rows.append({**row, "deviation": found})
    print(f"{len(sentences)} sentences, {args.runs} runs; standard deviation of mean BLEU")
    print("  N   independent   arithmetic   ratio   95% interval      means")
    for r in rows:
        print(
            f"{r['num_samples']:3d}   {r['deviation']['independent'].value:11.4f}"
            f"   {r['deviation']['arithmetic'].value:10.4f}"
            f"   {r['ratio']:5.3f}   [{r['low']:.3f}, {r['high']:.3f}]"
            f"   {r['independent_mean']:.2f} {r['arithmetic_mean']:.2f}"
        )
    data = {"sentences": len(sentences), "runs": args.runs, "seed": args.seed, "rows": rows}
    write_json(args.out / "variance.json", data)


if __name__ == "__main__":
    main()
