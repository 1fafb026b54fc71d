"""Best-k search beside beam searches and sampling (Xu et al. 2022).

    python -m experiments.papers.best_k --gin_file=configs/papers/best_k.gin

Every strategy completes every input: beams and samples b times, and searches with a frontier within
the budget C = b T that a beam search of width b and T tokens expands. The tables show how many
texts are completed, how different and how good they are, what reranking them by the model gives,
and the time beside that of beam search. The ablation varies k and the weight kappa of the temporal
decay, and smaller budgets show how often a search completes nothing. All strategies decode a batch
in turn, so that their times can be compared. The experiment
continues where it was killed, and writes ``best_k.json``, ``.md`` and ``.png``, and in
``best_k_differences`` how strategies differ from beam and best-first search, input by input.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import decoding_jax
from decoding_jax import transforms
from experiments.papers import (
    best_k_differences,
    best_k_report,
    best_k_results,
    command,
    naturalness,
)
from experiments.papers.best_k_measure import Measure
from experiments.papers.decoding import Decode, batches
from experiments.papers.metrics import Scores
from experiments.papers.options import Options
from experiments.papers.records import Records
from experiments.papers.results import versions, write


def run(
    options: Options,
    metrics: Sequence[str] = ("bleu", "rouge1", "rouge2", "rougeL", "meteor_exact"),
    beam_size: int = 10,
    groups: Sequence[int] = (5, 10),
    diversity_penalty: float = 5.0,
    nucleus: float = 0.9,
    typical: float = 0.95,
    strategies: Sequence[str] | None = None,
    ks: Sequence[int] = (5, 10),
    kappa: float = 0.05,
    kappas: Sequence[float] = (0.0, 0.01, 0.05, 0.1, 0.2),
    budgets: Sequence[int] = (),
    mauve: bool = True,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment; b times ``max_new_tokens`` is the budget.
      metrics: names of ``metrics.METRICS``; the best score of a set is shown for the first.
      beam_size: b, the number of beams and samples.
      groups: the numbers of groups of diverse beam search, divisors of b.
      diversity_penalty: of diverse beam search, in nats.
      nucleus: the probability p of nucleus sampling.
      typical: the probability of typical sampling.
      strategies: the names, as in the tables, of those beside best-k search; None for all.
      ks: the numbers of hypotheses that best-k search expands at a time.
      kappa: the weight of the decay in the first tables, one of ``kappas``.
      kappas: those of the ablation.
      budgets: smaller budgets, in which best-first search and that with the largest k and the score
        "last" are run, to count the inputs for which they complete nothing.
      mauve: whether the texts are compared with the references by MAUVE, with the hidden states of
        the model as features.
      batch_size: the number of rows of a batch.

    Returns:
      What ``best_k.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    if kappa not in kappas:
        raise ValueError(f"kappa: expected one of kappas, {list(kappas)}, got {kappa}")
    for count in groups:
        if count < 1 or beam_size % count:
            raise ValueError(f"groups: expected divisors of beam_size, {beam_size}, got {count}")
    budget = beam_size * options.max_new_tokens
    for small in budgets:
        if not 1 <= small < budget:
            raise ValueError(f"budgets: expected 1 to {budget - 1}, below the budget, got {small}")
    if mauve:
        naturalness.check(options.model)
    decoder = options.decoder(batch_size)
    scores = Scores(metrics, options.task.references)
    described = options.described(
        metrics=list(metrics),
        beam_size=beam_size,
        budget=budget,
        groups=list(groups),
        diversity_penalty=diversity_penalty,
        nucleus=nucleus,
        typical=typical,
        strategies=None if strategies is None else list(strategies),
        ks=list(ks),
        kappa=kappa,
        kappas=list(kappas),
        budgets=list(budgets),
        mauve=mauve,
        batch_size=batch_size,
    )
    found = baselines(beam_size, groups, diversity_penalty, nucleus, typical, budget)
    if strategies is not None:
        for name in strategies:
            if name not in found:
                raise ValueError(f"strategies: expected {', '.join(found)}, got {name!r}")
        found = {name: found[name] for name in strategies}
    found |= searches(ks, kappas, budget)
    shown = best_k_results.first_names(found, described)
    found |= in_small_budgets(max(ks), kappa, budgets)
    measure = Measure(decoder, scores, metrics[0], shown, options.seed)
    work: dict[str, Callable[[], Any]] = {
        f"{name}, rows {rows.start} to {rows.stop}": functools.partial(measure, name, decode, rows)
        for rows in batches(len(options.task.inputs), batch_size)
        for name, decode in found.items()
    }
    folder = options.folder
    made = Records(folder, described).complete(work)
    measured: dict[str, list[Any]] = {name: [] for name in found}
    for name, value in made.items():
        measured[name.rpartition(", rows ")[0]] += value
    data = {
        "experiment": "best-k search",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        **best_k_results.analyse(measured, described),
    }
    if mauve:
        sets = {name: [row["texts"] for row in measured[name]] for name in shown}
        data["naturalness"] = naturalness.measure(
            options.model,
            options.task.references,
            sets,
            beam_size,
            options.max_input_tokens,
            options.seed,
        )
    write(folder, "best_k", data, best_k_report.markdown, best_k_report.plot)
    apart = {
        "experiment": "best-k search, differences",
        **described,
        "versions": versions(),
        **best_k_differences.analyse(measured, described),
    }
    name = "best_k_differences"
    write(folder, name, apart, best_k_differences.markdown, best_k_differences.plot)
    return data


def baselines(
    beam_size: int,
    groups: Sequence[int],
    diversity_penalty: float,
    nucleus: float,
    typical: float,
    budget: int,
) -> dict[str, Decode]:
    """The strategies of the paper beside best-k search, by name."""
    api, count = decoding_jax, {"beam_size": beam_size}
    at_nucleus = transforms.top_p(nucleus)
    at_typical = transforms.typical(typical)
    found = {"beam search": _search(api.beam_search, **count, num_return=beam_size)}
    for number in groups:
        name = f"diverse beam search, {number} groups"
        found[name] = _search(
            api.diverse_beam_search,
            **count,
            num_groups=number,
            diversity_penalty=diversity_penalty,
        )
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
    return {
        best_k_results.name_of(k, score, kappa): _best_k(k, score, kappa, budget)
        for score in best_k_results.SCORES
        for k in ks
        for kappa in kappas
    }


def in_small_budgets(k: int, kappa: float, budgets: Sequence[int]) -> dict[str, Decode]:
    """Best-first search and best-k search with the score "last", in each budget."""
    found = {}
    for budget in budgets:
        first = _search(decoding_jax.best_first_search, budget=budget, num_return="all")
        found[best_k_results.with_budget("best-first", budget)] = first
        name = best_k_results.with_budget(best_k_results.name_of(k, "last", kappa), budget)
        found[name] = _best_k(k, "last", kappa, budget)
    return found


def _best_k(k: int, score: str, kappa: float, budget: int) -> Decode:
    preset = {"last": decoding_jax.best_k_last, "mean": decoding_jax.best_k_mean}[score]
    settings = {"k": k, "budget": budget, "num_return": "all", **preset(kappa=kappa)}
    return _search(decoding_jax.best_k_search, **settings)


def _search(search: Callable[..., Any], **settings: Any) -> Decode:
    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        return search(model, prompt, **settings, **limits)

    return decode


def _draw(strategy: Callable[..., Any], **settings: Any) -> Decode:
    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        return strategy(model, prompt, keys, **settings, **limits)

    return decode


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.best_k"))
