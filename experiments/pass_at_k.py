"""How many independent samples find a right text as often as k spread ones, by enumeration.

    python -m experiments.pass_at_k --out runs/pass_at_k

The task is that of ``experiments.rollouts``: random tables of logits given the last token, and
texts that are right by their first token, by their last one, or as a whole. pass@k of independent
samples is exact, and so is that of the codes of ``arithmetic_sample`` and of two point sets of
QuasiMoTTo (Li et al. 2026, arXiv:2607.01179). Its Sobol points and several codes are drawn, in sets
of the largest k; QuasiMoTTo's bootstrap, ``samplers.dyadic``, takes the smaller sets out of them.
No samples that are exact by themselves can be right together more often than the bound, min(1, k p)
of texts with probability p.

A vote elects the first token, or the last one, that most of k texts have, and is right if that is
the most probable one. It is exact for independent samples, and all others are drawn, in sets of the
largest k. A run that was killed continues, and writes ``pass_at_k.json`` and ``.png``.
"""

from __future__ import annotations

import argparse
import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import Prompt
from decoding_jax.adapters import from_logits
from experiments import drawing, quick
from experiments.papers import samplers
from experiments.papers.fewer_samples_truth import (
    by_probability,
    pass_of_independent,
    pass_of_lattice,
    pass_of_strata,
    vote_of_independent,
)
from experiments.papers.records import Records
from experiments.papers.results import table
from experiments.papers.samplers_results import COLUMNS, cells, rows_of
from experiments.results import read_json, write_json
from experiments.rollouts import KINDS, every_logit, texts_of

DRAWN = ("several codes", "QuasiMoTTo, Sobol")
VOTED = {"first": 0, "last": -1}
VOTES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
QUICK = {"tables": 2, "counts": [4], "vocab_size": 3, "runs": 8, "sharpnesses": [1.0]}


def table_of(number: int, sharpness: float, args: argparse.Namespace) -> tuple[Any, np.ndarray]:
    """The logits of a table, and the generator that goes on after them."""
    rng = np.random.default_rng([args.seed, number, round(1000 * sharpness)])
    return rng, sharpness * rng.normal(size=(args.vocab_size, args.vocab_size))


def draw(
    name: str, logits: np.ndarray, number: int, of: str, args: argparse.Namespace
) -> np.ndarray:
    """Sets of texts by a sampler, with keys by ``of``: int32 ``[runs, k, length]``."""
    model = from_logits(every_logit, len(logits), parameters=jnp.asarray(logits, jnp.float32))
    prompt = Prompt(jnp.ones((args.runs, 1), jnp.int32), jnp.ones(args.runs, jnp.int32))
    key = jax.random.fold_in(jax.random.key(args.seed), number)
    key = jax.random.fold_in(key, zlib.crc32(of.encode()))
    output = samplers.SAMPLERS[name](
        model, prompt, key, num_samples=args.counts[-1], max_new_tokens=args.length
    )
    return np.asarray(output.tokens)


def of_table(number: int, sharpness: float, args: argparse.Namespace) -> dict[str, Any]:
    """By kind of answer: the probability of a right text, and pass@k by sampler for each k."""
    rng, logits = table_of(number, sharpness, args)
    tokens, prob, _ = texts_of(logits, args.length)
    chosen = tokens[rng.choice(len(prob), p=prob / prob.sum())]
    shape = (args.vocab_size,) * args.length
    answers = {
        "first": tokens[:, 0] == rng.integers(args.vocab_size),
        "last": tokens[:, -1] == rng.integers(args.vocab_size),
        "whole": (tokens != chosen).sum(1) <= 1,
    }
    drawn = {}
    for name in DRAWN:
        texts = draw(name, logits, number, f"{name} {sharpness}", args)
        drawn[name] = np.ravel_multi_index(tuple(np.moveaxis(texts, -1, 0)), shape)
    cube, found = prob.reshape(shape), {}
    for kind, right in answers.items():
        correct = right.reshape(shape)
        first, then = by_probability(cube, correct)
        passed = {
            samplers.LIBRARY: [pass_of_lattice(cube, correct, k) for k in args.counts],
            "by probability": [pass_of_lattice(first, then, k) for k in args.counts],
            samplers.PEER: [pass_of_lattice(cube, correct, k, carried=True) for k in args.counts],
            "QuasiMoTTo, strata": [pass_of_strata(cube, correct, k) for k in args.counts],
        }
        for name, texts in drawn.items():
            passed[name] = [samplers.dyadic(name, right[texts], k) for k in args.counts]
        found[kind] = {"share": float(prob @ right), "passed": passed}
    entropy = -(prob * np.log2(prob)).sum()
    return {"entropy": float(entropy), **found}


def analyse(found: Sequence[dict[str, Any]], sharpness: float, args: argparse.Namespace) -> list:
    """A row for each kind of answer, sampler and k, over the tables of a sharpness."""
    rows = []
    grid = np.unique(np.concatenate([np.geomspace(1, 64 * max(args.counts), 400), args.counts]))
    for kind in KINDS:
        share = np.array([x[kind]["share"] for x in found])
        curves = pass_of_independent(share[:, None], grid[None])
        passed = {n: np.array([x[kind]["passed"][n] for x in found]) for n in samplers.SAMPLERS}
        bounds = {k: float(np.minimum(1, k * share).mean()) for k in args.counts}
        entropy = float(np.mean([x["entropy"] for x in found]))
        base = {"sharpness": sharpness, "entropy": entropy, "answer": kind}
        of = rows_of(curves, grid.tolist(), passed, args.counts, args.seed)
        rows += [{**base, **row, "bound": bounds[row["N"]]} for row in of]
    return rows


def votes_of_table(number: int, sharpness: float, args: argparse.Namespace) -> dict[str, Any]:
    """By kind of answer and sampler, how often votes are right, of ``VOTES`` or of k."""
    _, logits = table_of(number, sharpness, args)
    tokens, prob, _ = texts_of(logits, args.length)
    found: dict[str, Any] = {}
    shares = {kind: np.bincount(tokens[:, at], prob) for kind, at in VOTED.items()}
    for kind, share in shares.items():
        votes = [float(vote_of_independent(share[None] / share.sum(), n)[0]) for n in VOTES]
        found[kind] = {"independent": votes}
    for name in samplers.SAMPLERS:
        texts = draw(name, logits, number, f"vote, {name} {sharpness}", args)
        for kind, at in VOTED.items():
            right = np.arange(args.vocab_size) == shares[kind].argmax()
            votes = [samplers.votes(name, texts[..., at], right, k) for k in args.counts]
            found[kind][name] = votes
    return found


def analyse_votes(found: Sequence[dict[str, Any]], args: argparse.Namespace) -> list:
    """A row for each voted token, sampler and k, over the tables of a sharpness."""
    rows = []
    for kind in VOTED:
        curves, *ours = (
            np.array([x[kind][name] for x in found]) for name in ("independent", *samplers.SAMPLERS)
        )
        of = dict(zip(samplers.SAMPLERS, ours, strict=True))
        rows += [
            {"answer": kind, **row} for row in rows_of(curves, VOTES, of, args.counts, args.seed)
        ]
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table that the command prints; votes have no bound."""
    bound = ["bound"] if "bound" in rows[0] else []
    return table(
        ["bits of a text", "answer", *COLUMNS, *bound],
        [
            [f"{r['entropy']:.1f}", KINDS[r["answer"]], *cells(r, 100, 1)]
            + [f"{100 * r[name]:.1f}" for name in bound]
            for r in rows
        ],
    )


def plot(data: dict[str, Any], path: Path) -> None:
    """How many times as many independent samples it takes, over k."""
    figure, axes = drawing.panels(len(KINDS), len(data["sharpnesses"]), 8.8)
    for at, (kind, sharpness) in enumerate((k, s) for k in KINDS for s in data["sharpnesses"]):
        ax = axes[at]
        for i, name in enumerate(samplers.SAMPLERS):
            of = sharpness, kind, name
            rows = [r for r in data["rows"] if (r["sharpness"], r["answer"], r["sampler"]) == of]
            k = np.array([r["N"] for r in rows], float)
            many = np.array([r["as_many"] for r in rows]) / k[:, None]
            shifted = k * 2 ** drawing.shifts(len(samplers.SAMPLERS), 0.1)[i]
            drawing.named(ax, shifted, many.tolist(), name)
        ax.axhline(1, color=drawing.GREY, linewidth=0.9)
        drawing.counts_axis(ax, data["counts"], "samples, k" if at >= 2 * len(KINDS) else "")
        ax.set_ylim(0.8, 3.4)
        ax.set_title(f"{KINDS[kind]},\n{rows[0]['entropy']:.1f} bits", fontsize=10)
        if not at % len(data["sharpnesses"]):
            ax.set_ylabel("independent, over k")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", type=int, default=40, help="of each sharpness")
    parser.add_argument("--sharpnesses", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--counts", type=int, nargs="+", default=[4, 8, 16], help="the k, rising")
    parser.add_argument("--vocab_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--runs", type=int, default=512, help="sets that are drawn")
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "quick")}
    tables = [(s, number) for s in args.sharpnesses for number in range(args.tables)]
    work = {
        f"{words}sharpness {s:g}, table {number}": functools.partial(of, number, s, args)
        for words, of in (("", of_table), ("votes, ", votes_of_table))
        for s, number in tables
    }
    made = list(Records(args.out, settings).complete(work).values())
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "votes": []}
    for i, sharpness in enumerate(args.sharpnesses):
        mine = slice(i * args.tables, (i + 1) * args.tables)
        rows = analyse(made[mine], sharpness, args)
        base = {name: rows[0][name] for name in ("sharpness", "entropy")}
        found["rows"] += rows
        found["votes"] += [{**base, **r} for r in analyse_votes(made[len(tables) :][mine], args)]
    print(markdown(found["rows"]), markdown(found["votes"]), sep="\n")
    file = args.out / "pass_at_k.json"
    write_json(file, {**settings, **found})
    plot(read_json(file), args.out / "pass_at_k.png")


if __name__ == "__main__":
    main()
