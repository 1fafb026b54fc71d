"""The tables and panels of the experiment on speculative sampling."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from experiments import drawing
from experiments.papers.results import between_groups, shown, signed, table
from experiments.papers.speculative_results import PERCENTILES

_THEORY = (
    "Theory is E / (K c + v), with E = (1 - a^(K + 1)) / (1 - a), a the acceptance, c the "
    "cost of a drafted token and v that of a call with K + 1 tokens. Leviathan et al. take "
    "v = 1. R / (K c + v) has R, the tokens of a loop as they were counted, in place of E: a text "
    "that ends within a loop leaves some of them unused. Operations are those of a call of the "
    "target with one token, for each token of the text; in theory (K c' + K + 1) / E, with c' for "
    "the operations of the draft.\n\n"
)


def markdown(data: dict[str, Any]) -> str:
    """The tables of ``speculative.md``."""
    found = data["results"]["settings"]
    first = data["metrics"][0]
    return "".join(
        [
            _head(data),
            "\n## Quality and time\n\n",
            table(
                [
                    "setting",
                    "decoding",
                    *data["metrics"],
                    f"{first} above plain",
                    "ms a token",
                    "speed-up",
                ],
                _quality(data),
            ),
            "\n## Acceptance by domain\n\n",
            table(*_domains(data)),
            "\nThe differences are of inputs of different domains, from their intervals.\n\n",
            table(*_domain_differences(data)),
            "\n## Percentiles of a token's latency, ms\n\n",
            "The tokens of a loop share its time. The first token is left out.\n\n",
            table(["setting", "decoding", *(f"{q}th" for q in PERCENTILES)], _latencies(data)),
            "\n## Over K\n\n",
            table(
                [
                    "setting",
                    "K",
                    "acceptance",
                    "tokens a loop / (K + 1)",
                    "in theory",
                    "ms a loop",
                    "over a plain token",
                ],
                (
                    [
                        *(of, size),
                        shown(value["acceptance"], 2),
                        shown(value["tokens a loop over K + 1"], 2),
                        f"{value['theory of tokens a loop']:.2f}",
                        shown(value["ms a loop"], 2),
                        shown(value["loop over a plain token"], 2),
                    ]
                    for of, values in found.items()
                    for size, value in _over_k(data, values)
                ),
            ),
            "\n## Speed-up and operations, beside theory\n\n",
            _THEORY,
            _beside_theory(data),
        ]
    )


def _beside_theory(data: dict[str, Any]) -> str:
    found = data["results"]["settings"]
    return table(
        [
            "setting",
            "K",
            "speed-up",
            "of the loop",
            "in theory, v = 1",
            "in theory",
            "R / (K c + v)",
            "loop over it",
            "operations",
            "in theory",
        ],
        (
            [
                *(of, size),
                shown(value["speed-up"], 2),
                shown(value["speed-up of the loop"], 2),
                f"{value['theory of speed-up, v = 1']:.2f}",
                f"{value['theory of speed-up']:.2f}",
                f"{value['speed-up by counted tokens']:.2f}",
                shown(value["speed-up over that"], 2),
                shown(value["operations"], 2),
                f"{value['theory of operations']:.2f}",
            ]
            for of, values in found.items()
            for size, value in _over_k(data, values)
        ),
    )


def _head(data: dict[str, Any]) -> str:
    results = data["results"]
    costs = ", ".join(f"{results['costs'][str(size)]:.2f} for K = {size}" for size in data["sizes"])
    drafts = "; ".join(
        f"{shown(v['cost of a drafted token'], 2)} ({of})" for of, v in results["settings"].items()
    )
    used = data["versions"]["cpus_used"] or data["versions"]["cpus"]
    return (
        f"# Speculative sampling: {data['model']} with {data['draft']} on "
        f"{data['task']['name']}\n\n"
        f"{data['task']['inputs']} inputs, one at a time, at most {data['max_new_tokens']} "
        f"tokens, the median of {data['repeats']} timed runs in turn, on "
        f"{used} of {data['versions']['cpus']} processors ({data['versions']['device']}); "
        f"verifier {data['verifier']}, seed {data['seed']}. Brackets hold 95% "
        "intervals, by the bootstrap over inputs. Times of a loop, and the speed-up of the loop, "
        "are without the time of decoding a single token, which is that of the prefills.\n\n"
        f"Relative to a token of the target, a drafted token takes c = {drafts}, and "
        f"{results['costs']['operations']:.2f} of its operations. A call of the "
        f"target with K + 1 tokens takes, relative to one with a single token, v = {costs}.\n"
    )


def _ways(data: dict[str, Any]) -> list[tuple[str, str]]:
    chosen = str(data["table_size"])
    return [("target", "plain"), (chosen, f"speculative, K = {chosen}")]


def _over_k(data: dict[str, Any], values: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    return [(size, values["ways"][str(size)]) for size in data["sizes"]]


def _quality(data: dict[str, Any]) -> list[list[str]]:
    rows = []
    for of, values in data["results"]["settings"].items():
        for way, name in _ways(data):
            value, plain = values["ways"][way], way == "target"
            rows.append(
                [
                    of,
                    name,
                    *(shown(value["scores"][m], 1) for m in data["metrics"]),
                    "" if plain else shown(value["score above plain"], 1),
                    shown(value["ms a token"], 2),
                    "1" if plain else shown(value["speed-up"], 2),
                ]
            )
    return rows


def _domains(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    chosen = str(data["table_size"])
    rows, names = [], ["all"]
    for of, values in data["results"]["settings"].items():
        value = values["ways"][chosen]
        domains = value["domains"]
        names = ["all", *(f"{name} ({d['inputs']} inputs)" for name, d in domains.items())]
        rates = [value["acceptance"], *(d["acceptance"] for d in domains.values())]
        rows.append([of, *(shown(rate, 2) for rate in rates)])
    return [f"setting, K = {chosen}", *names], rows


def _domain_differences(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    chosen = str(data["table_size"])
    rows, names = [], []
    for of, values in data["results"]["settings"].items():
        pairs = list(itertools.combinations(values["ways"][chosen]["domains"].items(), 2))
        names = [f"{a} - {b}" for (a, _), (b, _) in pairs]
        apart = [between_groups(a["acceptance"], b["acceptance"]) for (_, a), (_, b) in pairs]
        rows.append([of, *(signed(x, 2) for x in apart)])
    return [f"acceptance, K = {chosen}", *names], rows


def _latencies(data: dict[str, Any]) -> list[list[str]]:
    rows = []
    for of, values in data["results"]["settings"].items():
        for way, name in _ways(data):
            value = values["ways"][way]
            rows.append([of, name, *(shown(value["latency"][str(q)], 2) for q in PERCENTILES)])
        ratios = values["ways"][str(data["table_size"])]["latency over plain"]
        rows.append([of, "over plain", *(shown(ratios[str(q)], 2) for q in PERCENTILES)])
    return rows


def plot(data: dict[str, Any], path: Path) -> None:
    """Panels over K, or over the temperature where there is one K."""
    if len(data["sizes"]) > 1:
        _plot_over_k(data, path)
    else:
        _plot_over_temperature(data, path)


def _plot_over_temperature(data: dict[str, Any], path: Path) -> None:
    """The acceptance, the score above plain decoding, the time of a token, and its percentiles."""
    figure, axes = drawing.panels(2, 2, 7.0)
    (size,) = data["sizes"]
    x = np.asarray([temperature for temperature, _ in data["settings"]])
    ways = [values["ways"][str(size)] for values in data["results"]["settings"].values()]
    names = ("acceptance", "score above plain")
    panels = [
        (names[0], [w[names[0]] for w in ways]),
        (f"{data['metrics'][0]} above plain", [w[names[1]] for w in ways]),
        ("speed-up", [w["speed-up"] for w in ways]),
    ]
    for ax, (words, found) in zip(axes, panels, strict=False):
        drawing.intervals(ax, x, found, 0, "-")
        ax.set_ylabel(words)
    axes[0].set_ylim(0, 1)
    axes[1].axhline(0, color=drawing.GREY, linewidth=0.9)
    axes[2].set_ylim(0)
    shifts = drawing.shifts(len(PERCENTILES), 0.03)
    for i, (q, shift) in enumerate(zip(PERCENTILES, shifts, strict=True)):
        found = [w["latency over plain"][str(q)] for w in ways]
        drawing.intervals(axes[3], x + shift, found, i, "-", label=f"{q}th")
    axes[3].set_ylabel("percentile of a token's\ntime / plain decoding")
    axes[3].set_ylim(0)
    axes[3].legend(loc="lower right", ncols=3, columnspacing=1, handlelength=2)
    for ax in axes:
        ax.set_xlabel("temperature")
        ax.set_xticks(x)
    for ax in axes[2:]:
        ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    drawing.save(figure, path)


def _plot_over_k(data: dict[str, Any], path: Path) -> None:
    """The time of a token, the tokens of a loop, the time of a loop, and the speed-up."""
    figure, axes = drawing.panels(2, 2, 7.4)
    sizes, settings = data["sizes"], data["results"]["settings"]
    names = ("tokens a loop over K + 1", "loop over a plain token", "speed-up of the loop")
    places = drawing.shifts(len(settings), 0.14)
    for i, (values, shift) in enumerate(zip(settings.values(), places, strict=True)):
        ways = [way for _, way in _over_k(data, values)]
        x = [k + shift for k in sizes]
        over = [[1 / way["speed-up"][end] for end in (0, 2, 1)] for way in ways]
        for ax, found in zip(axes, [over, *([w[n] for w in ways] for n in names)], strict=True):
            drawing.intervals(ax, x, found, i, "-")
        for ax, name, line in (
            (axes[1], "theory of tokens a loop", ":"),
            (axes[3], "theory of speed-up", ":"),
            (axes[3], "theory of speed-up, v = 1", "--"),
        ):
            ax.plot(sizes, [w[name] for w in ways], line, color=drawing.COLOURS[i])
    labels = (
        "time of a token / plain decoding",
        "tokens of a loop / (K + 1)",
        "time of a loop / plain token",
        "speed-up of the loop",
    )
    for ax, words in zip(axes, labels, strict=True):
        ax.set_xlabel("drafted tokens, K")
        ax.set_ylabel(words)
        ax.set_xticks(sizes)
        ax.set_ylim(0)
    for ax in (axes[0], axes[3]):
        ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    handles = [
        Line2D([], [], label=of, linestyle="-", **drawing.look(i)) for i, of in enumerate(settings)
    ]
    theory = {"theory": ":", "theory with v = 1": "--"}
    handles += [Line2D([], [], label=n, linestyle=x, color=drawing.GREY) for n, x in theory.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    drawing.save(figure, path)
