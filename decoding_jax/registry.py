"""The table of strategies, which public functions, ``generate``, gin and T5X derive from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from decoding_jax import fields, strategies, suggestions
from decoding_jax.base import DecodeOutput
from decoding_jax.loop import Strategy, as_function, forms

F = TypeVar("F", bound=Callable[..., DecodeOutput])


class Entry(NamedTuple):
    """A strategy, compiled and described.

    Attributes:
      function: ``(model, prompt, ..., **settings) -> DecodeOutput``, compiled.
      strategy: its class.
      draws: whether the strategy takes a key.
      drafts: whether the strategy takes a drafter.
    """

    function: Callable[..., DecodeOutput]
    strategy: type[Strategy]
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


def register(strategy: F | type[Strategy]) -> F:
    """Compiles a strategy, and adds it to the table under the name of its function.

    Args:
      strategy: a subclass of ``loop.Strategy``, or its function. ``generate``, ``stream`` and the
        batch job then accept its name.

    Returns:
      The compiled function. The model is an argument of its program.

    Raises:
      ValueError: for anything else.
    """
    made: Any = strategy if isinstance(strategy, type) else getattr(strategy, "strategy", None)
    if made is None:
        raise fields.error("strategy", "a subclass of loop.Strategy, or its function", strategy)
    compiled = as_function(made, compiled=True)
    name = compiled.__name__
    names = inspect.signature(compiled).parameters
    suggestions.SETTINGS_OF[name] = tuple(names)
    STRATEGIES[name] = Entry(compiled, made, made.draws, "drafter" in names)
    defaults = {k: v for k, v in defaults_of(name).items() if k != "max_new_tokens"}
    forms.NAMED[name] = forms.Named(made, defaults)
    return cast(F, compiled)


for _name in strategies.__all__:
    if _name.islower():
        # Found as a member of ``decoding_jax``, a compiled strategy can be pickled, alone or in a
        # ``functools.partial``, which programs of several processes rely on.
        register(getattr(strategies, _name)).__module__ = "decoding_jax"


def steps(name: str, **settings: Any) -> Any:
    """Makes a strategy by its name.

    Example:
      >>> steps("greedy", max_new_tokens=4).max_new_tokens
      4
    """
    return STRATEGIES[name].strategy(**settings)
