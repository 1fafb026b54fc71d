"""Variants of arithmetic sampling beside the lattice, and beside an order that knew the scores.

A code of a text can spread only what neighbouring codes have in common. If the scores rose along
the first half of the codes and fell along the second, a shifted lattice would see a function
without jumps, as even as the scores allow. Scores are not known before texts are whole, so no
decoder has that order: its deviation shows what knowing the scores would still take off. It is
estimated from all samples of an input by one code, independent or of lattices.

A control variate corrects a mean after the fact (``estimators.control_variates``). Each input's
coefficient is from lattices of N of all other inputs, as a user with one call has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Prompt
from decoding_jax.estimators import control_variates
from decoding_jax.text.token_scores import token_scores
from experiments import drawing
from experiments.papers.arithmetic_bound import Transformed
from experiments.papers.arithmetic_estimates import (
    halved,
    label,
    parts_of,
    ratio_of_deviations,
    variance_independent,
    variance_lattice,
    variance_of_parts,
)
from experiments.papers.decoding import Decoder, keys_of
from experiments.papers.metrics import NAMES
from experiments.papers.results import difference, interval, shown, signed, table

SHOWN = NAMES | {"log_prob": "log-probability"}
CONTROLLED = "control variate"


@jax.jit
def _surprises(model: Transformed, prompt: Prompt, tokens: Any, length: Any) -> Any:
    scores = token_scores(model, prompt, tokens)
    return control_variates.surprise(scores.log_prob, scores.entropy, length)


def measure_surprise(
    decoder: Decoder, cell: Any, transform: Any, name: str, rows: range, seed: int
) -> list[list[float]]:
    """The surprise of every sample of some rows of a cell, which are decoded again.

    Args:
      decoder: the model and the inputs.
      cell: with ``decode`` and ``runs``.
      transform: that of the cell, which must read no prefix.
      name: of the cell, which the keys belong to.
      rows: of the cell.
      seed: of the keys.
    """
    inputs = [row // cell.runs for row in rows]
    output = decoder(cell.decode, inputs, keys_of(seed, name, rows)).output
    model, prompt = decoder.bind(inputs)
    found = _surprises(Transformed(model, transform), prompt, output.tokens, output.length)
    return np.asarray(found, np.float64)[: len(inputs)].round(4).tolist()


def variance_ordered(scores: np.ndarray, count: int) -> np.ndarray:
    """The variance of the mean of every M/N-th of scores that rise and then fall: float64 ``[n]``.

    Args:
      scores: float64 ``[n, M]``, the samples of each input.
      count: N, a divisor of M.

    Example:
      >>> variance_ordered(np.array([[1.0, 4.0, 2.0, 3.0]]), 2)  # Of 1 and 4, or of 3 and 2.
      array([0.])
    """
    ordered = np.sort(scores, -1)
    ordered = np.concatenate([ordered[:, ::2], ordered[:, 1::2][:, ::-1]], -1)
    return ordered.reshape(len(scores), count, -1).mean(1).var(-1)


def variance_controlled(scores: np.ndarray, surprises: np.ndarray, count: int) -> np.ndarray:
    """The variance of the corrected mean of a lattice of N: float64 ``[n]``.

    Args:
      scores: float64 ``[n, R, M]``, as for ``variance_lattice``.
      surprises: of the same samples.
      count: N.
    """
    values, variate = (np.moveaxis(parts_of(x, count), 0, 2) for x in (scores, surprises))
    means = control_variates.controlled_means(jnp.asarray(values), jnp.asarray(variate))
    return variance_of_parts(np.moveaxis(np.asarray(means, np.float64), -1, 0))


def analyse(
    scores: Callable[[str, str], np.ndarray],
    surprises: Callable[[str], np.ndarray],
    given: dict[str, Any],
) -> list[dict]:
    """The deviations of all variants over independent ones, at all settings, metrics and N.

    Args:
      scores: from the name of a cell and a metric to float64 ``[n, runs, samples]``.
      surprises: from the name of a setting to those of the lattice's samples.
      given: the settings of the experiment.
    """
    largest, seed, found = given["max_samples"], given["seed"], []
    for pair in given["settings"]:
        of = label(pair)
        for metric in given["metrics"]:
            iid = scores(f"iid, {of}", metric)
            for count in (2**i for i in range(1, largest.bit_length())):
                theirs = variance_independent(iid, count)
                samples = scores(f"lattice, {of}", metric)
                lattice = variance_lattice(samples, count)
                row = {"setting": of, "metric": metric, "N": count}
                row["lattice"] = interval(ratio_of_deviations, lattice, theirs, seed=seed)
                pooled = np.concatenate([iid, samples], 1).reshape(len(iid), -1)
                known, one = variance_ordered(pooled, count), pooled.var(-1)
                row["ordered"] = interval(ratio_of_deviations, known, one / count, seed=seed)
                varied = {
                    name: variance_lattice(scores(f"{name}, {of}", metric), count)
                    for name in given["variants"]
                }
                varied[CONTROLLED] = variance_controlled(samples, surprises(of), count)
                for name, ours in varied.items():
                    ratio = interval(ratio_of_deviations, ours, theirs, seed=seed)
                    both = [ours, theirs], [lattice, theirs]
                    row[name] = {
                        "ratio": ratio,
                        "above lattice": difference(ratio_of_deviations, *both, seed=seed),
                        "halved": halved(ratio),
                    }
                found.append(row)
    return found


def markdown(data: dict[str, Any]) -> Iterator[str]:
    """A table for each metric and variant."""
    counts = [2**i for i in range(1, data["max_samples"].bit_length())]
    for metric in data["metrics"]:
        yield f"\n## Standard deviation of mean {SHOWN[metric]}: variants\n\n"
        for name, given in data["variants"].items():
            words = ", ".join(f'`{k}="{v}"`' for k, v in given.items())
            yield f"{name.capitalize()}: {words}. "
        yield "Control variate: the lattice, corrected by surprises.\n\n"
        rows = []
        for pair in data["settings"]:
            mine = [
                r
                for r in data["results"]["variants"]
                if r["setting"] == label(pair) and r["metric"] == metric
            ]
            rows.append([f"{label(pair)}, lattice", *(shown(r["lattice"], 2) for r in mine)])
            for name in (*data["variants"], CONTROLLED):
                rows += [
                    [name, *(shown(r[name]["ratio"], 2) for r in mine)],
                    ["above the lattice", *(signed(r[name]["above lattice"], 2) for r in mine)],
                    ["below one half", *(r[name]["halved"] for r in mine)],
                ]
            ordered = (shown(r["ordered"], 2) for r in mine)
            rows.append(["an order that knew the scores", *ordered])
        yield table(["setting", *(f"N = {n}" for n in counts)], rows)


def plot(data: dict[str, Any], path: Path) -> None:
    """A panel for each setting and each of the first and the last metric."""
    metrics = [data["metrics"][0], data["metrics"][-1]]
    settings = [label(pair) for pair in data["settings"]]
    figure, axes = drawing.panels(len(settings), 2, max(4.2, 2.7 * len(settings)))
    names = ["lattice", *data["variants"], CONTROLLED, "ordered"]
    for i, setting in enumerate(settings):
        for j, metric in enumerate(metrics):
            ax = axes[2 * i + j]
            rows = [
                r
                for r in data["results"]["variants"]
                if r["setting"] == setting and r["metric"] == metric
            ]
            for name, shift in zip(names, 2 ** drawing.shifts(len(names), 0.13), strict=True):
                at, ratios = [r["N"] * shift for r in rows], [_ratio(r[name]) for r in rows]
                drawing.named(ax, at, ratios, name)
            ax.axhline(0.5, color=drawing.GREY, linewidth=0.9)
            drawing.counts_axis(ax, sorted({r["N"] for r in rows}), "samples, N")
            ax.set_ylim(0, 1.15)
            ax.set_title(f"{SHOWN[metric]},\n{setting}")
            if j == 0:
                ax.set_ylabel("over independent")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.save(figure, path)


def _ratio(value: Any) -> Any:
    return value["ratio"] if isinstance(value, dict) else value
