"""One driver for every strategy: ``init``, then ``step`` in a ``while_loop`` until ``done``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.ops.jit import jit


class Steps(NamedTuple):
    """A strategy taken apart, so that one driver runs it, streams it, or plugs it elsewhere.

    Attributes:
      init: ``(model, prompt, key) -> state``: the prefill and whatever is chosen from its logits.
      step: ``(model, prompt, state) -> state``: one call of the model.
      done: ``state -> bool``: whether no row has anything left to do.
      finalize: ``(prompt, state) -> DecodeOutput``; of an unfinished state, what stands so far.
    """

    init: Callable[[LanguageModel, Prompt, Any], Any]
    step: Callable[[LanguageModel, Prompt, Any], Any]
    done: Callable[[Any], Array]
    finalize: Callable[[Prompt, Any], DecodeOutput]


def check_prompt(prompt: Prompt) -> Prompt:
    """The prompt with int32 arrays.

    Raises:
      ValueError: if its shapes are not ``[B, P]`` and ``[B]`` with P of at least 1.
    """
    tokens, length = prompt
    tokens, length = jnp.asarray(tokens), jnp.asarray(length)
    for name, value in (("tokens", tokens), ("length", length)):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"prompt.{name}: got {value.dtype}; takes int32")
    if tokens.ndim != 2 or tokens.shape[1] == 0 or length.shape != tokens.shape[:1]:
        raise ValueError(
            f"prompt: got tokens {list(tokens.shape)} and length {list(length.shape)}; "
            "takes [B, P] with P of 1 or more, and [B]"
        )
    return Prompt(tokens.astype(jnp.int32), length.astype(jnp.int32))


def run(steps: Steps, model: LanguageModel, prompt: Prompt, key: Any = None) -> DecodeOutput:
    """Runs a strategy to its end.

    Args:
      steps: the strategy.
      model: the model.
      prompt: B prompts.
      key: a typed key, typed keys ``[B]``, or None for a strategy that draws nothing.
    """
    prompt = check_prompt(prompt)
    state = lax.while_loop(
        lambda s: ~steps.done(s),
        lambda s: steps.step(model, prompt, s),
        steps.init(model, prompt, key),
    )
    return steps.finalize(prompt, state)


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


_begin = jit(begin_stream, ("settings",))
_advance = jit(advance_stream, ("settings",))


def stream(
    build: Callable[..., Steps],
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
      build: makes the ``Steps``, such as ``strategies.sampling.steps``.
      model: the model.
      prompt: B prompts.
      key: as for ``run``.
      chunk: steps between two outputs.
      **settings: arguments of ``build``; ints and strings are static, the rest is traced.

    Raises:
      ValueError: for a chunk below 1.
    """
    for output, _ in stream_until_done(build, model, prompt, key, chunk=chunk, **settings):
        yield output


def stream_until_done(
    build: Callable[..., Steps],
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
    prompt = check_prompt(prompt)
    static = tuple(sorted((k, v) for k, v in settings.items() if isinstance(v, (int, str))))
    options = {k: v for k, v in settings.items() if not isinstance(v, (int, str))}
    state, output, done = _begin(build, model, prompt, key, options, settings=static)

    def advance(count: int) -> tuple[Any, DecodeOutput, Array]:
        return _advance(build, model, prompt, state, options, jnp.int32(count), settings=static)

    if not bool(done):
        advance(0)  # changes nothing, but compiles the step before the first output is shown
    yield output, bool(done)
    while not bool(done):
        state, output, done = advance(chunk)
        yield output, bool(done)


__all__ = ["Steps", "check_prompt", "run", "stream", "stream_until_done"]
