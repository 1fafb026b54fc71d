"""The cases of the certificate: one a strategy, every pair of settings, or every combination."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from decoding_jax.strategies.speculative import VERIFIERS, TreeVerifier
from decoding_jax.testing.certificate import problems
from decoding_jax.testing.certificate.strategies import DRAFTS, Tested

Case = dict[str, Any]
NO_DRAFT = "-"
TREES = {
    name for name, draft in DRAFTS.items() if draft.num_drafts > 1 and draft.tree == "independent"
}
"""The drafts that only the verifiers of trees take."""
RUNS = ("as is", "alone", "eager", "sharded", "one key")
OTHER_RUNS = RUNS[1:]
EVERY = "every"
"""Stands for all levels of a factor in a merged case."""


Extent = Literal["quick", "pairs", "full"]
"""Which of the combinations of settings are cases."""


def cases_of(strategies: Sequence[Tested], extent: Extent) -> list[Case]:
    """The cases of a run.

    Args:
      strategies: the strategies under test.
      extent: "full" cases cover every combination of a strategy, a draft, a model, a transform and
        a stop condition. Each of them runs all combinations of the last two, in the ways of
        ``ways_of``. "quick" takes one of these cases for each strategy, in one way besides "as is";
        the models, drafts and ways take turns. "pairs" are as few cases of one combination each as
        cover every pair of levels.
    """
    factors = {
        "strategy": [strategy.name for strategy in strategies],
        "transform": list(problems.TRANSFORMS),
        "stop": list(problems.STOPS),
        "model": list(problems.MODEL_NAMES),
        "run": list(RUNS),
        "draft": [NO_DRAFT, *DRAFTS],
    }
    by_name = {strategy.name: strategy for strategy in strategies}

    def sensible(case: Case) -> bool:
        strategy = by_name[case["strategy"]]
        keyed = strategy.sampler or case["run"] != "one key"
        drafted = (case["draft"] != NO_DRAFT) == (strategy.draft is not None)
        verifier = VERIFIERS.get(case["strategy"].rpartition("/")[2])
        if case["draft"] in TREES and not isinstance(verifier, TreeVerifier):
            return False
        given = strategy.logits or case["transform"] != "history"
        taken = strategy.lockstep or case["model"] != "lockstep"
        taken = taken and (strategy.ties or case["model"] != "ties")
        return keyed and drafted and given and taken

    if extent == "pairs":
        return pairwise_cases(factors, sensible)
    # A merged case covers every transform and stop condition that is sensible.
    merged = factors | {"transform": [EVERY], "stop": [EVERY], "run": [EVERY]}
    order = {strategy.name: place for place, strategy in enumerate(strategies)}
    every = all_cases(merged, sensible)
    if extent == "quick":
        return [_turn(every, strategy, place) for place, strategy in enumerate(strategies)]
    return [
        case | {"run": ", ".join(ways_of(case, by_name[case["strategy"]], order[case["strategy"]]))}
        for case in every
    ]


def _turn(every: Sequence[Case], strategy: Tested, place: int) -> Case:
    """The merged case of a strategy, and the way of running it, whose turn it is at this place."""
    own = [case for case in every if case["strategy"] == strategy.name]
    ways = _other_ways(strategy)
    return own[place % len(own)] | {"run": ways[place % len(ways)]}


def _other_ways(strategy: Tested) -> list[str]:
    """The ways of running a strategy besides "as is"; a search has no key."""
    return [run for run in OTHER_RUNS if strategy.sampler or run != "one key"]


def ways_of(case: Case, strategy: Tested, place: int) -> list[str]:
    """The ways of running of a merged case, besides "as is".

    The cases of a strategy have all of them together. Each way compiles a program, which models of
    one structure share, so a strategy has some ways with the models that have trees and the others
    with the model in lockstep, and a speculative strategy has one way with each of a few drafts.

    Args:
      case: the case.
      strategy: its strategy.
      place: the place of the strategy in the list, which varies the assignment.
    """
    ways = _other_ways(strategy)
    if strategy.draft is not None:
        if case["draft"] in TREES:
            return ways[:1]
        plain = [name for name in DRAFTS if name not in TREES]
        turn = (place + plain.index(case["draft"])) % len(plain)
        return [*ways[turn : turn + 1]] or ["as is"]
    if not strategy.lockstep:
        return ways
    return ways[(place + (case["model"] == "lockstep")) % 2 :: 2]


def programs_of(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases in groups that share compiled programs."""
    key = lambda case: (case["strategy"], case["draft"], case["model"] == "lockstep")  # noqa: E731
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.values())


def problem_of(case: Case, strategy: Tested) -> problems.AnyProblem:
    """The problem of a case; a merged one where its transform and stop condition are ``EVERY``."""
    if case["transform"] != EVERY:
        return problems.Problem(case["model"], case["transform"], case["stop"])
    names = [name for name in problems.TRANSFORMS if strategy.logits or name != "history"]
    return problems.MergedProblem(case["model"], tuple(itertools.product(names, problems.STOPS)))


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
