"""The cases of the certificate: every combination of settings that makes sense, or every pair."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from decoding_jax.testing.certificate.drafts import DRAFTS
from decoding_jax.testing.certificate.merged import MergedProblem
from decoding_jax.testing.certificate.pairwise import Case, all_cases, pairwise_cases
from decoding_jax.testing.certificate.problems import MODEL_NAMES, STOPS, TRANSFORMS, Problem
from decoding_jax.testing.certificate.strategies import Strategy

NO_DRAFT = "-"
TREES = {name for name, draft in DRAFTS.items() if draft.num_drafts > 1}
RUNS = ("as is", "alone", "eager", "sharded", "one key")
EVERY = "every"
"""Stands for all levels of a factor in a merged case."""


def cases_of(strategies: Sequence[Strategy], full: bool = False) -> list[Case]:
    """The cases of a run.

    Args:
      strategies: the strategies under test.
      full: whether the cases cover every combination of levels. Each of them then runs all
        combinations of a transform, a stop condition and a way of running. By default they are as
        few as cover every pair of levels.
    """
    factors = {
        "strategy": [strategy.name for strategy in strategies],
        "transform": list(TRANSFORMS),
        "stop": list(STOPS),
        "model": list(MODEL_NAMES),
        "run": list(RUNS),
        "draft": [NO_DRAFT, *DRAFTS],
    }
    by_name = {strategy.name: strategy for strategy in strategies}

    def sensible(case: Case) -> bool:
        strategy = by_name[case["strategy"]]
        keyed = strategy.sampler or case["run"] != "one key"
        drafted = (case["draft"] != NO_DRAFT) == (strategy.draft is not None)
        if case["draft"] in TREES and not case["strategy"].endswith("/token"):
            return False
        given = strategy.logits or case["transform"] != "history"
        return keyed and drafted and given and (strategy.lockstep or case["model"] != "lockstep")

    if not full:
        return pairwise_cases(factors, sensible)
    # A merged case covers every transform, stop condition and way of running that is sensible.
    merged = factors | {"transform": [EVERY], "stop": [EVERY], "run": [EVERY]}
    return all_cases(merged, sensible)


def problem_of(case: Case, strategy: Strategy) -> Problem | MergedProblem:
    """The problem of a case; a merged one where its transform and stop condition are ``EVERY``."""
    if case["transform"] != EVERY:
        return Problem(case["model"], case["transform"], case["stop"])
    names = [name for name in TRANSFORMS if strategy.logits or name != "history"]
    return MergedProblem(case["model"], tuple(itertools.product(names, STOPS)))
