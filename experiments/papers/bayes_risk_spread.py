"""From how many spread samples minimum Bayes risk chooses as well as from N independent ones.

    python -m experiments.papers.bayes_risk_spread --gin_file=configs/papers/bayes_risk_spread.gin

A model draws N samples of every input, which are candidates and pseudo-references at once; the text
with the highest mean utility against all is chosen, and among equal ones each counts its part. The
figure is the score of the choice against the task's references, by the metric of the utility: chrF
and BLEU. Sets have as many samples as the largest N, and sets of fewer are parts of these
(``samplers.parts``). The experiment continues where it was killed, and writes
``bayes_risk_spread.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoding_jax import transforms
from decoding_jax.estimators import pairwise
from experiments import drawing
from experiments.papers import command, samplers
from experiments.papers.decoding import Decoder
from experiments.papers.options import Options
from experiments.papers.results import table, versions, write
from experiments.papers.samplers_results import COLUMNS, NOTE, cells, plot_gains, rows_of, sizes
from experiments.papers.tasks import Task

METRICS = {"chrf": "chrF", "bleu": "BLEU"}


def run(
    options: Options,
    kinds: Sequence[str] = tuple(samplers.SAMPLERS),
    temperatures: Sequence[float] = (1.0,),
    counts: Sequence[int] = (4, 8, 16, 32),
    lanes: int = 128,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment.
      kinds: names of ``samplers.SAMPLERS``.
      temperatures: of sampling.
      counts: the N of spread samples, rising, divisors of the last and of ``lanes``.
      lanes: the number of samples of an input by each sampler; independent ones are twice as many,
        in sets of ``lanes``.

    Returns:
      What ``bayes_risk_spread.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    settings, decoder = samplers.settings_and_decoder(options, kinds, temperatures, counts, lanes)
    made = samplers.measured(
        options,
        settings,
        lambda i, temperature: _input(settings, decoder, options.task, i, temperature),
        "input",
    )
    data = {
        "experiment": "minimum Bayes risk of spread samples",
        **settings,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": analyse(made, settings),
    }
    write(options.folder, "bayes_risk_spread", data, markdown, plot)
    return data


def chosen(utilities: np.ndarray, quality: np.ndarray) -> float:
    """The quality of the text with the highest mean utility, the mean over equally good ones.

    Args:
      utilities: float64 ``[N, N]``, of every sample against every one.
      quality: float64 ``[N]``.

    Example:
      >>> chosen(np.eye(3), np.array([1.0, 2, 6]))
      3.0
    """
    mean = utilities.mean(1)
    return float(quality[mean >= mean.max() - 1e-9].mean())


def _input(
    settings: dict[str, Any], decoder: Decoder, task: Task, number: int, temperature: float
) -> dict[str, Any]:
    """By metric, the mean quality of the choice: of independent samples, and of each sampler."""
    references = list(task.references[number])
    lanes, counts = settings["lanes"], settings["counts"]

    sets: dict[str, list[list[str]]] = {}
    for name in ("independent", *settings["samplers"]):
        size, calls = (lanes, 2) if name == "independent" else (counts[-1], lanes // counts[-1])
        key, transform = f"{temperature}", transforms.temperature(temperature)
        sets[name] = samplers.texts(
            decoder, number, name, size, calls, key, settings["seed"], transform=transform
        )

    def qualities(name: str, count: int, metric: str) -> float:
        """The mean over the smaller sets of all sets."""
        score, values = getattr(pairwise, metric), []
        for texts in sets[name]:
            utilities = np.asarray(score(texts), np.float64)
            quality = np.asarray(score(texts, references), np.float64).max(1)
            for part in samplers.parts(name, len(texts), count):
                values.append(chosen(utilities[np.ix_(part, part)], quality[part]))
        return float(np.mean(values))

    return {
        metric: {
            name: [
                qualities(name, n, metric)
                for n in (sizes(lanes) if name == "independent" else counts)
            ]
            for name in sets
        }
        for metric in METRICS
    }


def analyse(made: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each temperature, metric, sampler and N."""
    rows, names = [], settings["samplers"]
    for temperature in settings["temperatures"]:
        begin = f"temperature {temperature:g}, "
        values = [value for name, value in made.items() if name.startswith(begin)]
        for metric in METRICS:
            curves, *ours = (
                np.array([value[metric][name] for value in values])
                for name in ("independent", *names)
            )
            found = rows_of(
                curves,
                sizes(settings["lanes"]),
                dict(zip(names, ours, strict=True)),
                settings["counts"],
                settings["seed"],
            )
            rows += [{"temperature": temperature, "metric": metric, **row} for row in found]
    return rows


def markdown(data: Mapping[str, Any]) -> str:
    """The table."""
    header = ["temperature", "utility and score", *COLUMNS]
    return (
        f"# Minimum Bayes risk of spread samples: {data['model']} on {data['task']['name']}\n\n"
        f"{data['task']['inputs']} inputs, {data['lanes']} samples of each by each sampler, in sets"
        f" of {data['counts'][-1]} and their parts, and twice as many independent ones; the figure"
        f" is the score of the chosen text; seed {data['seed']}. {NOTE.format(of='inputs')}\n\n"
    ) + table(
        header,
        [
            [f"{row['temperature']:g}", METRICS[row["metric"]], *cells(row, 1, 2)]
            for row in data["results"]
        ],
    )


def plot(data: Mapping[str, Any], path: Path) -> None:
    """How far the score of the choice is above that from independent samples, over N."""
    groups = [(t, m) for t in data["temperatures"] for m in METRICS]
    figure, axes = drawing.panels(
        len(data["temperatures"]), len(METRICS), 1 + 2.9 * len(groups) / 2
    )
    for ax, (temperature, metric) in zip(axes, groups, strict=True):
        rows = [
            row
            for row in data["results"]
            if (row["temperature"], row["metric"]) == (temperature, metric)
        ]
        plot_gains(ax, rows, data["samplers"], data["counts"], 1)
        ax.set_title(f"{METRICS[metric]}, temperature {temperature:g}")
    axes[0].set_ylabel("score above independent")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.save(figure, path)


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.bayes_risk_spread"))
