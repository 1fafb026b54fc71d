"""What the measurements of speculative sampling come to: estimates, beside theory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from decoding_jax.strategies.speculative import emitted_tokens, speed_up
from experiments.papers.results import Estimate, interval, mean

PERCENTILES = (50, 90, 99)


def label(pair: Sequence[float]) -> str:
    """The name of a temperature and a top-p.

    Example:
      >>> label((0.0, 1.0)), label((1.0, 0.8)), label((0.8, 0.95)), label((0.5, 1.0))
      ('greedy', 'nucleus 0.8', 'temperature 0.8, top-p 0.95', 'temperature 0.5')
    """
    temperature, top_p = pair
    if temperature == 0:
        return "greedy"
    if top_p == 1:
        return f"temperature {temperature:g}"
    if temperature == 1:
        return f"nucleus {top_p:g}"
    return f"temperature {temperature:g}, top-p {top_p:g}"


def quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The sum of one column over that of another, for ``interval``."""
    return above.sum(-1) / below.sum(-1)


def quotient_of_quotients(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """``(a / b) / (c / d)`` of the sums of columns, for ``interval``."""
    return quotient(a, b) / quotient(c, d)


def percentile(
    rows: Sequence[Sequence[float]],
    q: float,
    seed: int,
    below: Sequence[Sequence[float]] | None = None,
    resamples: int = 500,
) -> Estimate:
    """A percentile of the values of all inputs together; its interval resamples inputs.

    Args:
      rows: the values of each input.
      q: the percentile, from 0 to 100.
      seed: of the resampling.
      below: other values of the same inputs, whose percentile the first is divided by.
      resamples: how many.
    """
    lists = [[np.asarray(row, float) for row in each] for each in (rows, below or [])]

    def of(inputs: Iterable[int]) -> float:
        found = [np.concatenate([each[i] for i in inputs]) for each in lists if each]
        if not all(map(len, found)):
            return float("nan")
        values = [float(np.percentile(values, q)) for values in found]
        return values[0] / values[1] if below else values[0]

    rng = np.random.default_rng(seed)
    drawn = np.asarray([of(rng.integers(0, len(rows), len(rows))) for _ in range(resamples)])
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return Estimate(of(range(len(rows))), float(low), float(high))


def analyse(
    measured: Mapping[str, list[dict[str, Any]]],
    costs: dict[str, float],
    given: dict[str, Any],
    domains: Sequence[str] | None = None,
) -> dict[str, Any]:
    """All estimates, as JSON values.

    Times "of the loop" are without those of decoding one token, which are prefills.
    """
    seed = given["seed"]
    ways = ["target", "draft", *map(str, given["sizes"])]
    found: dict[str, Any] = {"costs": costs, "settings": {}}
    for of, rows in measured.items():

        def column(way: str, name: str, rows: list[Any] = rows) -> np.ndarray:
            return np.asarray([row[way][name] for row in rows], float)

        target = column("target", "seconds"), column("target", "tokens")
        loops = [
            value
            for way in ("draft", "target")
            for value in (column(way, "seconds") - column("first", way), column(way, "tokens") - 1)
        ]
        cost = interval(quotient_of_quotients, *loops, seed=seed)
        first = given["metrics"][0]
        of_ways: dict[str, Any] = {}
        for way in ways:
            seconds, tokens = column(way, "seconds"), column(way, "tokens")
            each = 1e3 * seconds / np.maximum(tokens, 1)
            scores = {
                m: np.asarray([row[way]["scores"][m] for row in rows]) for m in given["metrics"]
            }
            plain = np.asarray([row["target"]["scores"][first] for row in rows])
            value: dict[str, Any] = {
                "ms a token": interval(quotient, 1e3 * seconds, tokens, seed=seed),
                "deviation of ms a token": float(each.std(ddof=1)) if len(each) > 1 else 0.0,
                "speed-up": interval(quotient_of_quotients, *target, seconds, tokens, seed=seed),
                "scores": {m: interval(mean, x, seed=seed) for m, x in scores.items()},
                "score above plain": interval(mean, scores[first] - plain, seed=seed),
            }
            if way not in ("target", "draft"):
                value |= _loops(column, way, loops, costs, seed)
                value["domains"] = _domains(column, way, domains, seed)
            if "latencies" in rows[0][way]:
                lists = [row[way]["latencies"] for row in rows]
                plainly = [row["target"]["latencies"] for row in rows]
                value["latency"] = {str(q): percentile(lists, q, seed) for q in PERCENTILES}
                value["latency over plain"] = {
                    str(q): percentile(lists, q, seed, plainly) for q in PERCENTILES
                }
            of_ways[way] = value
        found["settings"][of] = {"cost of a drafted token": cost, "ways": of_ways}
    return found


def _domains(
    column: Any, way: str, domains: Sequence[str] | None, seed: int
) -> dict[str, dict[str, Any]]:
    """The number of inputs of each domain, and how often drafted tokens are accepted there."""
    accepted, rejected = column(way, "accepted"), column(way, "rejected")
    found = {}
    for domain in sorted(set(domains or ())):
        mine = np.asarray([name == domain for name in domains or ()])
        rate = interval(acceptance, accepted[mine], rejected[mine], seed=seed)
        found[domain] = {"inputs": int(mine.sum()), "acceptance": rate}
    return found


def acceptance(accepted: np.ndarray, rejected: np.ndarray) -> np.ndarray:
    """The share of the drafted tokens verified that were accepted, for ``interval``."""
    return accepted.sum(-1) / (accepted.sum(-1) + rejected.sum(-1))


def _loops(
    column: Any, way: str, plain: Sequence[np.ndarray], costs: dict[str, float], seed: int
) -> dict[str, Any]:
    """The figures of speculation with K drafted tokens.

    Args:
      column: ``(way, name)`` to the values of the inputs.
      way: K.
      plain: seconds of the loop and its tokens, of the draft and of the target.
      costs: see ``speculative.block_costs``.
      seed: of the intervals.
    """
    size, block, cheap = int(way), costs[way], costs["operations"]
    seconds = column(way, "seconds") - column("first", "speculation")
    counts = [column(way, name) for name in ("accepted", "rejected")]
    emitted, blocks = column(way, "emitted"), column(way, "blocks")
    rate = interval(acceptance, *counts, seed=seed)
    cost = float(quotient_of_quotients(*plain))
    tokens = float(emitted_tokens(rate.value, size))

    def over_theory(*columns: np.ndarray) -> np.ndarray:
        a, b, c, d, seconds, emitted, blocks = columns
        costs = size * quotient_of_quotients(a, b, c, d) + block
        theory = quotient(emitted, blocks) / costs
        return quotient_of_quotients(c, d, seconds, emitted) / theory

    return {
        "acceptance": rate,
        "tokens a loop over K + 1": interval(quotient, emitted, blocks * (size + 1), seed=seed),
        "theory of tokens a loop": tokens / (size + 1),
        "ms a loop": interval(quotient, 1e3 * seconds, blocks, seed=seed),
        "loop over a plain token": interval(
            quotient_of_quotients, seconds, blocks, *plain[2:], seed=seed
        ),
        "speed-up of the loop": interval(
            quotient_of_quotients, *plain[2:], seconds, emitted, seed=seed
        ),
        "theory of speed-up, v = 1": float(speed_up(tokens, size, cost)),
        "theory of speed-up": float(speed_up(tokens, size, cost, block)),
        "speed-up by counted tokens": float(speed_up(quotient(emitted, blocks), size, cost, block)),
        "speed-up over that": interval(over_theory, *plain, seconds, emitted, blocks, seed=seed),
        "operations": interval(quotient, blocks * (size * cheap + size + 1), emitted, seed=seed),
        "theory of operations": (size * cheap + size + 1) / tokens,
    }
