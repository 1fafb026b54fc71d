"""Best-k search beside beam searches and sampling (Xu et al. 2022).

    python -m experiments.papers.best_k --gin_file=configs/papers/best_k.gin

Every strategy completes every input: beams and samples b times, and searches with a frontier within
the budget C = b T that a beam search of width b and T tokens expands. The tables show how many
texts are completed, how different they are, how good they are, and the seconds of an input. The
ablation varies k and the weight kappa of the temporal decay. The experiment continues where it was
killed, and writes ``best_k.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

import decoding_jax
from decoding_jax import transforms
from decoding_jax.estimators import diversity
from decoding_jax.text import Completion, unique
from experiments.papers import best_k_results, command
from experiments.papers.decoding import Decode, Decoder, batches, keys_of
from experiments.papers.metrics import Scores
from experiments.papers.records import Records
from experiments.papers.results import versions, write
from experiments.papers.tasks import Task


def run(
    model: tuple[Any, Any],
    model_name: str,
    task: Task,
    output_dir: str,
    metrics: Sequence[str] = ("bleu", "rouge1", "rouge2", "rougeL", "meteor_exact"),
    beam_size: int = 10,
    groups: Sequence[int] = (5, 10),
    nucleus: float = 0.9,
    typical: float = 0.9,
    strategies: Sequence[str] | None = None,
    ks: Sequence[int] = (5, 10),
    kappa: float = 0.05,
    kappas: Sequence[float] = (0.0, 0.01, 0.05, 0.1, 0.2),
    batch_size: int = 8,
    max_new_tokens: int = 64,
    max_input_tokens: int = 512,
    seed: int = 0,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      model: the model and its tokenizer, as ``decoding_jax.load`` returns them.
      model_name: what the results call it.
      task: inputs and references.
      output_dir: the folder of the records and results.
      metrics: names of ``metrics.METRICS``; the best score of a set is shown for the first.
      beam_size: b, the number of beams and samples.
      groups: the numbers of groups of diverse beam search, divisors of b.
      nucleus: the probability p of nucleus sampling.
      typical: the probability of typical sampling.
      strategies: the names, as in the tables, of those beside best-k search; None for all.
      ks: the numbers of hypotheses that best-k search expands at a time.
      kappa: the weight of the decay in the first tables, one of ``kappas``.
      kappas: those of the ablation.
      batch_size: the number of rows of a batch.
      max_new_tokens, max_input_tokens: the limits of the lengths; b times the first is the budget.
      seed: of all keys and of the bootstrap.

    Returns:
      What ``best_k.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    if kappa not in kappas:
        raise ValueError(f"kappa: got {kappa}; takes one of kappas, {list(kappas)}")
    for count in groups:
        if count < 1 or beam_size % count:
            raise ValueError(f"groups: got {count}; takes divisors of beam_size, {beam_size}")
    decoder = Decoder(model, task, batch_size, max_new_tokens, max_input_tokens)
    scores = Scores(metrics, task.references)
    described = {
        "model": model_name,
        "task": task.describe(),
        "metrics": list(metrics),
        "beam_size": beam_size,
        "budget": beam_size * max_new_tokens,
        "groups": list(groups),
        "nucleus": nucleus,
        "typical": typical,
        "strategies": None if strategies is None else list(strategies),
        "ks": list(ks),
        "kappa": kappa,
        "kappas": list(kappas),
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "max_input_tokens": max_input_tokens,
        "seed": seed,
    }
    found = baselines(beam_size, groups, nucleus, typical, beam_size * max_new_tokens)
    if strategies is not None:
        for name in strategies:
            if name not in found:
                raise ValueError(f"strategies: got {name!r}; takes {', '.join(found)}")
        found = {name: found[name] for name in strategies}
    found |= searches(ks, kappas, beam_size * max_new_tokens)
    measure = Measure(decoder, scores, seed)
    work: dict[str, Callable[[], Any]] = {
        f"{name}, rows {rows.start} to {rows.stop}": functools.partial(measure, name, decode, rows)
        for name, decode in found.items()
        for rows in batches(len(task.inputs), batch_size)
    }
    folder = Path(output_dir)
    made = Records(folder, described).complete(work)
    measured: dict[str, list[Any]] = {name: [] for name in found}
    for name, value in made.items():
        measured[name.rpartition(", rows ")[0]] += value
    data = {
        "experiment": "best-k search",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": best_k_results.analyse(measured, described),
    }
    write(folder, "best_k", data, best_k_results.markdown, best_k_results.plot)
    return data


def baselines(
    beam_size: int, groups: Sequence[int], nucleus: float, typical: float, budget: int
) -> dict[str, Decode]:
    """The strategies of the paper beside best-k search, by name."""
    api, count = decoding_jax, {"beam_size": beam_size}
    at_nucleus = transforms.top_p(nucleus)
    at_typical = transforms.typical(typical)
    found = {"beam search": _search(api.beam_search, **count, num_return=beam_size)}
    for number in groups:
        name = f"diverse beam search, {number} groups"
        found[name] = _search(api.diverse_beam_search, **count, num_groups=number)
    return {
        **found,
        "nucleus": _draw(api.sample, num_samples=beam_size, transform=at_nucleus),
        "typical": _draw(api.sample, num_samples=beam_size, transform=at_typical),
        "beam + nucleus": _draw(api.beam_sample, **count, transform=at_nucleus),
        "beam + typical": _draw(api.beam_sample, **count, transform=at_typical),
        "best-first": _search(api.best_first_search, budget=budget, num_return="all"),
    }


def searches(ks: Sequence[int], kappas: Sequence[float], budget: int) -> dict[str, Decode]:
    """Best-k search with each k, score and kappa, by the names of ``best_k_results.name_of``."""
    presets = {"last": decoding_jax.best_k_last, "mean": decoding_jax.best_k_mean}
    return {
        best_k_results.name_of(k, score, kappa): _search(
            decoding_jax.best_k_search,
            k=k,
            budget=budget,
            num_return="all",
            **preset(kappa=kappa),
        )
        for score, preset in presets.items()
        for k in ks
        for kappa in kappas
    }


def _search(search: Callable[..., Any], **settings: Any) -> Decode:
    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        return search(model, prompt, **settings, **limits)

    return decode


def _draw(strategy: Callable[..., Any], **settings: Any) -> Decode:
    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        return strategy(model, prompt, keys, **settings, **limits)

    return decode


class Measure:
    """Decodes batches, and times them once their program is compiled."""

    def __init__(self, decoder: Decoder, scores: Scores, seed: int):
        self._decoder, self._scores, self._seed = decoder, scores, seed
        self._compiled: set[str] = set()

    def __call__(self, name: str, decode: Decode, rows: range) -> list[dict[str, Any]]:
        """The figures of each input of a batch; its seconds are those of the batch over its rows.

        A batch that is not full is decoded with padding, and its seconds are not counted.
        """
        keys = keys_of(self._seed, name, rows)
        seconds: list[float] = []

        def timed(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
            start = time.perf_counter()
            output = jax.block_until_ready(decode(model, prompt, keys, **limits))
            seconds.append(time.perf_counter() - start)
            return output

        if name not in self._compiled:
            self._decoder(decode, rows, keys)
            self._compiled.add(name)
        batch = self._decoder(timed, rows, keys)
        full = len(rows) == self._decoder.batch_size
        return [
            {
                **self.figures(row, completed(completions)),
                "seconds": seconds[0] / len(rows) if full else None,
            }
            for row, completions in zip(rows, batch.completions, strict=True)
        ]

    def figures(self, input_: int, ended: list[Completion]) -> dict[str, float]:
        """The columns of the paper's table for one input; without a text, of an empty text."""
        texts = [c.text for c in ended] or [""]
        found: dict[str, float] = {"S": len(ended), "unique": len(unique(ended))}
        found |= {f"distinct-{n}": round(diversity.distinct_n(texts, n), 5) for n in (1, 2, 3)}
        for metric, values in self._scores(input_, texts).items():
            found[metric] = round(sum(values) / len(values), 4)
            found[f"{metric} oracle"] = max(values)
        return found


def completed(row: Sequence[Completion]) -> list[Completion]:
    """The finished completions; of a best-k search, those among the first ``completed``."""
    count = getattr(row[0].info, "completed", len(row)) if row else 0
    return [c for c in row[: int(count)] if c.finished]


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.best_k"))
