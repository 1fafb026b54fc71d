"""Streaming: runs the steps of any strategy a few at a time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.arguments import check_ids, check_settings
from decoding_jax.loop.builders import Steps, static_argnames, static_numbers, steps_of
from decoding_jax.loop.driver import check_prompt
from decoding_jax.loop.values import check_model
from decoding_jax.ops.jit import is_static, jit
from decoding_jax.ops.mesh import over_rows


class Progress(NamedTuple):
    """The output so far, and how much of it is final.

    Attributes:
      output: the output so far.
      settled: int32 ``[B, N]``, the number of leading tokens of each sequence that no later step
        changes; all of them once the row is done.
      last: whether all rows are done.
    """

    output: DecodeOutput
    settled: Array
    last: Array | bool


def progress(steps: Steps, prompt: Prompt, state: Any) -> Progress:
    """The ``Progress`` of a state."""
    output, last = steps.finalize(prompt, state), steps.done(state)
    ended = last if steps.row_done is None else steps.row_done(state)[:, None] | last
    settled = jnp.zeros_like(output.length) if steps.settled is None else steps.settled(state)
    return Progress(output, jnp.where(ended, output.length, settled), last)


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
    """Runs up to ``count`` steps, and returns the state and its ``Progress``."""
    steps = build(**dict(settings), **options)

    def condition(carry: tuple[Any, Array]) -> Array:
        state, num_steps = carry
        return ~steps.done(state) & (num_steps < count)

    def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, num_steps = carry
        return steps.step(model, prompt, state), num_steps + 1

    state, _ = lax.while_loop(condition, body, (state, jnp.int32(0)))
    return state, progress(steps, prompt, state)


def begin_stream(
    build: Callable[..., Steps],
    model: LanguageModel,
    prompt: Prompt,
    key: Array | None,
    options: dict[str, Any],
    *,
    settings: tuple[tuple[str, Any], ...],
) -> Any:
    """Returns the first state and its ``Progress``."""
    steps = build(**dict(settings), **options)
    state = steps.init(model, jax.tree.map(over_rows, prompt), key)
    return state, progress(steps, prompt, state)


@functools.cache
def compiled(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiles ``begin_stream`` and ``advance_stream`` under the name of a strategy."""
    return (
        jit(_renamed(begin_stream, f"begin_{name}"), ("settings",)),
        jit(_renamed(advance_stream, f"advance_{name}"), ("settings",)),
    )


def _renamed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper.__name__ = name
    return wrapper


def stream(
    strategy: Callable[..., Any],
    model: LanguageModel,
    prompt: Prompt,
    key: Array | None = None,
    *,
    chunk: int = 1,
    **settings: Any,
) -> Iterator[DecodeOutput]:
    """Runs a strategy a few steps at a time, and yields the sequences decoded after each chunk.

    The last output is what ``run`` returns. Earlier outputs are prefixes of it if the strategy
    never removes a token. All programs are compiled before the first output is yielded.

    Args:
      strategy: a strategy such as ``decoding_jax.sample``, or a function that builds ``Steps``.
      model: the model.
      prompt: B prompts.
      key: as for ``run``.
      chunk: the number of steps between two outputs.
      **settings: the settings of the strategy, including the drafter if it takes one.

    Raises:
      ValueError: for a chunk below 1.
    """
    for so_far in stream_progress(strategy, model, prompt, key, chunk=chunk, **settings):
        yield so_far.output


def stream_progress(
    strategy: Callable[..., Any],
    model: LanguageModel,
    prompt: Prompt,
    key: Array | None = None,
    *,
    chunk: int | Callable[[], int] = 1,
    **settings: Any,
) -> Iterator[Progress]:
    """As ``stream``, but yields with every output how much of it is final.

    ``chunk`` may be a function, which is asked for the number of steps before each chunk.

    Args and errors as for ``stream``.
    """
    if not callable(chunk) and chunk < 1:
        raise ValueError(f"chunk: got {chunk}; takes 1 or more")
    build = steps_of(strategy)
    name = getattr(build, "__name__", type(build).__name__)
    settings = check_settings(name, inspect.signature(build), settings)
    prompt = check_prompt(prompt)
    check_ids({"model": check_model(model), "prompt": prompt, **settings})
    names, numbers = static_argnames(strategy), static_numbers(strategy)
    static_settings = {k for k, v in settings.items() if is_static(k, v, names, numbers)}
    static = tuple((k, settings[k]) for k in sorted(static_settings))
    options = {k: v for k, v in settings.items() if k not in static_settings}
    begin, step = compiled(name)
    state, so_far = begin(build, model, prompt, key, options, settings=static)

    def advance(count: int) -> tuple[Any, Progress]:
        return step(build, model, prompt, state, options, jnp.int32(count), settings=static)

    last = bool(so_far.last)
    if not last:
        advance(0)  # Runs no step, but compiles the step before the first output is yielded.
    yield so_far._replace(last=last)
    while not last:
        state, so_far = advance(chunk() if callable(chunk) else chunk)
        last = bool(so_far.last)
        yield so_far._replace(last=last)
