"""The table of strategies, which public functions, ``generate``, gin and T5X derive from."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from decoding_jax import strategies
from decoding_jax.base import DecodeOutput
from decoding_jax.loop import Steps, Strategy, run, static_argnames, static_numbers, steps_of
from decoding_jax.loop.arguments import checked
from decoding_jax.ops.jit import jit

F = TypeVar("F", bound=Callable[..., DecodeOutput])


@dataclasses.dataclass(frozen=True)
class Entry:
    """A strategy, compiled and described.

    Attributes:
      function: ``(model, prompt, ..., **settings) -> DecodeOutput``, compiled.
      build_steps: ``(**settings) -> Steps``, which ``loop.run`` and ``loop.stream`` take.
      static_argnames: the settings that ``jit`` does not trace.
      draws: whether the strategy takes a key.
      drafts: whether the strategy takes a drafter.
    """

    function: Callable[..., DecodeOutput]
    build_steps: Callable[..., Steps]
    static_argnames: tuple[str, ...]
    draws: bool
    drafts: bool


STRATEGIES: dict[str, Entry] = {}
"""The strategies by name."""

DEFAULTS: dict[str, Any] = {
    "beam_size": 4,
    "budget": 128,
    "k": 4,
    "max_new_tokens": 64,
    "num_draft_tokens": 4,
    "num_groups": 2,
    "num_samples": 4,
    "penalty_alpha": 0.6,
    "top_k": 4,
}
"""What ``generate``, ``stream`` and the shell take for settings that a strategy requires."""


def defaults_of(name: str) -> dict[str, Any]:
    """The settings that a strategy requires, and that ``generate`` and the shell have a value for.

    Example:
      >>> defaults_of("arithmetic_sample"), defaults_of("sample")
      ({'num_samples': 4, 'max_new_tokens': 64}, {'max_new_tokens': 64})
    """
    parameters = inspect.signature(STRATEGIES[name].function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty]
    return {name: DEFAULTS[name] for name in required if name in DEFAULTS}


def register(strategy: F) -> F:
    """Compiles a strategy made by ``loop.search`` or ``loop.sampler``, and adds it to the table.

    Args:
      strategy: one of ``strategies``, or your own. ``generate``, ``stream`` and the batch job then
        accept its name.

    Returns:
      The compiled strategy. The model is an argument of it, and ``Static`` settings are static.
    """
    static, build = static_argnames(strategy), steps_of(strategy)
    if isinstance(build, type):
        compiled = checked(_compiled(strategy, build), build)
    else:
        compiled = checked(jit(strategy, static, static_numbers(strategy)))
    takes = inspect.signature(strategy).parameters
    entry = Entry(compiled, steps_of(strategy), static, "key" in takes, "drafter" in takes)
    STRATEGIES[strategy.__name__] = entry
    return compiled


def _compiled(function: F, strategy: type[Strategy]) -> F:
    """A function of a strategy, whose loop is compiled. The strategy is an argument of the program.

    Changing a static setting compiles another program; all other settings are arrays in it.
    """

    def run_strategy(made: Strategy, model: Any, prompt: Any, key: Any) -> DecodeOutput:
        return run(made, model, prompt, key)

    run_strategy.__name__ = function.__name__
    program = jit(run_strategy, ())
    signature = inspect.signature(function)

    def bound(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        given = dict(signature.bind(*args, **kwargs).arguments)
        model, prompt, key = (given.pop(name, None) for name in ("model", "prompt", "key"))
        return strategy(**given), model, prompt, key

    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> DecodeOutput:
        return program(*bound(args, kwargs))

    compiled.lower = lambda *args, **kwargs: program.lower(*bound(args, kwargs))  # type: ignore[attr-defined]
    compiled.cache_size = program.cache_size  # type: ignore[attr-defined]
    return cast(F, compiled)


def _public(strategy: F) -> F:
    """Registers a strategy of the library as a member of ``decoding_jax``.

    A compiled strategy can then be pickled, alone or in a ``functools.partial``, which programs of
    several processes rely on.
    """
    compiled = register(strategy)
    compiled.__module__ = "decoding_jax"
    return compiled


arithmetic_sample = _public(strategies.arithmetic_sample)
beam_sample = _public(strategies.beam_sample)
beam_search = _public(strategies.beam_search)
best_first_search = _public(strategies.best_first_search)
best_k_search = _public(strategies.best_k_search)
constrained_beam_search = _public(strategies.constrained_beam_search)
contrastive_search = _public(strategies.contrastive_search)
diverse_beam_search = _public(strategies.diverse_beam_search)
greedy = _public(strategies.greedy)
sample = _public(strategies.sample)
speculative_sample = _public(strategies.speculative_sample)
stochastic_beam_search = _public(strategies.stochastic_beam_search)


def steps(name: str, **settings: Any) -> Steps:
    """Builds the ``Steps`` of a strategy by its name.

    Example:
      >>> steps("greedy", max_new_tokens=4)._fields
      ('init', 'step', 'done', 'finalize', 'row_done', 'settled', 'widens')
    """
    return STRATEGIES[name].build_steps(**settings)
