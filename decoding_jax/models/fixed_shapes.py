"""Networks whose results for a row are the same bits whatever else is in the batch.

The last bits of a matrix product, a sum or an exponential depend on the shapes of the arrays that a
compiler saw. Here a network only ever runs in programs of a few fixed shapes, which do not depend
on the batch:

- Rows run in groups of ``reproducible_rows`` lanes, in the body of a loop over the groups.
- A prompt runs at a width that follows from its own length: a power of two times ``BLOCK``.
- New tokens attend to the cache in blocks of ``BLOCK`` keys, as many as are in use
  (``attention.attend_in_fixed_blocks``), so the width of the cache does not matter.

The compiler sees one and the same body in every program: its inputs and outputs pass barriers, and
it cannot know how often the loop runs. (A loop that runs once would be taken apart, and its body
fused with what surrounds it.) What strategies compute from the logits is equal to the bit in any
case (``ops.exact``).

The methods of models are decorated by the functions of this module.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array, ModelOutput
from decoding_jax.loop.refill import resized
from decoding_jax.models import caches
from decoding_jax.models.attention import BLOCK
from decoding_jax.sharding.meshes import DATA, map_rows

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])


def in_groups_of_rows(method: F) -> F:
    """Decorates ``prefill`` of a network's model, see the module."""

    @functools.wraps(method)
    def prefill(model: Any, tokens: Any, length: Any, **settings: Any) -> Any:
        rows = model.config.reproducible_rows
        if rows is None:
            return method(model, tokens, length, **settings)
        given = [tokens, length]
        if hasattr(model, "source"):
            model.check_rows(tokens)
            given += [model.source, model.source_length]
        given = [jnp.asarray(x, jnp.int32) for x in given]
        run = functools.partial(_prefill, method, rows=rows, **settings)
        return map_rows(run, given, _with(model, reproducible_rows=None), over=(DATA,))

    return prefill  # type: ignore[return-value]


def in_groups_of_lanes(method: F) -> F:
    """Decorates ``extend`` of a network's model, see the module."""

    @functools.wraps(method)
    def extend(
        model: Any, cache: Any, tokens: Any, start: Any, visible: Any = None, position: Any = None
    ) -> Any:
        rows = model.config.reproducible_rows
        if rows is None:
            return method(model, cache, tokens, start, visible, position)
        tree = [None if x is None else jnp.asarray(x) for x in (visible, position)]
        lanes = jnp.broadcast_to(jnp.asarray(start, jnp.int32), tokens.shape[:2])
        if tree[1] is not None:
            position = tree[1].reshape((1,) * (3 - tree[1].ndim) + tree[1].shape)
            tree[1] = jnp.broadcast_to(position, tokens.shape)
        run = functools.partial(_extend, method, rows=rows)
        plain = _with(model, reproducible_rows=None, attention="fixed")
        output, new, at = map_rows(run, (cache, tokens, lanes, *tree), plain, over=(DATA,))
        return output, _written(cache, new, at, start)

    return extend  # type: ignore[return-value]


def in_groups(method: F) -> F:
    """Decorates ``project`` of a network's model, see the module."""

    @functools.wraps(method)
    def project(model: Any, hidden: Array) -> Array:
        rows = model.config.reproducible_rows
        if rows is None:
            return method(model, hidden)
        flat = hidden.reshape(-1, hidden.shape[-1])
        run = functools.partial(method, _with(model, reproducible_rows=None))
        order = jnp.arange(flat.shape[0], dtype=jnp.int32)
        # No float is above the largest but infinity, which the compiler does not infer.
        first = flat[0, 0].astype(jnp.float32)
        beyond = (first > jnp.finfo(jnp.float32).max) & ~jnp.isinf(first)
        total = order.size + beyond.astype(jnp.int32)
        out = jnp.zeros((order.size, model.vocab_size), jnp.float32)
        logits = _in_groups(run, lambda item: flat[item], order, total, out, rows)
        return logits.reshape(*hidden.shape[:-1], model.vocab_size)

    return project  # type: ignore[return-value]


def reproducible(model: M, rows: int | None = None) -> M:
    """The same network, whose results for a row are the same bits whatever else is in the batch.

    Logits of a row then depend on its own tokens alone: not on the number of rows and lanes, on
    the row's place among them, on the padding of prompts, on the size of the cache, or on how many
    devices rows are spread over. Strategies therefore give a row the same tokens and the same
    log-probabilities in all of these cases, on machines of one kind and with the same versions of
    JAX. ``decoding_jax.load`` has it as an argument.

    Args:
      model: a network of ``decoding_jax.models``, bound to its inputs or not.
      rows: the number of lanes that run together, of which the bits may depend; or None for
        8 on CPUs and 64 elsewhere. A group is filled up: fewer lanes cost as much as a full group.

    Raises:
      ValueError: for another model, or a number that is not positive.

    Example:
      >>> from decoding_jax.models import GPT2, GPT2Config
      >>> config = GPT2Config(
      ...     vocab_size=9, emb_dim=4, num_heads=2, mlp_dim=8, num_layers=1, max_positions=32)
      >>> reproducible(GPT2.init(config, jax.random.key(0))).config.reproducible_rows
      8
    """
    if rows is None:
        rows = 8 if jax.default_backend() == "cpu" else 64
    return _with(model, reproducible_rows=fields.as_count("rows", rows))


def _with(model: Any, **settings: Any) -> Any:
    """The model with other settings of its network."""
    is_head = hasattr(model, "fuse")  # whose methods are not decorated
    if "config" in getattr(model, "__dataclass_fields__", ()) and not is_head:
        return dataclasses.replace(model, config=dataclasses.replace(model.config, **settings))
    if is_head or not hasattr(model, "model"):
        expected = "a network of decoding_jax.models"
        raise fields.error("reproducible.model", expected, model)
    return dataclasses.replace(model, model=_with(model.model, **settings))


def _in_groups(
    run: Callable[[Any], Any],
    gather: Callable[[Array], Any],
    order: Array,
    count: Array,
    out: Any,
    rows: int,
) -> Any:
    """Runs some of N items in groups, and puts their results into their places.

    Args:
      run: a function of arrays ``[rows, ...]`` that returns arrays ``[rows, ...]``.
      gather: the arguments of ``run`` for the items of the given numbers, int32 ``[rows]``.
      order: int32 ``[N]``, the items by number; those to run come first.
      count: how many they are, a number that the compiler cannot know.
      out: arrays ``[N, ...]``. They are at least as large as the results on their other axes.
      rows: the number of items of a group.

    Returns:
      ``out`` with the results.
    """
    total = order.shape[0]

    def body(group: Array, out: Any) -> Any:
        place = group * rows + jnp.arange(rows, dtype=jnp.int32)
        item = order[jnp.minimum(place, total - 1)]  # the last group is filled up with the last
        found = lax.optimization_barrier(run(lax.optimization_barrier(gather(item))))
        at = jnp.where(place < count, item, total)
        return jax.tree.map(lambda x, y: x.at[at].set(resized(y, x.shape), mode="drop"), out, found)

    return lax.fori_loop(0, (count + rows - 1) // rows, body, out)


def _zeros(shapes: Any, count: int) -> Any:
    """Arrays of zeros for ``count`` items."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), shapes)


def _rounded(size: int) -> int:
    """The number of keys that a cache holds: two blocks or more.

    A loop over one block alone would read the keys whole, and the compiler would take their
    conversion from bfloat16 out of it.
    """
    return max(-(-size // BLOCK), 2) * BLOCK


def _widths(size: int) -> list[int]:
    """The widths that prompts of up to ``size`` tokens run at."""
    widths = [BLOCK]
    while widths[-1] < size:
        widths.append(2 * widths[-1])
    return widths


def _prefill(
    method: Callable[..., Any],
    given: Sequence[Array],
    model: Any,
    *,
    rows: int,
    lanes: int,
    slots: int,
    with_hidden: bool = False,
) -> tuple[ModelOutput, caches.Cache]:
    """``prefill`` by groups of rows whose prompts (and inputs) run at the same widths.

    Args:
      method: ``prefill`` of the class of the model.
      given: the prompts ``[B, P]`` and their lengths, and those of the inputs if there are any.
      model: the network as it runs on one group.
      rows: the number of rows of a group.
      lanes, slots, with_hidden: as for ``LanguageModel.prefill``.
    """
    shared = model.tokens.shape[0] if hasattr(model, "tokens") else 0
    batch, size = given[0].shape

    def run(sizes: Sequence[int], pieces: Sequence[Array]) -> Any:
        tokens, length, *inputs = pieces
        bound = model
        if inputs:
            source = resized(inputs[0], (rows, sizes[1]))
            bound = dataclasses.replace(model, source=source, source_length=inputs[1])
        tokens = resized(tokens, (rows, shared + sizes[0]))
        output, cache = method(bound, tokens, length, lanes=1, slots=1, with_hidden=with_hidden)
        return output, cache.prompt, cache.length, cache.source

    longest = [max(given[0].shape[1] - shared, 1), *(x.shape[1] for x in given[2::2])]
    needed = [given[1] - shared, *given[3::2]]
    full = [_rounded(n) for n in longest]
    some = [jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for x in given]
    shapes = jax.eval_shape(functools.partial(run, full), some)
    out = _zeros(shapes, batch)
    for sizes in itertools.product(*map(_widths, longest)):
        # These widths are the least that hold the row's own tokens.
        fits = jnp.ones(batch, bool)
        for width, need in zip(sizes, needed, strict=True):
            fits &= (need <= width) & ((need > width // 2) | (width == BLOCK))
        out = _in_groups(
            functools.partial(run, sizes),
            lambda item: [x[item] for x in given],
            jnp.argsort(~fits, stable=True).astype(jnp.int32),
            fits.sum(dtype=jnp.int32),
            out,
            rows,
        )
    output, prompt, length, source = out
    if with_hidden:
        output = output._replace(hidden=output.hidden[:, :, :size])
    output = output._replace(features=tuple(x[:, :, :size] for x in output.features))
    slots = _rounded(slots)
    return output, caches.empty_slots(prompt, length, lanes=lanes, slots=slots, source=source)


def _extend(method: Callable[..., Any], given: Any, model: Any, *, rows: int) -> Any:
    """``extend`` by groups of lanes: the output, and what to write to the slots of the cache.

    Args:
      method: ``extend`` of the class of the model.
      given: the cache, the tokens ``[B, W, T]``, their first slots ``[B, W]``, and ``visible`` and
        ``position``, either of which may be None.
      model: the network as it runs on one group.
      rows: the number of lanes of a group.
    """
    cache, tokens, *_ = given
    batch, lanes, count = tokens.shape
    of_lanes = cache.slots, cache.position, *given[1:]
    of_rows = cache.prompt, cache.length, cache.source
    if of_lanes[4] is not None:
        missing = cache.num_slots - of_lanes[4].shape[-1]
        visible = jnp.pad(of_lanes[4], ((0, 0), (0, 0), (0, 0), (0, missing)))
        of_lanes = *of_lanes[:4], visible, of_lanes[5]
    flat = jax.tree.map(lambda x: x.reshape(batch * lanes, 1, *x.shape[2:]), of_lanes)

    def gather(item: Array) -> Any:
        row = item // lanes
        return jax.tree.map(lambda x: x[item], flat), jax.tree.map(lambda x: x[row], of_rows)

    def run(pieces: Any) -> Any:
        (slots, position, tokens, start, *tree), (prompt, length, source) = pieces
        held = caches.Cache(prompt, slots, length, position, source)
        output, held = method(model, held, tokens, start, *tree)
        read = functools.partial(_read, start=start, count=count)
        return output, jax.tree.map(read, held.slots), read(held.position[..., None])[..., 0]

    order = jnp.arange(batch * lanes, dtype=jnp.int32)
    total = jnp.where(cache.length.min() >= 0, batch * lanes, 0)  # All lanes; no length is less.
    shapes = jax.eval_shape(
        lambda item: run(gather(item)), jax.ShapeDtypeStruct((rows,), jnp.int32)
    )
    out = _in_groups(run, gather, order, total, _zeros(shapes, batch * lanes), rows)
    return jax.tree.map(lambda x: x.reshape(batch, lanes, *x.shape[2:]), out)


def _read(slots: Array, start: Array, count: int) -> Array:
    """``[B, W, ..., T, d]``, the entries of ``[B, W, ..., S, d]`` from slot ``start [B, W]``."""
    index = start[..., None] + jnp.arange(count, dtype=jnp.int32)[None, None]
    index = index.reshape(*start.shape, *(1,) * (slots.ndim - 4), count, 1)
    return jnp.take_along_axis(slots, index, axis=-2, mode="clip")


def _written(cache: caches.Cache, new: Any, position: Array, start: Any) -> caches.Cache:
    """The cache with the keys, values and positions of new tokens."""
    slots = jax.tree.map(lambda x, y: caches.write(x, y, start), cache.slots, new)
    at = caches.write(cache.position[..., None], position[..., None], start)[..., 0]
    return cache._replace(slots=slots, position=at)
