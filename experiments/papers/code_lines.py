"""Whether samples of a model of code fit in the place of a held-out line, or go on with a function.

    python -m experiments.papers.code_lines --gin_file=configs/papers/code_lines.gin
    python -m experiments.papers.code_lines --gin_file=configs/papers/code_lines_functions.gin

The model continues a function up to the end of a line that was taken out. Python itself checks a
sample: whether the function parses with it in the place of the line, and whether it is that line.
In the second form the model continues the first lines of a function, and a sample passes if they
parse with its whole lines, or if its first line is the held-out one. pass@k is the probability that
one of k samples passes. A vote elects the first line of a text that most of k samples have; it is
right if that line passes, as far as a line alone can, or if it is the most frequent one of all
samples of all samplers, where votes of more samples lead. The experiment continues where it was
killed, and writes ``code_lines.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoding_jax import transforms
from experiments import drawing, held_out
from experiments.code_data import Example, Line, continues, parses
from experiments.papers import command, samplers
from experiments.papers.decoding import Decoder
from experiments.papers.fewer_samples_results import of_subsets
from experiments.papers.options import Options
from experiments.papers.results import table, versions, write
from experiments.papers.samplers_results import COLUMNS, NOTE, cells, plot_gains, rows_of, sizes
from experiments.papers.tasks import Task, spread

CRITERIA = {
    "parses": "a sample parses",
    "line": "a sample is the held-out line",
    "vote parses": "the voted line parses",
    "vote line": "the voted line is the held-out one",
    "vote": "the voted line is the most frequent one",
}


def read(count: int | None = None, path: str = str(held_out.LINES)) -> list[Line]:
    """The held-out lines of a file, ``count`` of them at even distances; None for all."""
    rows = Path(path).read_text("utf-8").splitlines()
    return spread([Line(**json.loads(row)) for row in rows], count)


def read_functions(count: int | None = None, path: str = str(held_out.FUNCTIONS)) -> list[Example]:
    """The held-out beginnings of functions, as ``read``."""
    rows = Path(path).read_text("utf-8").splitlines()
    return spread([Example(**json.loads(row)) for row in rows], count)


def first_line(case: Line | Example, text: str) -> str:
    """The first line of a continuation; one of whole lines begins with a line break."""
    return (text if isinstance(case, Line) else text.lstrip("\n")).partition("\n")[0].rstrip()


def check(case: Line | Example, text: str) -> dict[str, bool]:
    """By criterion, whether a sample passes."""
    fits = parses(case, text) if isinstance(case, Line) else continues(case, text)
    return {"parses": fits, "line": first_line(case, text) == first_line(case, case.reference)}


def run(
    options: Options,
    lines: Sequence[Line] | Sequence[Example],
    kinds: Sequence[str] = tuple(samplers.SAMPLERS),
    temperatures: Sequence[float] = (0.5, 1.0),
    counts: Sequence[int] = (4, 8, 16),
    lanes: int = 64,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment; the task is made of the lines.
      lines: what ``read`` or ``read_functions`` returns.
      kinds: names of ``samplers.SAMPLERS``.
      temperatures: of sampling.
      counts: the k, rising, divisors of the last and of ``lanes``.
      lanes: the number of samples of a line by each sampler, in sets of the largest k;
        independent ones are twice as many.

    Returns:
      What ``code_lines.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    cases: Sequence[Line | Example] = lines
    kind = "lines" if isinstance(lines[0], Line) else "functions"
    task = Task(f"held-out {kind}", [x.prompt for x in lines], [[x.reference] for x in lines])
    options = dataclasses.replace(options, task=task)
    settings, decoder = samplers.settings_and_decoder(options, kinds, temperatures, counts, lanes)
    made = samplers.measured(
        options,
        settings,
        lambda i, temperature: _line(settings, decoder, cases[i], i, temperature),
        "line",
    )
    data = {
        "experiment": "lines of code",
        **settings,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": analyse(made, settings),
    }
    write(options.folder, "code_lines", data, markdown, plot)
    return data


def _line(
    settings: dict[str, Any],
    decoder: Decoder,
    line: Line | Example,
    number: int,
    temperature: float,
) -> dict[str, Any]:
    """How many independent samples pass, pass@k, and how often votes are right, by criterion."""
    lanes, counts = settings["lanes"], settings["counts"]
    texts = {}
    for name in ("independent", *settings["samplers"]):
        texts[name] = samplers.texts(
            decoder,
            number,
            name,
            counts[-1],
            lanes // counts[-1] * (2 if name == "independent" else 1),
            f"{temperature}",
            settings["seed"],
            transform=transforms.temperature(temperature),
        )
    texts["independent"] = [[text for row in texts["independent"] for text in row]]
    known = {t: check(line, t) for sets in texts.values() for row in sets for t in row}
    every = {t: first_line(line, t) for t in known}
    frequency = collections.Counter(every[t] for x in texts.values() for row in x for t in row)
    lines = list(frequency)
    elected = {"vote": np.array([frequency[x] == max(frequency.values()) for x in lines])}
    elected["vote line"] = np.array([check(line, x)["line"] for x in lines])
    if isinstance(line, Line):
        elected["vote parses"] = np.array([check(line, x)["parses"] for x in lines])
    found: dict[str, dict[str, Any]] = {}
    for criterion in ("parses", "line"):
        passes = {
            n: np.array([[known[t][criterion] for t in r] for r in x]) for n, x in texts.items()
        }
        found[criterion] = {"right": int(passes.pop("independent").sum())}
        for name, values in passes.items():
            found[criterion][name] = [samplers.dyadic(name, values, k) for k in counts]
    places = {x: i for i, x in enumerate(lines)}
    for name, sets in texts.items():
        answers = np.array([[places[every[t]] for t in row] for row in sets])
        of = sizes(2 * lanes) if name == "independent" else counts
        for criterion, right in elected.items():
            votes = [samplers.votes(name, answers, right, k) for k in of]
            found.setdefault(criterion, {})[name] = votes
    return found


def analyse(made: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each temperature, criterion, sampler and k."""
    rows, lanes = [], 2 * settings["lanes"]
    for temperature in settings["temperatures"]:
        begin = f"temperature {temperature:g}, "
        values = [value for name, value in made.items() if name.startswith(begin)]
        for criterion in (name for name in CRITERIA if name in values[0]):
            of = [value[criterion] for value in values]
            if "right" in of[0]:
                grid = list(range(1, lanes + 1))
                curves = np.array([of_subsets(x["right"], lanes) for x in of])
            else:
                grid, curves = sizes(lanes), np.array([x["independent"] for x in of])
            ours = {name: np.array([x[name] for x in of]) for name in settings["samplers"]}
            found = rows_of(curves, grid, ours, settings["counts"], settings["seed"])
            rows += [{"temperature": temperature, "criterion": criterion, **row} for row in found]
    return rows


def markdown(data: Mapping[str, Any]) -> str:
    """The table."""
    kind = data["task"]["name"].rpartition(" ")[2]
    place, end = (
        ("in the place of held-out lines", "up to the first line break")
        if kind == "lines"
        else ("after the first lines of held-out functions", "of which whole lines count")
    )
    return (
        f"# Code: {data['model']} {place}\n\n"
        f"{data['task']['inputs']} {kind}, {data['lanes']} samples of each by each sampler, in"
        f" sets of {data['counts'][-1]} and their parts, and twice as many independent ones, of at"
        f" most {data['max_new_tokens']} tokens {end}; seed {data['seed']}. Figures are in percent."
        f" {NOTE.format(of=kind)}\n\n"
    ) + table(
        ["temperature", "right if", *COLUMNS],
        [
            [f"{row['temperature']:g}", CRITERIA[row["criterion"]], *cells(row, 100, 2)]
            for row in data["results"]
        ],
    )


def plot(data: Mapping[str, Any], path: Path) -> None:
    """How far each sampler is above independent samples, over k: a row for each temperature."""
    drawn = [
        name for name in ("parses", "vote") if any(r["criterion"] == name for r in data["results"])
    ]
    groups = [(t, name) for t in data["temperatures"] for name in drawn]
    figure, axes = drawing.panels(
        len(data["temperatures"]), len(drawn), 1 + 2.9 * len(data["temperatures"])
    )
    for ax, (temperature, name) in zip(axes, groups, strict=True):
        rows = [
            r for r in data["results"] if (r["temperature"], r["criterion"]) == (temperature, name)
        ]
        plot_gains(ax, rows, data["samplers"], data["counts"], 100)
        ax.set_title(f"{CRITERIA[name]},\ntemperature {temperature:g}")
    for ax in axes[:: len(drawn)]:
        ax.set_ylabel("above independent, points")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.save(figure, path)


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.code_lines"))
