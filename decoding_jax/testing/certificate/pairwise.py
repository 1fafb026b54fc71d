"""Covering arrays: a few cases in which every pair of settings occurs together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]


def all_cases(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool] | None = None
) -> list[Case]:
    """Every combination of the factors' levels that is allowed, in order.

    Example:
      >>> all_cases({"a": [0, 1], "b": "x"})
      [{'a': 0, 'b': 'x'}, {'a': 1, 'b': 'x'}]
    """
    cases = [
        dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())
    ]
    return [case for case in cases if allowed is None or allowed(case)]


def pairwise_cases(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool] | None = None
) -> list[Case]:
    """Cases in which every pair of levels of two factors occurs, if any allowed case has it.

    The choice is greedy: each case covers the largest number of pairs that are not covered yet, and
    the earliest of equal cases is taken, so the result is the same every time.

    Args:
      factors: the name and the (hashable) levels of each.
      allowed: which cases make sense; all by default.

    Example:
      >>> cases = pairwise_cases({"a": [0, 1, 2], "b": "xyz", "c": "uvw"})
      >>> len(cases) < 3 * 3 * 3, {(c["b"], c["c"]) for c in cases} >= {("x", "w"), ("z", "u")}
      (True, True)
    """
    pool = all_cases(factors, allowed)
    pairs = [frozenset(itertools.combinations(case.items(), 2)) for case in pool]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        gains = [len(p & missing) for p in pairs]
        best = gains.index(max(gains))
        chosen.append(pool[best])
        missing -= pairs[best]
    return chosen
