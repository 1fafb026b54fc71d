"""The strategies of the library under test, and any strategy by its name."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

import decoding_jax
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.strategies.speculative import VERIFIERS
from decoding_jax.testing.certificate import expectations
from decoding_jax.testing.certificate.contrastive import ALPHA, TOP_K
from decoding_jax.testing.certificate.drafts import DRAFTS
from decoding_jax.testing.certificate.exhaustive import rank_sequences, rank_two_groups
from decoding_jax.testing.certificate.expectations import Expectation
from decoding_jax.testing.certificate.problems import LENGTH, PROMPTS, VOCAB
from decoding_jax.testing.certificate.strategies import SAMPLES, Strategy, import_strategy

EVERY = VOCAB ** (LENGTH - 1)
"""The largest number of hypotheses that can still be running before the last step."""
PHRASES = np.array(
    [[[-1, 1]], [[2, 3]], [[-1, -1]], [[0, 0]], [[-1, 2]], [[1, 3]], [[-1, 0]], [[3, 3]]], np.int32
)
"""What the sequences of each prompt must contain in a constrained search."""
ALTERNATIVES = (((0,), (2, 1)),)
PENALTIES = np.array([0.0, 0.5, 0.05, 2.0, 0.0, 0.2, 1.0, 0.01], np.float32)
"""The diversity penalty of each prompt."""


def known() -> dict[str, Strategy]:
    """The library's strategies by name."""
    found = [_public("greedy", "greedy", sampler=False)]
    found.append(_public("sample", "sample", independent=True))
    spreads = {"lattice": 1.0, "stratified": 2.0}
    for points in ("lattice", "stratified", "antithetic", "iid", "radical_inverse"):
        name = f"arithmetic_sample/{points}"
        independent = points == "iid"
        strategy = _public(name, "arithmetic_sample", independent=independent, points=points)
        found.append(dataclasses.replace(strategy, spread=spreads.get(points)))
    found += _beams()
    # Room for every node and every child: no outcome of the certificate's problems is out of reach.
    room: dict[str, Any] = {"sampler": False, "budget": 100, "gamma": 0.0}
    search = _public("best_first_search", "best_first_search", **room)
    found.append(dataclasses.replace(search, likeliest=True, lockstep=False))
    search = _public("best_k_search", "best_k_search", k=SAMPLES, **room)
    ranked = functools.partial(expectations.are_ranked, rank=expectations.rank_by_model)
    found.append(dataclasses.replace(search, expectation=ranked, lanes=SAMPLES, lockstep=False))
    # Where candidates are equally probable, the last bit of a cosine decides.
    settings: dict[str, Any] = {"sampler": False, "penalty_alpha": ALPHA, "top_k": TOP_K}
    contrastive = _public("contrastive_search", "contrastive_search", **settings)
    contrastive = dataclasses.replace(contrastive, expectation=expectations.is_contrastive)
    found.append(dataclasses.replace(contrastive, lockstep=False, ties=False))
    for verifier in VERIFIERS:
        found.append(_speculative(verifier))
    return {strategy.name: strategy for strategy in found}


def _beams() -> list[Strategy]:
    """The beam searches.

    A beam of ``EVERY`` keeps every running hypothesis, so a search has to find the sequences with
    the best scores of all. Each group of a diverse search is wide enough to keep all hypotheses to
    the end, so that what the second is penalised for does not depend on ties.
    """
    ranked = functools.partial(expectations.are_ranked, rank=rank_sequences)
    wide: dict[str, Any] = {"sampler": False, "beam_size": EVERY}
    found = [
        dataclasses.replace(
            _public("beam_search/1", "beam_search", sampler=False, beam_size=1), logits=False
        ),
        _ranked("beam_search", ranked, num_return=SAMPLES, **wide),
        _ranked(
            "diverse_beam_search",
            functools.partial(expectations.are_ranked, rank=rank_two_groups(PENALTIES)),
            num_groups=2,
            num_return=SAMPLES,
            **(wide | {"beam_size": 2 * VOCAB**LENGTH}),
        ),
    ]
    penalties = lambda rows: {"diversity_penalty": PENALTIES[rows % PROMPTS]}  # noqa: E731
    found[-1] = dataclasses.replace(found[-1], row_settings=penalties)
    must = functools.partial(
        expectations.are_ranked,
        rank=expectations.rank_with_constraints(PHRASES, ALTERNATIVES),
    )
    # The candidates of twice that width are all continuations.
    constrained = _ranked(
        "constrained_beam_search",
        must,
        num_return=SAMPLES,
        **(wide | {"beam_size": 2 * EVERY}),
    )
    constraints = lambda rows: {  # noqa: E731
        "constraints": Constraints(PHRASES[rows % PROMPTS], ALTERNATIVES)
    }
    found.append(dataclasses.replace(constrained, row_settings=constraints))
    for size in (1, 2):
        drawn = _public(f"beam_sample/{size}", "beam_sample", beam_size=size)
        drawn = dataclasses.replace(drawn, expectation=expectations.follows_beam_sample)
        drawn = dataclasses.replace(drawn, lanes=size, takes_count=False, ties=size == 1)
        found.append(drawn)
    drawn = _public("stochastic_beam_search", "stochastic_beam_search", beam_size=SAMPLES)
    found.append(
        dataclasses.replace(
            drawn,
            expectation=expectations.are_draws_without_replacement,
            takes_count=False,
            info_fields=("sampling_log_prob",),
        )
    )
    return found


def _ranked(function: str, expectation: Expectation, **options: Any) -> Strategy:
    """A search that returns the ``SAMPLES`` best sequences of a ranking."""
    strategy = _public(function, function, **options)
    return dataclasses.replace(strategy, expectation=expectation, lanes=SAMPLES, trees=False)


def _speculative(verifier: str) -> Strategy:
    """Speculative decoding with one of the verifiers; ``with_draft`` chooses the draft."""
    strategy = _public(
        f"speculative_sample/{verifier}",
        "speculative_sample",
        sampler=verifier != "greedy",
        independent=verifier not in ("greedy", "code", "coded_token"),
        verifier=verifier,
    )
    spread = 1.0 if verifier == "code" else None
    draft = next(iter(DRAFTS.values()))
    return dataclasses.replace(strategy, spread=spread, draft=draft, lockstep=False)


def _public(
    name: str, function: str, *, sampler: bool = True, independent: bool = False, **options: Any
) -> Strategy:
    """A strategy of the library: jitted from the top level, plain from ``strategies``."""
    jitted = getattr(decoding_jax, function)
    plain = getattr(decoding_jax.strategies, function)
    bind = functools.partial
    return Strategy(name, bind(jitted, **options), bind(plain, **options), sampler, independent)


def find(names: list[str]) -> list[Strategy]:
    """Finds strategies by name, by the part before a slash, or by ``module:function``.

    Args:
      names: the names; all strategies of the library if there are none.
    """
    table = known()
    found: list[Strategy] = []
    for name in names:
        matching = [s for key, s in table.items() if name in (key, key.partition("/")[0])]
        found += matching or [import_strategy(name)]
    return found or list(table.values())
