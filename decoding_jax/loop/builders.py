"""Decorators that make a strategy of a function that builds its ``Steps``: the earlier way.

A subclass of ``Strategy`` has settings that are checked when it is made, and can be passed around.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.driver import run
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


class Steps(NamedTuple):
    """The parts of a strategy, which ``run`` runs to the end and ``stream`` a few at a time.

    Attributes:
      init: ``(model, prompt, key) -> state``: prefills, and chooses tokens from the logits.
      step: ``(model, prompt, state) -> state``: calls the model once.
      done: ``state -> bool``: whether all rows are done.
      finalize: ``(prompt, state) -> DecodeOutput``: the result; for an unfinished state, the
        sequences decoded so far.
      row_done: ``state -> bool [B]``, whether each row is done; None for a strategy whose rows
        cannot be exchanged one by one. With it, a strategy declares that every array of its state
        begins with the axis of rows, except scalars; that ``step`` and ``finalize`` also take a
        state whose scalars have one value for each row, ``[B]``; that no row depends on another;
        and that a row that is done no longer changes. ``loop.refill`` relies on this.
      settled: ``state -> int32 [B, N]``, the number of leading tokens of each sequence of
        ``finalize`` that no later step changes; None for a strategy whose tokens may change until
        their row is done. Streams give out the text of settled tokens only.
      widens: whether the width that prompts (or encoder inputs) are padded to affects a state only
        through padding: zero-padded or cut at the end of each axis, the arrays of a row's state
        become those of the same row at another width that holds it. ``loop.refill`` relies on this
        to move rows to a batch of another width, if the model has ``widens`` too.
    """

    init: Callable[[LanguageModel, Prompt, Any], Any]
    step: Callable[[LanguageModel, Prompt, Any], Any]
    done: Callable[[Any], Array]
    finalize: Callable[[Prompt, Any], DecodeOutput]
    row_done: Callable[[Any], Array] | None = None
    settled: Callable[[Any], Array] | None = None
    widens: bool = False


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
      ('max_new_tokens', 'num_samples', 'with_sample_log_prob')
    """
    return _marked(strategy, _STATIC)


def static_numbers(strategy: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the settings that a strategy, or its builder of ``Steps``, marks ``StaticNumber``.

    Example:
      >>> def build(*, gamma: StaticNumber[float]) -> Steps: ...
      >>> static_numbers(build)
      ('gamma',)
    """
    return _marked(strategy, _STATIC_NUMBER)


def _marked(strategy: Callable[..., Any], mark: str) -> tuple[str, ...]:
    build = steps_of(strategy)
    if isinstance(build, type):
        settings = dataclasses.fields(build)
        return tuple(f.name for f in settings if f.metadata.get(mark))
    hints = typing.get_type_hints(build, include_extras=True)
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
