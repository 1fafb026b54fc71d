"""What votes gain by a model's confidence, and what stopping by it costs, by enumeration.

    python -m experiments.confident_votes --out runs/confident_votes

A process draws tokens given the last one, by a random table. The model has seen some of its
transitions, and its probabilities are their counts plus a constant: after a token that it has
rarely seen, they are even, and it is not confident. Texts have a few tokens, and the last one is
the answer; the right one is that which is the most probable under the process. All texts are
enumerated, so the confidence in each, and where ``models.confident`` would end it, is exact; only
the sets of samples that vote are drawn.

The votes are those of ``estimators``: one for each sample (Wang et al. 2022, arXiv:2203.11171),
weights by confidence and by its lowest running mean, of all samples or the better half (DeepConf,
Fu et al. 2025, arXiv:2508.15260), and votes by rank of self-certainty (Kang et al. 2025,
arXiv:2502.18581). Where texts are stopped, they have no vote, and the threshold is the quantile of
lowest running means that ends the share of texts that is named. Intervals hold 95%, by the
bootstrap over tables.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.estimators import confidence
from experiments import quick
from experiments.papers.results import difference, interval, mean, shown, signed, table
from experiments.results import write_json

MAJORITY = "majority"
QUICK = {"tables": 3, "runs": 8, "seen": [20], "samples": 4}


class Texts(NamedTuple):
    """All texts of a table.

    Attributes:
      prob: float64 ``[M]``, under the model.
      answer: int ``[M]``.
      average: float64 ``[M]``, the mean confidence in the tokens.
      lowest: float64 ``[M]``, its lowest running mean.
      certainty: float64 ``[M]``, the mean self-certainty.
      running: float64 ``[M, G]``, the running means.
      right: the answer of the process.
    """

    prob: np.ndarray
    answer: np.ndarray
    average: np.ndarray
    lowest: np.ndarray
    certainty: np.ndarray
    running: np.ndarray
    right: int


def texts_of(number: int, seen: int, args: argparse.Namespace) -> Texts:
    """All texts of one process, under a model that has seen so many transitions."""
    rng = np.random.default_rng([args.seed, number])
    size = args.vocab_size
    logits = args.sharpness * rng.normal(size=(size, size))
    process = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    counts, last = np.zeros((size, size)), 0
    for _ in range(seen):
        token = rng.choice(size, p=process[last])
        counts[last, token] += 1
        last = token
    model = (counts + args.smoothing) / (counts + args.smoothing).sum(-1, keepdims=True)
    tokens = np.indices((size,) * args.length).reshape(args.length, -1).T
    before = np.concatenate([np.zeros((len(tokens), 1), int), tokens[:, :-1]], 1)
    log_p = np.log(model)
    of_context = confidence.of_tokens(np.sort(log_p, -1)[:, ::-1][:, : args.top_k])
    in_tokens = of_context[before]
    running = confidence.of_groups(in_tokens, args.window)
    certainty = (-log_p.mean(-1) - math.log(size))[before].mean(-1)
    of_process = process[before, tokens].prod(-1)
    right = np.bincount(tokens[:, -1], of_process).argmax()
    prob = model[before, tokens].prod(-1)
    average = in_tokens.mean(-1)
    return Texts(prob, tokens[:, -1], average, running.min(-1), certainty, running, int(right))


def elected(answers: np.ndarray, votes: np.ndarray, right: int, size: int) -> float:
    """How often the right answer of sets ``[R, N]`` has most votes; equal ones share the vote."""
    totals = np.zeros((len(answers), size))
    np.add.at(totals, (np.arange(len(answers))[:, None], answers), votes)
    best = totals >= totals.max(-1, keepdims=True) - 1e-9
    return float((best[:, right] / best.sum(-1)).mean())


def stopped_share(texts: Texts, share: float, window: int, length: int) -> tuple[np.ndarray, float]:
    """Which texts are not ended if the lowest running means of a share of texts are too low.

    Returns:
      bool ``[M]``, and the mean number of tokens, the one that ends a text included, over the
      length of a whole text.
    """
    order = np.argsort(texts.lowest)
    reached = np.cumsum(texts.prob[order]) >= share
    threshold = texts.lowest[order][reached][0]
    is_low = texts.running < threshold
    ends = is_low.any(-1)
    tokens = np.where(ends, is_low.argmax(-1) + window, length)
    return ~ends, float((texts.prob * tokens).sum() / texts.prob.sum() / length)


def measure(number: int, seen: int, args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """For each way to vote, how often it is right, and the share of the tokens that it takes."""
    texts = texts_of(number, seen, args)
    rng = np.random.default_rng([args.seed, number, seen])
    shape = (args.runs, args.samples)
    drawn = rng.choice(len(texts.prob), size=shape, p=texts.prob / texts.prob.sum())
    lowest = texts.lowest[drawn]
    better = lowest >= np.median(lowest, -1, keepdims=True)
    ranks = np.stack([confidence.borda_votes(x) for x in texts.certainty[drawn]])
    ways = {
        MAJORITY: np.ones(shape),
        "weighted by the mean confidence": texts.average[drawn],
        "weighted by the lowest group": lowest,
        "the better half, weighted by it": np.where(better, lowest, 0),
        "by rank of self-certainty": ranks,
    }
    taken = dict.fromkeys(ways, 1.0)
    for share in args.stopped:
        whole, tokens = stopped_share(texts, share, args.window, args.length)
        name = f"{share:.0%} of texts stopped, weighted"
        ways[name] = np.where(whole[drawn], lowest, 0)
        taken[name] = tokens
    answers = texts.answer[drawn]
    return {
        name: (elected(answers, votes, texts.right, args.vocab_size), taken[name])
        for name, votes in ways.items()
    }


def rows_of(seen: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way, with intervals over tables, in percent."""
    found = [measure(number, seen, args) for number in range(args.tables)]
    right = {name: 100 * np.array([one[name][0] for one in found]) for name in found[0]}
    return [
        {
            "seen": seen,
            "way": name,
            "right": interval(mean, values),
            "more": difference(mean, [values], [right[MAJORITY]]),
            "tokens": interval(mean, 100 * np.array([one[name][1] for one in found])),
        }
        for name, values in right.items()
    ]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of the page."""
    return table(
        ["transitions seen", "votes", "right, %", "more than by majority", "tokens, %"],
        [
            [
                f"{row['seen']:,}",
                row["way"],
                shown(row["right"], 1),
                "" if row["way"] == MAJORITY else signed(row["more"], 1),
                f"{row['tokens'][0]:.0f}",
            ]
            for row in rows
        ],
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--tables", type=int, default=300, help="processes")
    parser.add_argument("--runs", type=int, default=256, help="sets of samples of each")
    parser.add_argument("--samples", type=int, default=16, help="of a set")
    parser.add_argument("--seen", type=int, nargs="+", default=[30, 100, 300], help="transitions")
    parser.add_argument("--stopped", type=float, nargs="+", default=[0.1, 0.5], help="of texts")
    parser.add_argument("--vocab_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--top_k", type=int, default=3)
    parser.add_argument("--sharpness", type=float, default=2.0, help="of the process")
    parser.add_argument("--smoothing", type=float, default=0.25, help="added to each count")
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    rows = [row for seen in args.seen for row in rows_of(seen, args)]
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "quick")}
    write_json(args.out / "confident_votes.json", {"settings": settings, "rows": rows})
    print(markdown(rows))


if __name__ == "__main__":
    main()
