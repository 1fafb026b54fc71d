"""Streaming: the steps of any strategy, a few at a time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.arguments import check_ids, check_settings
from decoding_jax.loop.driver import Steps, check_prompt
from decoding_jax.loop.strategy import static_argnames, static_numbers, steps_of
from decoding_jax.loop.values import check_model
from decoding_jax.ops.jit import is_static, jit


def advance_stream(
    build: Callable[..., Steps],
    model: LanguageModel,
    prompt: Prompt,
    state: Any,
    options: dict[str, Any],
    count: Array,
    *,
    settings: tuple[tuple[str, Any], ...],
) -> Any:
    steps = build(**dict(settings), **options)

    def unfinished(carry: tuple[Any, Array]) -> Array:
        state, taken = carry
        return ~steps.done(state) & (taken < count)

    def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, taken = carry
        return steps.step(model, prompt, state), taken + 1

    state, _ = lax.while_loop(unfinished, body, (state, jnp.int32(0)))
    return state, steps.finalize(prompt, state), steps.done(state)


def begin_stream(
    build: Callable[..., Steps],
    model: LanguageModel,
    prompt: Prompt,
    key: Any,
    options: dict[str, Any],
    *,
    settings: tuple[tuple[str, Any], ...],
) -> Any:
    steps = build(**dict(settings), **options)
    state = steps.init(model, prompt, key)
    return state, steps.finalize(prompt, state), steps.done(state)


@functools.cache
def compiled(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``begin_stream`` and ``advance_stream``, compiled under the name of a strategy."""
    return (
        jit(_named(begin_stream, f"begin_{name}"), ("settings",)),
        jit(_named(advance_stream, f"advance_{name}"), ("settings",)),
    )


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    renamed.__name__ = name
    return renamed


def stream(
    strategy: Callable[..., Any],
    model: LanguageModel,
    prompt: Prompt,
    key: Any = None,
    *,
    chunk: int = 1,
    **settings: Any,
) -> Iterator[DecodeOutput]:
    """Runs a strategy a few steps at a time, and yields what stands after each chunk.

    The last output is what ``run`` returns; earlier ones are prefixes of it wherever the strategy
    never takes a token back. All programs are compiled before the first output.

    Args:
      strategy: a strategy such as ``decoding_jax.sample``, or a function that builds ``Steps``.
      model: the model.
      prompt: B prompts.
      key: as for ``run``.
      chunk: steps between two outputs.
      **settings: of the strategy, a drafter among them; those marked ``Static`` are static.

    Raises:
      ValueError: for a chunk below 1.
    """
    for output, _ in stream_until_done(strategy, model, prompt, key, chunk=chunk, **settings):
        yield output


def stream_until_done(
    strategy: Callable[..., Any],
    model: LanguageModel,
    prompt: Prompt,
    key: Any = None,
    *,
    chunk: int = 1,
    **settings: Any,
) -> Iterator[tuple[DecodeOutput, bool]]:
    """As ``stream``, and with every output whether it is the last.

    Args and errors as for ``stream``.
    """
    if chunk < 1:
        raise ValueError(f"chunk: got {chunk}; takes 1 or more")
    build = steps_of(strategy)
    name = getattr(build, "__name__", type(build).__name__)
    settings = check_settings(name, inspect.signature(build), settings)
    prompt = check_prompt(prompt)
    check_ids({"model": check_model(model), "prompt": prompt, **settings})
    names, numbers = static_argnames(strategy), static_numbers(strategy)
    fixed = {k for k, v in settings.items() if is_static(k, v, names, numbers)}
    static = tuple((k, settings[k]) for k in sorted(fixed))
    options = {k: v for k, v in settings.items() if k not in fixed}
    begin, step = compiled(name)
    state, output, done = begin(build, model, prompt, key, options, settings=static)

    def advance(count: int) -> tuple[Any, DecodeOutput, Array]:
        return step(build, model, prompt, state, options, jnp.int32(count), settings=static)

    if not bool(done):
        advance(0)  # changes nothing, but compiles the step before the first output is shown
    yield output, bool(done)
    while not bool(done):
        state, output, done = advance(chunk)
        yield output, bool(done)
