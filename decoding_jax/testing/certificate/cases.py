"""The cases of the certificate: every combination of settings that makes sense, or every pair."""

from __future__ import annotations

from collections.abc import Sequence

from decoding_jax.testing.certificate.drafts import DRAFTS
from decoding_jax.testing.certificate.pairwise import Case, all_cases, pairwise_cases
from decoding_jax.testing.certificate.problems import MODEL_NAMES, STOPS, TRANSFORMS
from decoding_jax.testing.certificate.strategies import Strategy

NO_DRAFT = "-"
TREES = {name for name, draft in DRAFTS.items() if draft.num_drafts > 1}
RUNS = ("as is", "alone", "eager", "sharded", "one key")
PROGRAM = ("strategy", "transform", "stop", "draft")
"""The factors that make another program of a case."""


def cases_of(strategies: Sequence[Strategy], full: bool = False) -> list[Case]:
    """The cases of a run: every combination of levels, or as many as cover every pair."""
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
    # Cases of one program stand together: it is compiled once.
    return sorted(all_cases(factors, sensible), key=lambda case: [case[name] for name in PROGRAM])
