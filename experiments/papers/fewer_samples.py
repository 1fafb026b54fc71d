"""How many independent samples find a right answer, or vote for it, as often as N arithmetic ones.

    python -m experiments.papers.fewer_samples --gin_file=configs/papers/fewer_samples.gin

pass@N is the probability that one of N samples is right, and a vote (self-consistency) is right if
the answer that most samples reach is the most probable one, the limit of votes of more samples; a
tie of t answers counts 1 / t.

First on tasks whose truth is known: random tables, from which texts of T tokens are drawn, at
several sharpnesses of their logits. The answer of a text is its first token, or its last one, after
T - 1 others that lead to it, and the right answer of pass@N is drawn evenly from all tokens. The
third kind of task takes the whole text: right are one that is drawn from the model and all texts
that differ from it in one token. Every text is enumerated, so pass@N of arithmetic samples, and
both numbers of independent ones, are exact; ``arithmetic_sample`` itself is run beside them, and
its votes are counted.

Then a model translates, or does another task. A text is right if it equals a reference, or if its
chrF is at least a threshold. The experiment continues where it was killed, and writes
``fewer_samples.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.estimators import pairwise
from decoding_jax.testing import TableLM, enumerate_distribution
from experiments.papers import command, fewer_samples_results
from experiments.papers.decoding import Decoder, batches, keys_of
from experiments.papers.fewer_samples_truth import (
    pass_of_lattice,
    vote_of_independent,
    vote_right,
)
from experiments.papers.options import Options
from experiments.papers.records import Records
from experiments.papers.results import versions, write
from experiments.papers.tasks import Task


def run(
    options: Options,
    tables: int = 100,
    sharpnesses: Sequence[float] = (1.0, 2.0, 3.0),
    vocab_size: int = 8,
    length: int = 4,
    counts: Sequence[int] = (2, 4, 8, 16, 32, 64),
    vote_counts: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    runs: int = 256,
    text_counts: Sequence[int] = (4, 16, 64),
    lanes: int = 256,
    threshold: float = 70.0,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment.
      tables: the number of random tables at each sharpness, 2 or more.
      sharpnesses: standard deviations of their logits.
      vocab_size: V of the tables.
      length: T, the number of tokens; there are V^T texts.
      counts: the N of arithmetic samples from tables.
      vote_counts: the rising numbers of independent samples whose votes are computed.
      runs: how often ``arithmetic_sample`` is called for each table and N.
      text_counts: the N of arithmetic samples from the model, divisors of ``lanes``; none leaves
        the model out.
      lanes: the number of samples of an input, for each N and for independent ones.
      threshold: of chrF.

    Returns:
      What ``fewer_samples.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    if tables < 2:
        raise ValueError(f"tables: expected 2 or more, got {tables}")
    for count in text_counts:
        if count < 1 or lanes % count:
            raise ValueError(f"text_counts: expected divisors of lanes, {lanes}, got {count}")
    decoder = options.decoder()
    of_tables = {
        "tables": tables,
        "sharpnesses": list(sharpnesses),
        "vocab_size": vocab_size,
        "length": length,
        "counts": list(counts),
        "vote_counts": list(vote_counts),
        "runs": runs,
        "seed": options.seed,
    }
    of_texts = options.described(
        text_counts=list(text_counts),
        lanes=lanes,
        threshold=threshold,
    )
    work: dict[str, Callable[[], Any]] = {}
    for sharpness in sharpnesses:
        for rows in batches(tables, 10):
            name = f"sharpness {sharpness:g}, tables {rows.start} to {rows.stop}"
            work[name] = functools.partial(_tables, of_tables, sharpness, rows)
    folder = options.folder
    made = Records(folder / "tables", of_tables).complete(work)
    if text_counts:
        work = {
            f"input {number}": functools.partial(_input, of_texts, decoder, options.task, number)
            for number in range(len(options.task.inputs))
        }
        made |= Records(folder / "texts", of_texts).complete(work)
    described = {**of_texts, **of_tables}
    data = {
        "experiment": "fewer samples",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": fewer_samples_results.analyse(made, described),
    }
    write(folder, "fewer_samples", data, fewer_samples_results.markdown, fewer_samples_results.plot)
    return data


def _tables(settings: dict[str, Any], sharpness: float, rows: range) -> dict[str, Any]:
    """Figures of some tables: the entropy in bits, and what is exact and measured by answer."""
    size, length, seed = settings["vocab_size"], settings["length"], settings["seed"]
    prompt = Prompt(jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    many = Prompt(*(jnp.repeat(x, settings["runs"], 0) for x in (prompt.tokens, prompt.length)))
    found: list[dict[str, Any]] = []
    answers: dict[str, list[np.ndarray]] = {"first": [], "last": []}
    for row, key in zip(rows, keys_of(seed, f"sharpness {sharpness:g}", rows), strict=True):
        key_table, key_draw = jax.random.split(key)
        table = TableLM.random(key_table, size, sharpness=sharpness)
        exact = enumerate_distribution(table, prompt, 0, max_new_tokens=length)
        prob = np.asarray(exact.prob, np.float64)
        rng = np.random.default_rng([seed, row, round(1000 * sharpness)])
        text = exact.tokens[rng.choice(len(prob), p=prob / prob.sum())]
        kinds = {
            "first": exact.tokens[:, 0] == rng.integers(size),
            "last": exact.tokens[:, -1] == rng.integers(size),
            "whole": (exact.tokens != text).sum(1) <= 1,
        }
        figures: dict[str, Any] = {
            "entropy": float(-(prob * np.log2(np.maximum(prob, 1e-300))).sum())
        }
        shape = (size,) * length
        for kind, correct in kinds.items():
            figures[kind] = {
                "share": float(prob[correct].sum()),
                "exact": [
                    pass_of_lattice(prob.reshape(shape), correct.reshape(shape), count)
                    for count in settings["counts"]
                ],
                "measured": [],
            }
        for kind, column in (("first", 0), ("last", -1)):
            by_answer = np.bincount(exact.tokens[:, column], prob, size)
            answers[kind].append(by_answer / by_answer.sum())
            figures[kind]["vote"] = []
        for i, count in enumerate(settings["counts"]):
            output = decoding_jax.arithmetic_sample(
                table,
                many,
                jax.random.fold_in(key_draw, i),
                num_samples=count,
                max_new_tokens=length,
            )
            tokens = np.asarray(output.tokens)
            index = np.ravel_multi_index(tuple(np.moveaxis(tokens, -1, 0)), shape)
            for kind, correct in kinds.items():
                figures[kind]["measured"].append(float(correct[index].any(1).mean()))
            for kind, column in (("first", 0), ("last", -1)):
                best = int(answers[kind][-1].argmax())
                right = vote_right(tokens[..., column], best, size).mean()
                figures[kind]["vote"].append(float(right))
        found.append(figures)
    for kind, values in answers.items():
        votes = [vote_of_independent(np.array(values), n) for n in settings["vote_counts"]]
        for figures, of_table in zip(found, np.transpose(votes), strict=True):
            figures[kind]["vote_independent"] = of_table.tolist()
    return {"sharpness": sharpness, "tables": found}


def _input(settings: dict[str, Any], decoder: Decoder, task: Task, number: int) -> dict[str, Any]:
    """By criterion, how many independent samples are right, and the share of calls for each N."""
    known: dict[str, dict[str, bool]] = {}

    def right(texts: list[list[str]]) -> dict[str, np.ndarray]:
        new = sorted({text for row in texts for text in row} - known.keys())
        if new:
            references = list(task.references[number])
            scores = np.asarray(pairwise.chrf(new, references)).max(1)
            for text, score in zip(new, scores, strict=True):
                known[text] = {
                    "exact": text in references,
                    "chrf": bool(score >= settings["threshold"]),
                }
        return {
            criterion: np.array([[known[text][criterion] for text in row] for row in texts])
            for criterion in ("exact", "chrf")
        }

    def decode(points: str, count: int) -> list[list[str]]:
        calls = settings["lanes"] // count
        keys = keys_of(settings["seed"], f"{points} {count} {number}", range(calls))
        strategy = functools.partial(
            decoding_jax.arithmetic_sample, num_samples=count, points=points
        )
        batch = decoder(strategy, [number] * calls, keys, places=calls)
        return [[completion.text for completion in row] for row in batch.completions]

    alone = right(decode("iid", max(settings["text_counts"])))
    calls = {count: right(decode("lattice", count)) for count in settings["text_counts"]}
    return {
        criterion: {
            "right": int(alone[criterion].sum()),
            "passed": [float(found[criterion].any(1).mean()) for found in calls.values()],
        }
        for criterion in alone
    }


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.fewer_samples"))
