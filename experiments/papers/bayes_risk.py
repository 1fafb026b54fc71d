"""Minimum Bayes risk decoding, pruned (Cheng and Vlachos 2023), beside all pairs and fewer samples.

    python -m experiments.papers.bayes_risk --gin_file=configs/papers/bayes_risk.gin

A model draws N samples of every input, which are candidates and pseudo-references at once, with
chrF as the utility. The table shows which part of the utilities the pruned form computes at each
alpha, how often it chooses the text of all pairs, how much utility it loses, and the chrF of what
it chooses against the task's references; and the same where all candidates are compared with fewer
samples. The experiment continues where it was killed, and writes ``bayes_risk.json``, ``.md`` and
``.png``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import decoding_jax
from decoding_jax.estimators import pairwise, pruning
from experiments import drawing
from experiments.papers import command
from experiments.papers.decoding import Decoder, batches, keys_of
from experiments.papers.options import Options
from experiments.papers.records import Records
from experiments.papers.results import interval, mean, shown, table, versions, write
from experiments.papers.tasks import Task

FIGURES = {
    "utilities": "utilities, % of all",
    "same": "same choice, %",
    "lost": "utility lost",
    "gained": "chrF to references, less that of all pairs",
}


def run(
    options: Options,
    num_samples: int = 128,
    alphas: Sequence[float] = (0.8, 0.9, 0.95, 0.99),
    subsets: Sequence[int] = (8, 16, 32),
    runs: int = 8,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment.
      num_samples: N.
      alphas: those of the pruned form.
      subsets: numbers of samples, below N, with which all candidates are compared.
      runs: how often each is run for an input, with keys of their own.
      batch_size: the number of rows of a batch, each with N lanes.

    Returns:
      What ``bayes_risk.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    for count in subsets:
        if not 0 < count < num_samples:
            raise ValueError(f"subsets: expected numbers below {num_samples}, got {count}")
    if runs < 1:
        raise ValueError(f"runs: expected 1 or more, got {runs}")
    decoder = options.decoder(batch_size)
    described = options.described(
        num_samples=num_samples,
        alphas=list(alphas),
        subsets=list(subsets),
        runs=runs,
        batch_size=batch_size,
    )
    work: dict[str, Callable[[], Any]] = {
        f"inputs {rows.start} to {rows.stop}": functools.partial(
            _choices, described, decoder, options.task, rows
        )
        for rows in batches(len(options.task.inputs), batch_size)
    }
    folder = options.folder
    made = Records(folder, described).complete(work)
    inputs = [figures for rows in made.values() for figures in rows]
    data = {
        "experiment": "minimum Bayes risk",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "different": float(np.mean([figures["different"] for figures in inputs])),
        "chrf": float(np.mean([figures["chrf"] for figures in inputs])),
        "chrf_of_samples": float(np.mean([figures["chrf_of_samples"] for figures in inputs])),
        "results": analyse(inputs, options.seed),
    }
    write(folder, "bayes_risk", data, markdown, plot)
    return data


def ways(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The arguments of ``pruning.minimum_bayes_risk`` for each row of the table."""
    pruned = {f"alpha {alpha:g}": {"alpha": alpha} for alpha in settings["alphas"]}
    fewer = {
        f"{n} of {settings['num_samples']} samples": {"alpha": 1.0, "schedule": (n,)}
        for n in settings["subsets"]
    }
    return {**pruned, **fewer}


def _choices(
    settings: dict[str, Any], decoder: Decoder, task: Task, rows: range
) -> list[dict[str, Any]]:
    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        return decoding_jax.sample(
            model, prompt, keys, num_samples=settings["num_samples"], **limits
        )

    batch = decoder(decode, rows, keys_of(settings["seed"], "samples", rows))
    found = []
    for row, completions in zip(rows, batch.completions, strict=True):
        texts = [completion.text for completion in completions]
        found.append(_figures(settings, row, texts, list(task.references[row])))
    return found


def _figures(
    settings: dict[str, Any], number: int, texts: list[str], references: list[str]
) -> dict[str, Any]:
    """The figures of one input, means over runs."""
    utilities = np.asarray(pairwise.chrf(texts), np.float64)
    quality = np.asarray(pairwise.chrf(texts, references)).max(1)
    risk, place = utilities.mean(1), {text: i for i, text in enumerate(texts)}
    best = int(risk.argmax())

    def utility(candidates: Sequence[str], samples: Sequence[str]) -> Any:
        return utilities[np.ix_([place[t] for t in candidates], [place[t] for t in samples])]

    figures: dict[str, Any] = {
        "different": len(place),
        "chrf": float(quality[best]),
        "chrf_of_samples": float(quality.mean()),
    }
    for name, arguments in ways(settings).items():
        columns: dict[str, list[float]] = {column: [] for column in FIGURES}
        for key in keys_of(settings["seed"], f"{name}, input {number}", range(settings["runs"])):
            chosen = pruning.minimum_bayes_risk(key, texts, utility, **arguments)
            columns["utilities"].append(100 * chosen.num_utilities / len(place) ** 2)
            columns["same"].append(100.0 * (texts[chosen.best] == texts[best]))
            columns["lost"].append(float(risk[best] - risk[chosen.best]))
            columns["gained"].append(float(quality[chosen.best] - quality[best]))
        figures[name] = {column: float(np.mean(values)) for column, values in columns.items()}
    return figures


def analyse(inputs: Sequence[Mapping[str, Any]], seed: int) -> dict[str, dict[str, Any]]:
    """The means over inputs of every way, with intervals."""
    names = [name for name, value in inputs[0].items() if isinstance(value, dict)]
    return {
        name: {
            column: interval(mean, np.array([row[name][column] for row in inputs]), seed=seed)
            for column in FIGURES
        }
        for name in names
    }


def markdown(data: Mapping[str, Any]) -> str:
    """The table."""
    rows = [
        [
            name,
            *(shown(found[column], 2 if column in ("lost", "gained") else 1) for column in FIGURES),
        ]
        for name, found in data["results"].items()
    ]
    return (
        f"# Minimum Bayes risk, pruned: {data['model']} on {data['task']['name']}\n\n"
        f"{data['task']['inputs']} inputs, {data['num_samples']} samples each, of which "
        f"{data['different']:.1f} differ; {data['runs']} runs of each row; seed {data['seed']}. "
        f"All pairs choose texts of chrF {data['chrf']:.2f} against the references; the samples "
        f"have {data['chrf_of_samples']:.2f}. Brackets hold 95% intervals, by the bootstrap over "
        "inputs.\n\n" + table(["", *FIGURES.values()], rows)
    )


def plot(data: Mapping[str, Any], path: Path) -> None:
    """The part of equal choices over the part of the utilities."""
    figure, (ax,) = drawing.panels(height=4.2)
    groups = {"pruned": "alpha", "fewer samples": ""}
    for i, (label, start) in enumerate(groups.items()):
        points = [
            (name, found["utilities"], found["same"])
            for name, found in data["results"].items()
            if name.startswith("alpha") == bool(start)
        ]
        x = [found[0] for _, found, _ in points]
        drawing.intervals(ax, x, [same for *_, same in points], i, drawing.LINES[i], label=label)
        for at, (name, _, same) in zip(x, points, strict=True):
            text = name if start else name.partition(" ")[0]
            given = {"textcoords": "offset points", "fontsize": 9}
            ax.annotate(text, (at, same[0]), xytext=(6, -11), **given)
    ax.set_xlabel("utilities, % of all pairs")
    ax.set_ylabel("same choice as of all pairs, %")
    ax.margins(x=0.12)
    ax.legend()
    drawing.save(figure, path)


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.bayes_risk"))
