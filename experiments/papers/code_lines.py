"""Whether samples of a model of code fit in the place of a held-out line.

    python -m experiments.papers.code_lines --gin_file=configs/papers/code_lines.gin

The model continues a function up to the end of a line that was taken out. Python itself checks a
sample: whether the function parses with it in the place of the line, and whether it is that line.
pass@N is the probability that one of N samples passes, of arithmetic samples and of independent
ones. The experiment continues where it was killed, and writes ``code_lines.json``, ``.md`` and
``.png``.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import decoding_jax
from decoding_jax import transforms
from experiments import drawing, held_out
from experiments.code_data import Line, parses
from experiments.papers import command
from experiments.papers.decoding import Decoder, keys_of
from experiments.papers.fewer_samples_results import COLUMNS, cells, compared, of_subsets
from experiments.papers.records import Records
from experiments.papers.results import table, versions, write
from experiments.papers.tasks import Task, spread

CRITERIA = {"parses": "the function parses", "line": "is the held-out line"}


def read(count: int | None = None, path: str = str(held_out.LINES)) -> list[Line]:
    """The held-out lines of a file, ``count`` of them at even distances; None for all."""
    rows = Path(path).read_text("utf-8").splitlines()
    return spread([Line(**json.loads(row)) for row in rows], count)


def run(
    model: tuple[Any, Any],
    model_name: str,
    lines: Sequence[Line],
    output_dir: str,
    temperatures: Sequence[float] = (0.5, 1.0),
    counts: Sequence[int] = (4, 16, 64),
    lanes: int = 64,
    max_new_tokens: int = 24,
    max_input_tokens: int = 192,
    seed: int = 0,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      model: the model and its tokenizer, as ``decoding_jax.load`` returns them.
      model_name: what the results call it.
      lines: what ``read`` returns.
      output_dir: the folder of the records and results.
      temperatures: of sampling.
      counts: the N of arithmetic samples, divisors of ``lanes``.
      lanes: the number of samples of a line, for each N and for independent ones.
      max_new_tokens, max_input_tokens: the limits of the lengths.
      seed: of all keys and of the bootstrap.

    Returns:
      What ``code_lines.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    for count in counts:
        if count < 1 or lanes % count:
            raise ValueError(f"counts: expected divisors of lanes, {lanes}, got {count}")
    task = Task("held-out lines", [x.prompt for x in lines], [[x.reference] for x in lines])
    decoder = Decoder(model, task, 1, max_new_tokens, max_input_tokens)
    described = {
        "model": model_name,
        "task": task.describe(),
        "temperatures": list(temperatures),
        "counts": list(counts),
        "lanes": lanes,
        "max_new_tokens": max_new_tokens,
        "max_input_tokens": max_input_tokens,
        "seed": seed,
    }
    work: dict[str, Callable[[], Any]] = {
        f"temperature {temperature:g}, line {i}": functools.partial(
            _line, described, decoder, line, i, temperature
        )
        for temperature in temperatures
        for i, line in enumerate(lines)
    }
    folder = Path(output_dir)
    made = Records(folder, described).complete(work)
    data = {
        "experiment": "lines of code",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": analyse(made, described),
    }
    write(folder, "code_lines", data, markdown, plot)
    return data


def _line(
    settings: dict[str, Any], decoder: Decoder, line: Line, number: int, temperature: float
) -> dict[str, Any]:
    """By criterion, how many independent samples pass, and the share of calls for each N."""

    @functools.cache
    def passes(text: str) -> dict[str, bool]:
        same = text.partition("\n")[0].rstrip() == line.reference.rstrip()
        return {"parses": parses(line, text), "line": same}

    def decode(points: str, count: int) -> dict[str, np.ndarray]:
        calls = settings["lanes"] // count
        keys = keys_of(settings["seed"], f"{points} {count} {number} {temperature}", range(calls))
        strategy = functools.partial(
            decoding_jax.arithmetic_sample,
            num_samples=count,
            points=points,
            transform=transforms.temperature(temperature),
        )
        batch = decoder(strategy, [number] * calls, keys, places=calls)
        found = [[passes(completion.text) for completion in row] for row in batch.completions]
        return {name: np.array([[x[name] for x in row] for row in found]) for name in CRITERIA}

    alone = decode("iid", max(settings["counts"]))
    calls = [decode("lattice", count) for count in settings["counts"]]
    return {
        name: {
            "right": int(alone[name].sum()),
            "passed": [float(found[name].any(1).mean()) for found in calls],
        }
        for name in CRITERIA
    }


def analyse(made: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each temperature, criterion and N."""
    rows = []
    lanes = settings["lanes"]
    for temperature in settings["temperatures"]:
        begin = f"temperature {temperature:g}, "
        values = [value for name, value in made.items() if name.startswith(begin)]
        for name in CRITERIA:
            curves = np.array([of_subsets(value[name]["right"], lanes) for value in values])
            passed = np.array([value[name]["passed"] for value in values])
            for i, count in enumerate(settings["counts"]):
                row = compared(curves, range(1, lanes + 1), passed[:, i], count, settings["seed"])
                rows.append({"temperature": temperature, "criterion": name, **row})
    return rows


def markdown(data: Mapping[str, Any]) -> str:
    """The table."""
    rows = [
        [f"{row['temperature']:g}", CRITERIA[row["criterion"]], *cells(row)]
        for row in data["results"]
    ]
    return (
        f"# Lines of code: {data['model']} in the place of held-out lines\n\n"
        f"{data['task']['inputs']} lines, {data['lanes']} samples of each, for each N and for"
        f" independent ones, of at most {data['max_new_tokens']} tokens up to the first line"
        f" break; seed {data['seed']}. Brackets hold 95% intervals, by the bootstrap over lines."
        " The last column is N over the number of independent samples that reach the same"
        " percentage, taken from 100%.\n\n"
    ) + table(["temperature", "a sample passes if", *COLUMNS], rows)


def plot(data: Mapping[str, Any], path: Path) -> None:
    """pass@N of arithmetic samples and of independent ones, and their difference, over N."""
    figure, axes = drawing.panels(1, 2, 4.6)
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in data["results"]:
        groups.setdefault((row["criterion"], row["temperature"]), []).append(row)
    for i, ((name, temperature), rows) in enumerate(groups.items()):
        look = drawing.look(i)
        n = np.array([row["N"] for row in rows])
        label = f"{CRITERIA[name]}, temperature {temperature:g}"
        arithmetic, independent = (
            [100 * row[key] for row in rows] for key in ("arithmetic", "independent")
        )
        axes[0].plot(n, arithmetic, "-", label=label, **look)
        axes[0].plot(n, independent, ":", markerfacecolor="white", **look)
        gain = 100 * np.array([row["gain"] for row in rows])
        shifted = n * 2 ** drawing.shifts(len(groups), 0.18)[i]
        drawing.intervals(axes[1], shifted, gain.tolist(), i)
    axes[0].set_title("solid, filled: arithmetic;\ndotted, hollow: independent")
    axes[1].set_title("arithmetic above independent,\nof the same lines")
    axes[0].set_ylabel("pass@N, %")
    axes[1].set_ylabel("difference, percentage points")
    axes[1].axhline(0, color=drawing.GREY, linewidth=0.9)
    for ax in axes:
        drawing.counts_axis(ax, data["counts"], "samples, N")
    axes[0].set_ylim(0, 105)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, handlelength=2.4)
    drawing.save(figure, path)


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.code_lines"))
