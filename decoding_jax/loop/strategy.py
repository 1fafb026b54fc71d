"""Strategies as functions of a model and a prompt, from functions that build their ``Steps``.

A strategy is written once, as a function of its settings that returns ``Steps``. A decorator turns
it into a function of a model, a prompt and these settings, which runs the steps to their end. The
same steps are streamed by ``loop.stream``, and ``registry`` compiles the function.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.driver import Steps, run

P = ParamSpec("P")
T = TypeVar("T")

_STATIC = "static"

Static = Annotated[T, _STATIC]
"""Marks a setting that determines shapes or control flow, so that ``jit`` must not trace it.

Changing a static setting compiles the strategy again. Settings without this mark may be arrays.
"""

_STATIC_NUMBER = "static number"

StaticNumber = Annotated[T, _STATIC_NUMBER]
"""Marks a setting that is static where it is a plain number, and traced where it is an array.

Such a number determines a shape that has a (larger) bound without it.
"""

Builder = Callable[P, Steps]


def search(build: Builder[P]) -> Callable[Concatenate[LanguageModel, Prompt, P], DecodeOutput]:
    """Makes a strategy that draws nothing: a function of ``(model, prompt, *, **settings)``.

    Args:
      build: takes keyword settings and returns ``Steps``; ``Static`` marks the static ones. Its
        docstring describes the whole strategy, model and prompt included.

    Returns:
      The strategy. ``steps_of`` returns ``build`` again.

    Example:
      >>> from decoding_jax import strategies
      >>> list(inspect.signature(strategies.greedy).parameters)
      ['model', 'prompt', 'max_new_tokens', 'transform', 'stop']
    """
    return _function(build, ("model", LanguageModel), ("prompt", Prompt))


def sampler(
    build: Builder[P],
) -> Callable[Concatenate[LanguageModel, Prompt, Array, P], DecodeOutput]:
    """Makes a strategy that draws: a function of ``(model, prompt, key, *, **settings)``.

    Args:
      build: as for ``search``.
    """
    return _function(build, ("model", LanguageModel), ("prompt", Prompt), ("key", Array))


def drafted_sampler(
    build: Callable[Concatenate[Any, P], Steps],
) -> Callable[Concatenate[LanguageModel, Any, Prompt, Any, P], DecodeOutput]:
    """Makes a strategy that needs a drafter: ``(model, drafter, prompt, key, *, **settings)``.

    Args:
      build: as for ``search``, with ``drafter`` as its first parameter.
    """
    places = ("model", LanguageModel), ("drafter", Any), ("prompt", Prompt), ("key", Any)
    return _function(build, *places)


def steps_of(strategy: Callable[..., Any]) -> Callable[..., Steps]:
    """The function that builds the ``Steps`` of a strategy.

    Args:
      strategy: made by a decorator of this module, or itself a function that returns ``Steps``.
    """
    return getattr(strategy, "build_steps", strategy)


def static_argnames(strategy: Callable[..., Any]) -> tuple[str, ...]:
    """The settings that a strategy, or a function that builds ``Steps``, marks as ``Static``.

    Example:
      >>> from decoding_jax import strategies
      >>> static_argnames(strategies.sample)
      ('num_samples', 'max_new_tokens')
    """
    return _marked(strategy, _STATIC)


def static_numbers(strategy: Callable[..., Any]) -> tuple[str, ...]:
    """The settings that a strategy, or a function that builds ``Steps``, marks ``StaticNumber``.

    Example:
      >>> from decoding_jax import strategies
      >>> static_numbers(strategies.best_k_search)
      ('gamma',)
    """
    return _marked(strategy, _STATIC_NUMBER)


def _marked(strategy: Callable[..., Any], mark: str) -> tuple[str, ...]:
    hints = typing.get_type_hints(steps_of(strategy), include_extras=True)
    return tuple(n for n, hint in hints.items() if mark in getattr(hint, "__metadata__", ()))


def _function(build: Callable[..., Steps], *inputs: tuple[str, Any]) -> Callable[..., Any]:
    names = [name for name, _ in inputs]
    settings = inspect.signature(build).parameters.values()
    leading = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind.__name__)
        for name, kind in inputs
    ]
    signature = inspect.Signature(
        [*leading, *(p for p in settings if p.name not in names)],
        return_annotation=DecodeOutput.__name__,
    )

    def strategy(*args: Any, **kwargs: Any) -> DecodeOutput:
        given = signature.bind(*args, **kwargs).arguments
        model, prompt, key = (given.pop(name, None) for name in ("model", "prompt", "key"))
        return run(build(**given), model, prompt, key)

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(strategy, attribute, getattr(build, attribute))
    vars(strategy).update(__signature__=signature, build_steps=build)
    return strategy
