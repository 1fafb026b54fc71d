"""Quality against diversity of many strategies, all at one budget of token forwards.

    python -m experiments.quality_diversity --out runs/quality_diversity

Every held-out sentence is translated many times by the embedded model. A token forward is one
token fed to the decoder. Strategies with lanes or beams are given as many as the budget allows
where each feeds as many tokens as the greedy translation, on average; best-k search is given the
budget itself, which it uses to its end. The table has what was really fed.

S is the number of completions that ended, and ``unique`` counts their different texts. The other
figures are of as many completions as a strategy has lanes, those of the best score if there are
more, and of an empty text if a search completed none. ``distinct-n`` divides the distinct n-grams
of a sentence's completions by their words. BLEU and ROUGE-L are of each completion (mean) and of
the best of a sentence (oracle). All figures are averaged over sentences.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax import transforms
from decoding_jax.estimators import diversity, quality
from decoding_jax.text import Completion, completions, default_stop, encode_batch, unique
from experiments import held_out, quick

matplotlib.use("Agg")
from matplotlib import pyplot as plt

Decode = Callable[..., decoding_jax.DecodeOutput]
Fed = Callable[[decoding_jax.DecodeOutput], np.ndarray]
BATCH = 16
QUICK = {
    "model": quick.MODEL,
    "sentences": 2,
    "budget": 12,
    "max_new_tokens": 4,
    "strategies": ["beam search", "arithmetic", "best-5"],
}
FAMILIES = {"beam": "o", "sample": "s", "best-k": "^"}


def fed_by_lanes(output: decoding_jax.DecodeOutput) -> np.ndarray:
    """The prompt, and all tokens but each lane's last."""
    return 1 + np.maximum(np.asarray(output.length) - 1, 0).sum(1)


def fed_by_beams(output: decoding_jax.DecodeOutput) -> np.ndarray:
    """The prompt, and a token a beam until the longest that is returned has ended."""
    length = np.asarray(output.length)
    return 1 + length.shape[1] * np.maximum(length.max(1) - 1, 0)


def fed_by_search(output: decoding_jax.DecodeOutput) -> np.ndarray:
    return 1 + np.asarray(output.info.slots_used)


def strategies(count: int, budget: int) -> dict[str, tuple[str, Decode, Fed]]:
    """Every strategy by name: its family, the function, and how to count what it fed.

    Args:
      count: lanes or beams.
      budget: token forwards a sentence.
    """
    api, bind = decoding_jax, functools.partial
    key = jax.random.key(0)

    def drawn(decode: Decode, transform: Any = None) -> tuple[str, Decode, Fed]:
        run = lambda model, prompt, **s: decode(model, prompt, key, transform=transform, **s)  # noqa: E731
        return "sample", bind(run, num_samples=count), fed_by_lanes

    def beams(decode: Decode, **settings: Any) -> tuple[str, Decode, Fed]:
        return "beam", bind(decode, beam_size=count, **settings), fed_by_beams

    def best_k(k: int, **settings: Any) -> tuple[str, Decode, Fed]:
        search = bind(api.best_k_search, k=k, budget=budget, num_return="all", **settings)
        return "best-k", search, fed_by_search

    return {
        "beam search": beams(api.beam_search),
        "diverse beam": beams(api.diverse_beam_search, num_groups=count),
        "sampling": drawn(api.sample),
        "nucleus 0.9": drawn(api.sample, transforms.top_p(0.9)),
        "typical 0.9": drawn(api.sample, transforms.typical(0.9)),
        "arithmetic": drawn(api.arithmetic_sample),
        "best-5": best_k(5),
        "best-5, gamma 0.01": best_k(5, gamma=0.01),
        "best-5 mean": best_k(5, **api.best_k_mean()),
        "best-5 mean, decay 0.05": best_k(5, **api.best_k_mean(kappa=0.05)),
        "best-5 last, decay 0.2": best_k(5, **api.best_k_last(kappa=0.2)),
    }


class Task:
    """The sentences as batches for a model."""

    def __init__(self, name: str, sentences: list[held_out.Sentence], max_new_tokens: int):
        self.model, self.tokenizer = decoding_jax.load(name)
        self.ids = [self.tokenizer.encode(s.english) for s in sentences]
        self.settings = {
            "max_new_tokens": max_new_tokens,
            "stop": default_stop(self.tokenizer),
        }

    def decode(self, run: Decode, fed: Fed, bar: tqdm) -> tuple[list[list[Completion]], float]:
        """Every sentence's completions, and the mean number of tokens that were fed."""
        width = max(len(row) for row in self.ids)
        rows: list[list[Completion]] = []
        tokens = 0
        for first in range(0, len(self.ids), BATCH):
            members = self.ids[first : first + BATCH]
            padded = members + members[:1] * (BATCH - len(members))
            bound, prompt = encode_batch(self.model, padded, width)
            output = jax.device_get(run(bound, prompt, **self.settings))
            rows += completions(self.tokenizer, output, len(members))
            tokens += int(fed(output)[: len(members)].sum())
            bar.update()
        return rows, tokens / len(self.ids)


def measured(
    rows: list[list[Completion]], sentences: list[held_out.Sentence], fed: float, count: int
) -> dict[str, float]:
    """The table's figures for one strategy, of at most ``count`` completions a sentence."""
    figures: list[dict[str, float]] = []
    for row, sentence in zip(rows, sentences, strict=True):
        ended = [c for c in row if c.finished]
        texts = [c.text for c in ended or row][:count] or [""]
        figure: dict[str, float] = {"S": len(ended), "unique": len(unique(ended))}
        figure |= {f"distinct-{n}": diversity.distinct_n(texts, n) for n in (1, 2, 3)}
        for name, metric in (("BLEU", quality.bleu), ("ROUGE-L", quality.rouge)):
            scores = [metric(text, sentence.references) for text in texts]
            figure |= {name: sum(scores) / len(scores), f"{name} oracle": max(scores)}
        figures.append(figure)
    return {"fed": fed} | {k: float(np.mean([f[k] for f in figures])) for k in figures[0]}


def plot(results: dict[str, dict[str, float]], families: dict[str, str], path: Path) -> None:
    """Mean BLEU, and the oracle's, over distinct-2."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    labels = {"BLEU": "mean BLEU of a completion", "BLEU oracle": "BLEU of the best completion"}
    for ax, (column, label) in zip(axes, labels.items(), strict=True):
        for i, (name, result) in enumerate(results.items()):
            marker, colour = FAMILIES[families[name]], plt.get_cmap("tab20")(i)
            at = result["distinct-2"], result[column]
            ax.plot(*at, marker, color=colour, markersize=8, markeredgecolor="black", label=name)
        ax.set_xlabel("distinct-2 of a sentence's completions")
        ax.set_ylabel(label)
        ax.margins(0.1)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="translation-en-fr", help="a directory, or a name")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="some of them")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--budget", type=int, default=100, help="token forwards a sentence")
    parser.add_argument("--max_new_tokens", type=int, default=32)
    args = quick.parse(parser, argv, QUICK)
    for name in args.strategies or []:
        if name not in (known := strategies(1, args.budget)):
            parser.error(f"--strategies: got {name!r}; takes {', '.join(known)}")
    args.out.mkdir(parents=True, exist_ok=True)

    everything = held_out.read()
    sentences = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    task = Task(args.model, sentences, args.max_new_tokens)
    with tqdm(total=0, unit="batch", disable=True) as bar:
        _, length = task.decode(decoding_jax.greedy, fed_by_lanes, bar)
    count = max(1, int(args.budget / length))
    chosen = strategies(count, args.budget)
    chosen = {name: chosen[name] for name in args.strategies or chosen}

    results = {}
    with tqdm(total=len(chosen) * -(-len(sentences) // BATCH), unit="batch") as bar:
        for name, (_, run, fed) in chosen.items():
            bar.set_postfix_str(name)
            rows, tokens = task.decode(run, fed, bar)
            results[name] = measured(rows, sentences, tokens, count)
    print(
        f"{len(sentences)} sentences, {args.budget} token forwards each; {count} lanes or beams "
        f"(greedy feeds {length:.1f})"
    )
    columns = list(next(iter(results.values())))
    print(f"{'':24}" + "".join(f"{c:>15}" for c in columns))
    for name, result in results.items():
        digits = [3 if c.startswith("distinct") else 1 for c in columns]
        print(
            f"{name:24}"
            + "".join(f"{result[c]:15.{d}f}" for c, d in zip(columns, digits, strict=True))
        )
    settings = {"sentences": len(sentences), "budget": args.budget, "count": count}
    (args.out / "quality_diversity.json").write_text(
        json.dumps({**settings, "results": results}, indent=2) + "\n"
    )
    families = {name: family for name, (family, _, _) in chosen.items()}
    plot(results, families, args.out / "quality_diversity.png")


if __name__ == "__main__":
    main()
