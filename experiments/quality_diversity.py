"""Quality against diversity of many strategies, all at one budget of token forwards.

    python -m experiments.quality_diversity --out runs/quality_diversity

Every held-out sentence is translated many times by the embedded model. A token forward is one
token fed to the decoder. Strategies with lanes or beams are given as many as the budget allows
where each feeds as many tokens as the greedy translation, on average; best-k search is given the
budget itself, which it uses to its end. The table has what was really fed.

S is the number of completions that ended, and ``unique`` counts their different texts. The other
figures are of as many completions as a strategy has lanes, those of the best score if there are
more, and of an empty text if a search completed none; only ``BLEU of all`` is of all completions.
``distinct-n`` divides the distinct n-grams of a sentence's completions by their words. BLEU and
ROUGE-L are of each completion (mean) and of the best of a sentence (oracle). All figures are
averaged over sentences, with 95% intervals by the bootstrap over sentences; so are the differences
from beam search, of the same sentences.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax import transforms
from decoding_jax.estimators import diversity, quality
from decoding_jax.text import Completion, completions, default_stop, encode_batch, unique
from experiments import drawing, held_out, quick
from experiments.papers.results import Estimate, difference, interval, mean
from experiments.results import read_json, write_json

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
FAMILIES = {"beam": "beams", "sample": "samples", "best-k": "best-k search"}
COMPARED = ("BLEU", "BLEU oracle")
BESIDE = "beam search"


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
        "best-5 mean, kappa 0.05": best_k(5, **api.best_k_mean(kappa=0.05)),
        "best-5 last, kappa 0.2": best_k(5, **api.best_k_last(kappa=0.2)),
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
    rows: list[list[Completion]], sentences: list[held_out.Sentence], count: int
) -> dict[str, np.ndarray]:
    """The figures of each sentence for one strategy, of at most ``count`` completions."""
    figures: list[dict[str, float]] = []
    for row, sentence in zip(rows, sentences, strict=True):
        ended = [c for c in row if c.finished]
        every = [c.text for c in ended or row] or [""]
        texts = every[:count]
        figure: dict[str, float] = {"S": len(ended), "unique": len(unique(ended))}
        figure |= {f"distinct-{n}": diversity.distinct_n(texts, n) for n in (1, 2, 3)}
        for name, metric in (("BLEU", quality.bleu), ("ROUGE-L", quality.rouge)):
            scores = [metric(text, sentence.references) for text in texts]
            figure |= {name: sum(scores) / len(scores), f"{name} oracle": max(scores)}
        scores = [quality.bleu(text, sentence.references) for text in every]
        figures.append({**figure, "BLEU of all": sum(scores) / len(scores)})
    return {k: np.asarray([f[k] for f in figures]) for k in figures[0]}


def analyse(found: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, Estimate]]:
    """The means over sentences with their intervals, and the differences from ``BESIDE``."""
    results = {}
    for name, columns in found.items():
        results[name] = {column: interval(mean, values) for column, values in columns.items()}
        for column in COMPARED if BESIDE in found else ():
            both = [columns[column]], [found[BESIDE][column]]
            results[name][f"{column}, above {BESIDE}"] = difference(mean, *both)
    return results


def plot(data: dict[str, Any], path: Path) -> None:
    """Mean BLEU, and the oracle's, over distinct-2, and the differences from beam search."""
    figure, axes = drawing.panels(2, 2, 8.6)
    results = data["results"]
    names = list(results)
    count = data["count"]
    titles = {
        "BLEU": f"mean BLEU of {count} completions",
        "BLEU oracle": f"BLEU of the best of {count}",
    }
    for ax, (column, title) in zip(axes, titles.items(), strict=False):
        for family, label in FAMILIES.items():
            mine = [name for name in names if data["families"][name] == family]
            x, y = ([results[name][key] for name in mine] for key in ("distinct-2", column))
            style: dict[str, Any] = {"label": label, "elinewidth": 0.7, "capsize": 0}
            style["xerr"] = drawing.error(x)
            drawing.intervals(ax, [value for value, *_ in x], y, label, **style)
        drawing.numbers(ax, [(results[n]["distinct-2"][0], results[n][column][0]) for n in names])
        ax.set_xlabel("distinct-2")
        ax.set_ylabel(title)
    axes[0].legend(handlelength=1.2, fontsize=9)
    rows = [f"{i + 1}  {name}" for i, name in enumerate(names)]
    for ax, labels, (column, title) in zip(
        axes[2:], (rows, [str(i + 1) for i in range(len(rows))]), titles.items(), strict=True
    ):
        found = [results[name].get(f"{column}, above {BESIDE}") for name in names]
        shown = [None if n == BESIDE else x for n, x in zip(names, found, strict=True)]
        drawing.differences(ax, labels, [shown], [title])
        ax.set_xlabel(
            f"{column.removeprefix('BLEU ') if ' ' in column else column},\nabove {BESIDE}"
        )
    drawing.save(figure, path)


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
            parser.error(f"--strategies: expected {', '.join(known)}, got {name!r}")
    args.out.mkdir(parents=True, exist_ok=True)

    everything = held_out.read()
    sentences = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    task = Task(args.model, sentences, args.max_new_tokens)
    with tqdm(total=0, unit="batch", disable=True) as bar:
        _, length = task.decode(decoding_jax.greedy, fed_by_lanes, bar)
    count = max(1, int(args.budget / length))
    chosen = strategies(count, args.budget)
    chosen = {name: chosen[name] for name in args.strategies or chosen}

    found, fed_tokens = {}, {}
    with tqdm(total=len(chosen) * -(-len(sentences) // BATCH), unit="batch") as bar:
        for name, (_, run, fed) in chosen.items():
            bar.set_postfix_str(name)
            rows, fed_tokens[name] = task.decode(run, fed, bar)
            found[name] = measured(rows, sentences, count)
    results = analyse(found)
    print(
        f"{len(sentences)} sentences, {args.budget} token forwards each; {count} lanes or beams "
        f"(greedy feeds {length:.1f})"
    )
    columns = list(next(iter(found.values())))
    print(f"{'':24}" + "".join(f"{c:>15}" for c in ("fed", *columns)))
    for name, result in results.items():
        digits = [3 if c.startswith("distinct") else 1 for c in columns]
        print(
            f"{name:24}{fed_tokens[name]:15.1f}"
            + "".join(f"{result[c].value:15.{d}f}" for c, d in zip(columns, digits, strict=True))
        )
    data = {
        "sentences": len(sentences),
        "budget": args.budget,
        "count": count,
        "families": {name: family for name, (family, _, _) in chosen.items()},
        "fed": fed_tokens,
        "results": results,
    }
    file = args.out / "quality_diversity.json"
    write_json(file, data)
    plot(read_json(file), args.out / "quality_diversity.png")


if __name__ == "__main__":
    main()
