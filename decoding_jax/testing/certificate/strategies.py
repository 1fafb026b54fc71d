"""Strategies under test: how to call them, and what is expected of them.

Your own strategy is a function with the signature of a public strategy. The signature determines
its kind:

- a *sampler*, ``f(model, prompt, key, *, num_samples, max_new_tokens, transform, stop)``, has to
  follow the exact distribution, lane by lane. ``key`` is a typed key, or one typed key per row;
- a *search*, ``f(model, prompt, *, max_new_tokens, transform, stop)``, has to give the greedy path.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from decoding_jax.base import DecodeOutput, Prompt
from decoding_jax.ops.jit import jit
from decoding_jax.testing.certificate import expectations
from decoding_jax.testing.certificate.drafts import DRAFTS, Draft
from decoding_jax.testing.certificate.expectations import AnyProblem, Expectation
from decoding_jax.testing.certificate.problems import Rows

SAMPLES = 4
"""The number of sequences per row of a sampler, and of a search that returns several."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A strategy under test.

    Attributes:
      name: as the certificate prints it.
      function: the strategy, jitted.
      plain: the strategy, not jitted.
      sampler: whether it takes a key and draws samples.
      independent: whether the lanes of a row are independent draws.
      draft: the drafter and its settings, or None for a strategy without drafts.
      spread: how far the number of samples with a given prefix may be from N p (see
        ``checks.check_prefix_counts``), or None if there is no bound.
      likeliest: whether a search finds the sequence of largest probability, not the greedy path.
      expectation: compares the output with what is expected. By default that follows from the
        attributes above.
      trees: whether it is given models with trees. A table model's cost grows with the cube of the
        number of a tree's slots, so wide beams use the cache that moves lanes instead.
      lanes: the number of sequences per row; by default 1 for a search and ``SAMPLES`` for a
        sampler.
      takes_count: whether the function takes ``num_samples``.
      row_settings: from the rows of a batch to further keyword arguments.
      info_fields: fields ``[B, N]`` of ``DecodeOutput.info`` that the expectation reads.
      lockstep: whether it takes a model without ragged rows and trees.
      logits: whether its expectation gives transforms the same input as the strategy does. A beam
        of one follows the greedy path, but transforms get log-probabilities instead of logits, and
        the result of a penalty that depends on signs differs.
      ties: whether it is given the model with ties. Where a beam of several draws, the outcome of a
        tie between hypotheses depends on the last bit of their scores.
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
    ties: bool = True
    draft: Draft | None = None
    expectation: Expectation | None = None
    trees: bool = True
    lanes: int | None = None
    takes_count: bool = True
    row_settings: Callable[[Rows], dict[str, Any]] = lambda rows: {}
    info_fields: tuple[str, ...] = ()

    @property
    def num_lanes(self) -> int:
        """The number of sequences per row."""
        return self.lanes or (SAMPLES if self.sampler else 1)

    def check(self, output: DecodeOutput, problem: AnyProblem) -> list[float]:
        """Compares an output with what is expected.

        Args:
          output: its rows repeat those of the problem.
          problem: the problem.

        Returns:
          The p-values of the statistical tests.

        Raises:
          AssertionError: where the output is wrong for certain.
        """
        if self.expectation is not None:
            return self.expectation(output, problem)
        if self.sampler:
            return expectations.follows_distribution(
                output, problem, independent=self.independent, spread=self.spread
            )
        if self.likeliest:
            return expectations.is_likeliest(output, problem)
        return expectations.is_greedy(output, problem)

    def with_draft(self, name: str) -> Strategy:
        """The strategy with the draft of that name, if it takes drafts."""
        return dataclasses.replace(self, draft=DRAFTS[name]) if self.draft else self

    def __call__(
        self,
        model: Any,
        prompt: Prompt,
        keys: Any,
        settings: dict[str, Any],
        *,
        eager: bool = False,
    ) -> DecodeOutput:
        """Calls the strategy; a search takes neither keys nor a number of samples."""
        function = self.plain if eager else self.function
        if self.draft is not None:
            _, size, drafts = self.draft
            settings = {**settings, "num_draft_tokens": size, "num_drafts": drafts}
            function = functools.partial(_drafted, function, self.draft.make(model))
        if self.sampler:
            count = {"num_samples": self.num_lanes} if self.takes_count else {}
            return function(model, prompt, keys, **count, **settings)
        return function(model, prompt, **settings)


def _drafted(
    function: Callable[..., DecodeOutput],
    drafter: Any,
    model: Any,
    prompt: Prompt,
    *args: Any,
    **settings: Any,
) -> DecodeOutput:
    """Calls a speculative strategy like one without a drafter; the greedy one has no key."""
    return function(model, drafter, prompt, *(args or (None,)), **settings)


def import_strategy(path: str) -> Strategy:
    """Imports your own strategy, ``"module:function"``.

    Raises:
      ValueError: for a path without a colon, or a name that cannot be imported.
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
    """Makes a strategy of a function, which may already be jitted."""
    sampler = "key" in inspect.signature(function).parameters
    plain = inspect.unwrap(function)
    if plain is function:
        static = ("num_samples", "max_new_tokens") if sampler else ("max_new_tokens",)
        function = jit(function, static)
    return Strategy(name, function, plain, sampler)
