"""Streaming: runs the steps of any strategy a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop import inputs
from decoding_jax.loop.forms import as_strategy, check_in_steps
from decoding_jax.loop.strategy import RowCall, Strategy, cached_by_class
from decoding_jax.ops.jit import jit
from decoding_jax.sharding.meshes import over_rows


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


def progress(strategy: Strategy, prompt: Prompt, state: Any) -> Progress:
    """The ``Progress`` of a state."""
    output, last = strategy.finalize(prompt, state), strategy.done(state)
    ended = strategy.row_done(state)[:, None] | last if strategy.refills else last
    return Progress(output, settled(strategy, state, output, ended), last)


def settled(strategy: Strategy, state: Any, output: DecodeOutput, ended: Array) -> Array:
    """``Progress.settled``, int32 ``[B, N]``, where bool ``ended [B, 1]`` or ``[]`` are done."""
    count = strategy.settled(state)
    count = jnp.zeros_like(output.length) if count is None else count
    return jnp.where(ended, output.length, count)


def _begin(made: Strategy, model: LanguageModel, prompt: Prompt, key: Array | None) -> Any:
    """The first state, and its ``Progress``."""
    prompt = inputs.as_int32(prompt)
    state = made.init(model, jax.tree.map(over_rows, prompt), key)
    return state, progress(made, prompt, state)


def _advance(made: Strategy, model: LanguageModel, prompt: Prompt, state: Any, count: Array) -> Any:
    """The state after up to ``count`` steps, and its ``Progress``."""
    prompt = inputs.as_int32(prompt)

    def condition(carry: tuple[Any, Array]) -> Array:
        state, num_steps = carry
        return ~made.done(state) & (num_steps < count)

    def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, num_steps = carry
        return made.step(model, prompt, state), num_steps + 1

    state, _ = lax.while_loop(condition, body, (state, jnp.int32(0)))
    return state, progress(made, prompt, state)


@cached_by_class
def programs_of(strategy: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The first state of a stream and its ``Progress``, and the next ones, compiled."""
    name = fields.label(strategy)
    return jit(_begin, (), name=f"begin_{name}"), jit(_advance, (), name=f"advance_{name}")


def stream(
    strategy: Strategy | Callable[..., Any],
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
      strategy: an object such as ``Sample(num_samples=4)``, or a function such as
        ``decoding_jax.sample``, with its settings after it.
      model: the model.
      prompt: B prompts.
      key: as for ``run``.
      chunk: the number of steps between two outputs.
      **settings: the settings of the strategy, including the drafter if it takes one.

    Raises:
      ValueError: for a chunk below 1, and for a function of a caller's own, which runs to its end.
    """
    for so_far in stream_progress(strategy, model, prompt, key, chunk=chunk, **settings):
        yield so_far.output


def stream_progress(
    strategy: Strategy | Callable[..., Any],
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
    if not callable(chunk):
        fields.as_count("chunk", chunk)
    drafter = settings.pop("drafter", None)
    made: Any = as_strategy(strategy, settings, drafter=drafter)
    check_in_steps("strategy", made)
    yield from in_steps(RowCall(made, *inputs.checked(made, model, prompt, key)), chunk)


def in_steps(call: RowCall, chunk: int | Callable[[], int]) -> Iterator[Progress]:
    """``stream_progress`` of a call that has been parsed and checked.

    Args:
      call: a call of a ``Strategy``.
      chunk: as for ``stream_progress``.
    """
    strategy, model, prompt, key = call
    begin, step = programs_of(type(strategy))
    state, so_far = begin(strategy, model, prompt, key)

    def advance(count: int) -> tuple[Any, Progress]:
        return step(strategy, model, prompt, state, jnp.int32(count))

    last = bool(so_far.last)
    if not last:
        advance(0)  # Runs no step, but compiles the step before the first output is yielded.
    yield so_far._replace(last=last)
    while not last:
        state, so_far = advance(chunk() if callable(chunk) else chunk)
        last = bool(so_far.last)
        yield so_far._replace(last=last)
