"""Decorators that make a strategy of a function that builds its ``Steps``.

A strategy is written once, as a function of its settings that returns ``Steps``. A decorator turns
it into a function of a model, a prompt and these settings, which runs the steps to their end.
``loop.stream`` streams the same steps, and ``registry`` compiles the function.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.driver import Steps, run
from decoding_jax.ops.mesh import in_mesh

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

As a plain number, it determines a shape; as an array, a larger bound on that shape is used.
"""

Builder = Callable[P, Steps]


class DraftedSampler(Protocol[P]):
    """The type of a strategy with a drafter; with settings that draw nothing, it needs no key."""

    __name__: str

    @overload
    def __call__(
        self,
        model: LanguageModel,
        drafter: Any,
        prompt: Prompt,
        key: Any,
        /,
        *args: P.args,
        **settings: P.kwargs,
    ) -> DecodeOutput: ...
    @overload
    def __call__(
        self,
        model: LanguageModel,
        drafter: Any,
        prompt: Prompt,
        /,
        *args: P.args,
        **settings: P.kwargs,
    ) -> DecodeOutput: ...


def search(build: Builder[P]) -> Callable[Concatenate[LanguageModel, Prompt, P], DecodeOutput]:
    """Makes a strategy that draws nothing: a function of ``(model, prompt, *, **settings)``.

    Args:
      build: takes keyword settings and returns ``Steps``; ``Static`` marks the static settings. Its
        docstring describes the whole strategy, including the model and the prompt.

    Returns:
      The strategy. ``steps_of`` returns ``build`` from it.

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


def drafted_sampler(build: Callable[Concatenate[Any, P], Steps]) -> DraftedSampler[P]:
    """Makes a strategy with a drafter, a function of ``(model, drafter, prompt, key, *, ...)``.

    The key may be left out with settings that draw nothing.

    Args:
      build: as for ``search``, with ``drafter`` as its first parameter.
    """
    inputs = ("model", LanguageModel), ("drafter", Any), ("prompt", Prompt), ("key", Any)
    return _function(build, *inputs, optional=("key",))


def steps_of(strategy: Callable[..., Any]) -> Callable[..., Steps]:
    """Returns the function that builds the ``Steps`` of a strategy.

    Args:
      strategy: made by a decorator of this module, or a function that itself returns ``Steps``.
    """
    return getattr(strategy, "build_steps", strategy)


def static_argnames(strategy: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the settings that a strategy, or its builder of ``Steps``, marks ``Static``.

    Example:
      >>> from decoding_jax import strategies
      >>> static_argnames(strategies.sample)
      ('num_samples', 'max_new_tokens', 'with_sample_log_prob')
    """
    return _marked(strategy, _STATIC)


def static_numbers(strategy: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the settings that a strategy, or its builder of ``Steps``, marks ``StaticNumber``.

    Example:
      >>> from decoding_jax import strategies
      >>> static_numbers(strategies.best_k_search)
      ('gamma',)
    """
    return _marked(strategy, _STATIC_NUMBER)


def _marked(strategy: Callable[..., Any], mark: str) -> tuple[str, ...]:
    hints = typing.get_type_hints(steps_of(strategy), include_extras=True)
    return tuple(name for name, hint in hints.items() if mark in getattr(hint, "__metadata__", ()))


def _function(
    build: Callable[..., Steps], *inputs: tuple[str, Any], optional: Collection[str] = ()
) -> Callable[..., Any]:
    names = [name for name, _ in inputs]
    settings = inspect.signature(build).parameters.values()
    leading = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None if name in optional else inspect.Parameter.empty,
            annotation=kind.__name__,
        )
        for name, kind in inputs
    ]
    signature = inspect.Signature(
        [*leading, *(p for p in settings if p.name not in names)],
        return_annotation=DecodeOutput.__name__,
    )

    def strategy(*args: Any, **kwargs: Any) -> DecodeOutput:
        return in_mesh(decode, signature.bind(*args, **kwargs).arguments)

    def decode(arguments: dict[str, Any]) -> DecodeOutput:
        settings = dict(arguments)
        model, prompt, key = (settings.pop(name, None) for name in ("model", "prompt", "key"))
        return run(build(**settings), model, prompt, key)

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(strategy, attribute, getattr(build, attribute))
    vars(strategy).update(__signature__=signature, build_steps=build)
    return strategy
