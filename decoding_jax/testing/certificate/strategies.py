"""The strategies that the certificate knows, and how to name one's own.

A strategy of one's own is a function with the signature of a public strategy, and its kind is read
off that signature:

- a *sampler*, ``f(model, prompt, key, *, num_samples, max_new_tokens, transform, stop)``, is
  held to the exact distribution, lane by lane. ``key`` is a typed key, or one typed key for each row;
- a *search*, ``f(model, prompt, *, max_new_tokens, transform, stop)``, is held to the greedy path;
  the library's own best-first search, to the likeliest sequence of all.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import decoding_jax
from decoding_jax.base import DecodeOutput, Prompt
from decoding_jax.ops.jit import jit
from decoding_jax.strategies.speculative import VERIFIERS
from decoding_jax.testing.certificate.drafts import DRAFTS, Draft


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A strategy under test.

    Attributes:
      name: as the certificate prints it.
      function: jitted.
      plain: the same, not jitted.
      sampler: whether it takes a key and draws samples.
      independent: whether the lanes of a row are independent draws.
      draft: what is drafted for it, or None where nothing is.
      spread: how far the number of samples with a given prefix may be from N p (see
        ``checks.check_prefix_counts``), or None where it varies.
      likeliest: whether a search finds the likeliest sequence rather than the greedy path.
      lockstep: whether it decodes from a model with neither ragged rows nor trees.
      logits: whether its transforms are given logits. Beam searches give log-probabilities, and a
        penalty that depends on signs tells them apart.
    """

    name: str
    function: Callable[..., DecodeOutput]
    plain: Callable[..., DecodeOutput]
    sampler: bool
    independent: bool = False
    spread: float | None = None
    likeliest: bool = False
    lockstep: bool = True
    logits: bool = True
    draft: Draft | None = None

    def with_draft(self, name: str) -> Strategy:
        """With the draft of that name, for a strategy that takes one."""
        return dataclasses.replace(self, draft=DRAFTS[name]) if self.draft else self

    def __call__(
        self,
        model: Any,
        prompt: Prompt,
        keys: Any,
        num_samples: int,
        settings: dict[str, Any],
        *,
        eager: bool = False,
    ) -> DecodeOutput:
        """Calls the strategy; a search takes neither keys nor a number of samples."""
        function = self.plain if eager else self.function
        if self.draft is not None:
            _, size, count = self.draft
            settings = {**settings, "num_draft_tokens": size, "num_drafts": count}
            function = functools.partial(_drafted, function, self.draft.make(model))
        if self.sampler:
            return function(model, prompt, keys, num_samples=num_samples, **settings)
        return function(model, prompt, **settings)


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
    one = _public("beam_search", "beam_search", sampler=False, beam_size=1)
    found.append(dataclasses.replace(one, logits=False))
    # Room for every node and every child: no outcome of the certificate's problems is out of reach.
    search = _public("best_first_search", "best_first_search", sampler=False, budget=100, gamma=0.0)
    found.append(dataclasses.replace(search, likeliest=True, lockstep=False))
    for verifier in VERIFIERS:
        found.append(_speculative(verifier))
    return {strategy.name: strategy for strategy in found}


def _speculative(verifier: str) -> Strategy:
    """Speculative decoding with one of the verifiers, and a draft yet to be chosen."""
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


def _drafted(
    function: Callable[..., DecodeOutput],
    drafter: Any,
    model: Any,
    prompt: Prompt,
    *args: Any,
    **settings: Any,
) -> DecodeOutput:
    """A speculative strategy as one without a draft; a greedy one has no key to pass."""
    return function(model, drafter, prompt, *(args or (None,)), **settings)


def _public(
    name: str, function: str, *, sampler: bool = True, independent: bool = False, **options: Any
) -> Strategy:
    """One of the package's strategies: jitted from the top level, plain from ``strategies``."""
    jitted = getattr(decoding_jax, function)
    plain = getattr(decoding_jax.strategies, function)
    bind = functools.partial
    return Strategy(name, bind(jitted, **options), bind(plain, **options), sampler, independent)


def own(path: str) -> Strategy:
    """A strategy of one's own, ``"module:function"``.

    Raises:
      ValueError: for a path without a colon, or a name that is not there.
    """
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"--strategy: got {path}; takes a name of the list, or module:function")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--strategy: got {path}; {error}") from None
    return from_function(function, path)


def from_function(function: Callable[..., DecodeOutput], name: str) -> Strategy:
    """A strategy from a function, jitted or not."""
    sampler = "key" in inspect.signature(function).parameters
    plain = inspect.unwrap(function)
    if plain is function:
        static = ("num_samples", "max_new_tokens") if sampler else ("max_new_tokens",)
        function = jit(function, static)
    return Strategy(name, function, plain, sampler)


def find(names: list[str]) -> list[Strategy]:
    """Strategies by name, by the part before the slash, or by ``module:function``; all if none."""
    table = known()
    found: list[Strategy] = []
    for name in names:
        matching = [s for key, s in table.items() if name in (key, key.partition("/")[0])]
        found += matching or [own(name)]
    return found or list(table.values())
