"""Rows that are refilled: where a row has ended, the next input takes its place.

A batch of ``run`` lasts as long as its longest row. Here, B rows advance together, each with its
own cursor, and rows that have ended are replaced while the others continue (iteration-level
scheduling: Yu et al. 2022, "Orca: A Distributed Serving System for Transformer-Based Generative
Models"). Three programs do this, each compiled once for its shapes:

- ``begin`` prefills a few newcomers,
- ``insert`` puts them in the places of rows that have ended, and leaves all others untouched,
- ``advance`` runs the steps of all rows until enough of them have ended, or a number of steps.

Newcomers may be padded to fewer prompt tokens (or encoder inputs) than the rows of the batch. They
are prefilled at that smaller width, and their state is padded further when it is inserted. Rows of
all widths thus share one batch, as in JetStream, which prefills at many widths and decodes at one.
``moved`` cuts the batch to the width that its rows need, once the widest have ended. Both need
``Strategy.widens`` and a model with ``widens``. Once no input waits, ``moved`` also cuts the batch
to fewer rows.

All strategies with ``Strategy.refills`` can be run in this way. A row's result is the same
as that of ``run``, since it depends neither on the other rows nor on the time of its insertion.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, DecodeOutput
from decoding_jax.loop.strategy import RowCall
from decoding_jax.loop.streaming import settled
from decoding_jax.ops.jit import jit
from decoding_jax.sharding.meshes import in_mesh, over_rows


class RowArguments(Protocol):
    """The arguments of rows: what serves all rows, and what each is given. It is a pytree."""

    @property
    def given(self) -> Any:
        """A pytree of arrays ``[rows, ...]``."""
        ...

    def of(self, given: Any) -> RowCall:
        """The call for the rows that were given these arrays."""
        ...


class Rows(NamedTuple):
    """Rows that each have their own cursor.

    Attributes:
      given: the arguments of each row: inputs, prompts, keys and settings, arrays ``[B, ...]``.
      state: the strategy's state, arrays ``[B, ...]``; its scalars have become ``[B]``.
    """

    given: Any
    state: Any


class AdvanceResult(NamedTuple):
    """The report of ``advance``.

    Attributes:
      ended: bool ``[B]``, the rows that have ended, and those that are not in use.
      output: the sequences of all rows so far.
      settled: int32 ``[B, N]``, the number of leading tokens of each sequence that are final.
      steps: int32, the number of steps run.
      used: int32, the number of steps of rows in use before they ended, summed over rows.
    """

    ended: Array
    output: DecodeOutput
    settled: Array
    steps: Array
    used: Array


def begin(inputs: RowArguments) -> Rows:
    """Prefills rows.

    Args:
      inputs: the arguments of N rows.

    Raises:
      ValueError: if the strategy's rows cannot be exchanged one by one.
    """
    strategy, model, prompt, key = inputs.of(inputs.given)
    if not strategy.refills:
        raise ValueError("strategy: expected one whose rows can be exchanged, got another")
    state = strategy.init(model, jax.tree.map(over_rows, prompt), key)
    count = prompt.length.shape[0]
    return Rows(inputs.given, jax.tree.map(lambda x: x if x.ndim else jnp.full(count, x), state))


def repeat(rows: Rows, count: int) -> Rows:
    """Makes ``count`` rows of fewer, by repeating them: all places hold valid rows from the start.

    Example:
      >>> repeat(Rows(jnp.array([5, 6]), ()), 5).given.tolist()
      [5, 6, 5, 6, 5]
    """

    def repeated(x: Array) -> Array:
        return x[jnp.arange(count, dtype=jnp.int32) % x.shape[0]]

    return jax.tree.map(repeated, rows)


def insert(new: Rows, places: Array, *, rows: Rows) -> Rows:
    """Puts newcomers in the places of other rows.

    Args:
      new: N rows, padded to the width of ``rows`` or a smaller one.
      places: int32 ``[N]``, different places. Newcomers whose place is B or more are dropped.
      rows: B rows.

    Example:
      >>> rows, new = Rows(jnp.array([[5, 1], [6, 2], [7, 3]]), ()), Rows(jnp.array([[8], [9]]), ())
      >>> insert(new, jnp.array([2, 3]), rows=rows).given.tolist()
      [[5, 1], [6, 2], [8, 0]]
    """
    return jax.tree.map(lambda x, y: x.at[places].set(resized(y, x.shape), mode="drop"), rows, new)


def moved(x: Array, source: Array, shape: tuple[int, ...]) -> Array:
    """One array of the rows of a smaller batch: of fewer rows, or of a smaller width.

    Args:
      x: an array of the rows so far.
      source: int32, the row that each place of the new batch takes over. Those named fit into the
        new width.
      shape: the shape of this array in any number of rows of the new width.

    Example:
      >>> moved(jnp.array([[5, 1], [6, 0], [7, 1]]), jnp.array([1, 1]), (3, 1)).tolist()
      [[6], [6]]
    """
    return resized(x[source], shape)


def resized(x: Array, shape: tuple[int, ...]) -> Array:
    """An array that is padded with zeros, or cut, to all sizes of a shape but the first.

    Example:
      >>> resized(jnp.ones((1, 2, 3), jnp.int32), (5, 3, 2)).tolist()
      [[[1, 1], [1, 1], [0, 0]]]
    """
    if x.shape[1:] == shape[1:]:
        return x
    sizes = list(zip(x.shape[1:], shape[1:], strict=True))
    x = x[(slice(None), *(slice(min(size, wanted)) for size, wanted in sizes))]
    return jnp.pad(x, ((0, 0), *((0, max(0, wanted - size)) for size, wanted in sizes)))


def advance(
    inputs: RowArguments, used: Array, wanted: Array, most: Array | None = None, *, rows: Rows
) -> tuple[Rows, AdvanceResult]:
    """Runs steps until ``wanted`` rows have ended or are not in use.

    Args:
      inputs: the arguments that serve all rows.
      used: bool ``[B]``, the rows that are in use. Others may hold anything valid.
      wanted: int32, at most B.
      most: int32, the largest number of steps; None for any.
      rows: B rows.
    """
    strategy, model, prompt, _ = inputs.of(rows.given)

    def ended(state: Any) -> Array:
        return strategy.row_done(state) | ~used

    def is_unfinished(carry: tuple[Any, Array, Array]) -> Array:
        few = ended(carry[0]).sum(dtype=jnp.int32) < wanted
        return few if most is None else few & (carry[1] < most)

    def step(carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        state, num_steps, num_used = carry
        num_used += (~ended(state)).sum(dtype=jnp.int32)
        new = strategy.step(model, prompt, state)
        return counted(strategy.row_done(state), state, new), num_steps + 1, num_used

    state, num_steps, num_used = lax.while_loop(
        is_unfinished, step, (rows.state, jnp.int32(0), jnp.int32(0))
    )
    output, done = strategy.finalize(prompt, state), strategy.row_done(state)
    final = settled(strategy, state, output, done[:, None])
    return Rows(rows.given, state), AdvanceResult(ended(state), output, final, num_steps, num_used)


def counted(done: Array, old: Any, new: Any) -> Any:
    """The new state, with the counters ``[B]`` of rows that were done as they were.

    Nothing else of such a row changes by itself. A row's ``info`` thus depends on this row alone.
    """

    def kept(x: Array, y: Array) -> Array:
        return jnp.where(done, x, y) if x.ndim == 1 else y

    return jax.tree.map(kept, old, new)


def widens(call: RowCall) -> bool:
    """Whether the rows of a call may be moved to a batch of another width."""
    return call.strategy.widens and getattr(call.model, "widens", False)


def obstacle(few: RowCall, more: RowCall) -> str | None:
    """The reason why the rows of a strategy cannot be refilled; None if they can.

    Only shapes are computed, once for equal ones.

    Args:
      few: the call of some rows.
      more: that of a larger number of rows.
    """
    calls = few, more
    if not all(call.strategy.refills for call in calls):
        return "the strategy does not say when a single row is done"
    if not all(call.model.ragged for call in calls):
        return "the model's rows advance in step (ragged=False)"
    states = [jax.tree.leaves(in_mesh(_INIT.eval_shape, call)) for call in calls]
    counts = tuple(call.prompt.length.shape[0] for call in calls)
    for x, y in zip(*states, strict=True):
        if x.ndim and (x.shape[0], y.shape[0]) != counts:
            return f"the state holds {x.dtype}{list(x.shape)}, which does not begin with the rows"
    return None


def _init(call: RowCall) -> Any:
    return call.strategy.init(call.model, call.prompt, call.key)


_INIT: Any = jit(_init, ())
