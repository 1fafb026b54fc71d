"""The earlier way to write a strategy: a function that builds ``Steps``, with a decorator.

A decorator makes a ``Strategy`` of the function. It works for one more release; a subclass of
``Strategy`` has settings that are checked when it is made, and can be passed around.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.strategy import Strategy, as_function
from decoding_jax.pytrees import pytree
from decoding_jax.rows import row_arguments

T = TypeVar("T")

Static = Annotated[T, "static"]
"""Marks a setting that determines shapes or control flow, so that ``jit`` must not trace it."""


class Steps(NamedTuple):
    """The parts of a strategy, each as the method of ``Strategy`` that has its name.

    Attributes:
      init: ``(model, prompt, key) -> state``.
      step: ``(model, prompt, state) -> state``.
      done: ``state -> bool``: whether all rows are done.
      finalize: ``(prompt, state) -> DecodeOutput``.
      row_done: ``state -> bool [B]``; None if rows cannot be exchanged one by one.
      settled: ``state -> int32 [B, N]``, or None.
      widens: see ``Strategy.widens``.
    """

    init: Callable[[LanguageModel, Prompt, Any], Any]
    step: Callable[[LanguageModel, Prompt, Any], Any]
    done: Callable[[Any], Array]
    finalize: Callable[[Prompt, Any], DecodeOutput]
    row_done: Callable[[Any], Array] | None = None
    settled: Callable[[Any], Array] | None = None
    widens: bool = False


class Built(Strategy):
    """A strategy whose parts a function builds."""

    build: typing.ClassVar[Callable[..., Any]]
    setting_names: typing.ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        """Leaves all checks to the function, which may lack a setting that all others have."""
        for name in (setting.name for setting in dataclasses.fields(Strategy)):
            if name not in self.setting_names and getattr(self, name) is not None:
                expected = f"none, which {type(self).build.__name__} does not take"
                raise fields.error(name, expected, getattr(self, name))

    @property
    def parts(self) -> Steps:
        """What the function builds from the settings."""
        return type(self).build(**{name: getattr(self, name) for name in self.setting_names})

    @property
    def refills(self) -> bool:
        return self.parts.row_done is not None

    @property
    def widens(self) -> bool:
        return self.parts.widens

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> Any:
        return self.parts.init(model, prompt, key)

    def step(self, model: LanguageModel, prompt: Prompt, state: Any) -> Any:
        return self.parts.step(model, prompt, state)

    def done(self, state: Any) -> Array:
        return self.parts.done(state)

    def row_done(self, state: Any) -> Array:
        row_done = self.parts.row_done
        if row_done is None:
            raise ValueError("row_done: expected a strategy whose rows can be exchanged, got none")
        return row_done(state)

    def settled(self, state: Any) -> Array | None:
        settled = self.parts.settled
        return None if settled is None else settled(state)

    def finalize(self, prompt: Prompt, state: Any) -> DecodeOutput:
        return self.parts.finalize(prompt, state)


def search(build: Callable[..., Steps]) -> Callable[..., DecodeOutput]:
    """Makes a strategy that draws nothing: a function of ``(model, prompt, *, **settings)``.

    Args:
      build: takes keyword settings and returns ``Steps``; ``Static`` marks the static settings.
    """
    return _function(build)


def sampler(build: Callable[..., Steps]) -> Callable[..., DecodeOutput]:
    """Makes a strategy that draws: a function of ``(model, prompt, key, *, **settings)``.

    Args:
      build: as for ``search``.
    """
    return _function(build, draws=True)


def drafted_sampler(build: Callable[..., Steps]) -> Callable[..., DecodeOutput]:
    """Makes a strategy with a drafter, a function of ``(model, drafter, prompt, key, *, ...)``.

    The key may be left out with settings that draw nothing.

    Args:
      build: as for ``search``, with ``drafter`` as its first parameter.
    """
    return _function(build, draws=True, needs_key=False)


def strategy_of(strategy: Callable[..., Any]) -> type[Strategy]:
    """The class of a strategy.

    Args:
      strategy: the class, its function, or a function that builds ``Steps``.

    Example:
      >>> from decoding_jax import strategies
      >>> strategy_of(strategies.greedy).__name__
      'Greedy'
    """
    if isinstance(strategy, type):
        return strategy
    if not inspect.isfunction(strategy):
        raise fields.error("strategy", "a class, or a function", strategy)
    return getattr(strategy, "strategy", None) or built(strategy)


@functools.cache
def built(build: Callable[..., Any], draws: bool = True, needs_key: bool = False) -> type[Strategy]:
    """The ``Strategy`` that a function builds; one field for each of its parameters."""
    hints = typing.get_type_hints(build, include_extras=True)
    shared_axes = row_arguments(build)
    settings: list[Any] = []
    parameters = inspect.signature(build).parameters
    shared = {setting.name for setting in dataclasses.fields(Strategy)}
    for name, parameter in parameters.items():
        taken = name not in shared and hasattr(Built, name)
        if taken or parameter.kind is parameter.VAR_KEYWORD:
            raise ValueError(
                f"{build.__name__}: expected settings with names of their own, got {parameter}"
            )
        metadata: dict[str, Any] = {}
        if "static" in getattr(hints.get(name), "__metadata__", ()):
            metadata["static"] = True
        if name in shared_axes:
            metadata["shared_axes"] = shared_axes[name]
        options: dict[str, Any] = {}
        if parameter.default is not parameter.empty:
            if parameter.default.__hash__ is None:
                options["default_factory"] = lambda default=parameter.default: default
            else:
                options["default"] = parameter.default
        settings.append((name, Any, dataclasses.field(kw_only=True, metadata=metadata, **options)))
    members: dict[str, Any] = {"build": staticmethod(build), "setting_names": tuple(parameters)}
    members |= {"draws": draws, "needs_key": needs_key}
    members |= {"__module__": build.__module__, "__doc__": build.__doc__}
    name = "".join(part.capitalize() for part in build.__name__.split("_"))
    made = dataclasses.make_dataclass(
        name, settings, bases=(Built,), namespace=members, frozen=True
    )
    return pytree(made)


def _function(
    build: Callable[..., Steps], draws: bool = False, needs_key: bool = True
) -> Callable[..., DecodeOutput]:
    warnings.warn(
        f"{build.__name__}: expected a subclass of decoding_jax.loop.Strategy, got a function that "
        "builds Steps, which the next release does not take",
        DeprecationWarning,
        stacklevel=3,
    )
    function = as_function(built(build, draws, needs_key))
    function.__name__ = function.__qualname__ = build.__name__
    return function
