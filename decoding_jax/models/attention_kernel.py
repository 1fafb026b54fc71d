"""Softmax attention on GPUs: one kernel that reads keys where they lie, with a running softmax.

A step of decoding reads a cache of several arrays: a prompt that the lanes of a row share, and
slots of each lane. The queries of all lanes and of all query heads of a key-value head are the rows
of one tile, so that a shared key is read once for all of them (Juravsky et al. 2024, "Hydragen").
Keys are read in blocks up to the last one that a query sees, and are divided among several programs
where rows and heads are too few to occupy the device (Dao et al. 2023, "Flash-Decoding"). Each
program keeps a running softmax (Milakov & Gimelshein 2018), and the results of several programs are
merged by their peaks.

The grid is (rows or rows x lanes, heads, blocks of queries, splits). With G = 2 query heads a
key-value head, two lanes and one new token, the four queries that read a row's prompt are one tile,
and its blocks of keys alternate between two splits::

                     keys 0..63   64..127   128..191   192..255   256..299
    lane 0, head 0
    lane 0, head 1    split 0     split 1   split 0    split 1    split 0
    lane 1, head 0
    lane 1, head 1

A query has its own mask, so lanes of different lengths share a tile. Slots of lanes are a second
call, whose tiles have the queries of one lane. The softmax of both calls is merged.

The kernel is written in Pallas for Triton, a backend that JAX 0.12 announces as deprecated.
``attention.attend_in_blocks`` is its definition, and what ``attention_choice.attend`` chooses where
a later JAX lacks that backend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import attention
from decoding_jax.models.attention import Part, Scale, Sums
from decoding_jax.sharding import meshes

LOWEST = float(jnp.finfo(jnp.float32).min)

HEAD_SIZES = (16, 32, 64, 128, 256)
"""The sizes of heads that the kernel takes, powers of two."""

MOST_BIASES = 2**20
"""The number of position biases of a head up to which they are computed before the kernel runs."""

PROGRAMS = 264
"""The number of programs that occupy a device: two for each multiprocessor of an H100."""

LEAST_BLOCKS = 4
"""Keys are not divided into fewer blocks than this, since merging takes time too."""


class Sizes(NamedTuple):
    """The static sizes of a call.

    Attributes:
      lanes: the number of lanes that the first axis of the grid counts within each row, 1 where a
        program has the queries of all lanes.
      groups: G.
      tokens: T.
      rows: the number of queries of a row and head, lanes x G x T, or G x T.
      block_rows: the queries of a program, a power of two.
      block_keys: the keys that are read at a time, a power of two.
      splits: the number of programs among which the keys are divided.
    """

    lanes: int
    groups: int
    tokens: int
    rows: int
    block_rows: int
    block_keys: int
    splits: int


def _load(array: Any, *index: Any) -> Array:
    """Entries of an array, with index 0 along broadcast axes before the last one."""
    first = [0 if size == 1 else i for size, i in zip(array.shape[:-1], index[:-1], strict=True)]
    return array[(*first, index[-1])]


def _add_part(
    sums: tuple[Array, Array, Array], query: Array, part: Any, sizes: Sizes, scale: Scale
) -> tuple[Array, Array, Array]:
    """Adds the keys of a part that this program reads to a running softmax.

    Args:
      sums: the peaks ``[R]``, the totals ``[R]`` and the weighted values ``[R, d]``, the last two
        divided by the exponential of the peak.
      query: ``[R, d]``, the queries of this program.
      part: references to the arrays of a part that is ``_prepared``.
      sizes: the static sizes.
      scale: the scaling of the scores.
    """
    # A query's index within its tile says which lane, query head and token it is: they are stored
    # in this order. What lies beyond the last query repeats it, and is not written at the end.
    program, head, block, split = (pl.program_id(axis) for axis in range(4))
    row, lane = lax.div(program, sizes.lanes), lax.rem(program, sizes.lanes)
    index = block * sizes.block_rows + jnp.arange(sizes.block_rows, dtype=jnp.int32)
    index = jnp.minimum(index, sizes.rows - 1)[:, None]
    token = lax.rem(index, sizes.tokens)
    lanes = lane + lax.div(index, sizes.groups * sizes.tokens)
    group = lax.rem(lax.div(index, sizes.tokens), sizes.groups)

    # The range of keys that any query of the tile sees. Masks decide within it.
    first, end = jnp.int32(0), _load(part.used, row, lane if part.used.shape[1] > 1 else 0)
    position: Any = None
    if part.position is not None:
        position = _load(part.position, row, lanes, token if part.position.shape[2] > 1 else 0)
    if part.least_distance is not None:
        end = jnp.minimum(end, jnp.max(position) - part.least_distance[0] + 1)
    if part.window is not None:
        first = jnp.maximum(jnp.min(position) - part.window[0] + 1, 0)

    stacked = part.layer is not None
    axes = (row, lane)[: part.key.ndim - 3 - stacked] + ((part.layer[0],) if stacked else ())
    size, depth = part.key.shape[-2:]

    def add(step: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        peak, total, out = sums
        start = (first_block + split + step * sizes.splits) * sizes.block_keys
        keys = start + jnp.arange(sizes.block_keys, dtype=jnp.int32)
        read = jnp.minimum(keys, size - 1)  # the last block may be longer than the part
        key = part.key[(*axes, head, read, pl.ds(0, depth))]
        # Without TF32, which would cut float32 to 10 bits.
        score = triton.dot(query, key.T, allow_tf32=False) * scale.factor
        score = attention.soft_capped(score, scale.soft_cap)
        if part.bias is not None:
            score += _load(part.bias, row, lanes, head, group, token, read[None])
        seen = _load(part.mask, row, lanes, token, read[None]) & (keys < end)[None]
        if part.least_distance is not None:
            seen &= position - keys[None] >= part.least_distance[0]
        if part.window is not None:
            seen &= position - keys[None] < part.window[0]
        score = jnp.where(seen, score, -jnp.inf)
        # The peak begins at the lowest number and not at -inf, so that a block without a visible
        # key has weights of exp(-inf) = 0, and not of exp(-inf + inf), a NaN.
        new = jnp.maximum(peak, score.max(-1))
        weight, kept = jnp.exp(score - new[:, None]), jnp.exp(peak - new)
        value = part.value[(*axes, head, read, pl.ds(0, depth))]
        more = triton.dot(weight.astype(value.dtype), value, allow_tf32=False)
        return new, total * kept + weight.sum(-1), out * kept[:, None] + more

    first_block = lax.div(first, sizes.block_keys)
    blocks = lax.div(end + sizes.block_keys - 1, sizes.block_keys) - first_block - split
    steps = lax.div(jnp.maximum(blocks, 0) + sizes.splits - 1, sizes.splits)
    return lax.fori_loop(0, steps, add, sums)


def _kernel(query_ref: Any, parts: Any, *outputs: Any, sizes: Sizes, scale: Scale) -> None:
    """One program: some queries of a row and head, and every ``splits``-th block of its keys."""
    index = pl.program_id(2) * sizes.block_rows + jnp.arange(sizes.block_rows, dtype=jnp.int32)
    real = index < sizes.rows
    query = triton.load(query_ref.at[:, :], mask=real[:, None], other=0.0)
    sums = (
        jnp.full((sizes.block_rows,), LOWEST, jnp.float32),
        jnp.zeros((sizes.block_rows,), jnp.float32),
        jnp.zeros(query.shape, jnp.float32),
    )
    for part in parts:
        sums = _add_part(sums, query, part, sizes, scale)
    peak, total, out = sums
    if len(outputs) == 1:
        # The output of a query that sees no key is 0.
        out = out / jnp.where(total > 0, total, 1.0)[:, None]
        triton.store(outputs[0].at[:, :], out.astype(outputs[0].dtype), mask=real[:, None])
        return
    triton.store(outputs[0].at[:], peak, mask=real)
    triton.store(outputs[1].at[:], total, mask=real)
    triton.store(outputs[2].at[:, :], out, mask=real[:, None])


def _call(
    query: Array, parts: Sequence[Part], sizes: Sizes, scale: Scale, *, whole: bool, interpret: bool
) -> Any:
    """Runs the kernel over queries ``[I, H, rows, d]``, with I = B or B x W.

    Returns:
      The attention, in a list, if it is ``whole``; otherwise peaks and totals ``[I, H, splits,
      rows]``, and the weighted sums ``[I, H, splits, rows, d]``.
    """
    programs, heads, rows, depth = query.shape
    blocks = pl.cdiv(rows, sizes.block_rows)
    tile = (None, None, sizes.block_rows, depth)
    everything = lambda x: pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)  # noqa: E731
    if whole:
        shapes: Any = [jax.ShapeDtypeStruct(query.shape, query.dtype)]
        specs = [pl.BlockSpec(tile, lambda i, h, b, s: (i, h, b, 0))]
    else:
        several = (programs, heads, sizes.splits, rows)
        shapes = [jax.ShapeDtypeStruct(several, jnp.float32)] * 2
        shapes += [jax.ShapeDtypeStruct((*several, depth), jnp.float32)]
        one = (None, *tile[:-1])
        specs = [pl.BlockSpec(one, lambda i, h, b, s: (i, h, s, b))] * 2
        specs += [pl.BlockSpec((None, *tile), lambda i, h, b, s: (i, h, s, b, 0))]
    return pl.pallas_call(
        functools.partial(_kernel, sizes=sizes, scale=scale),
        grid=(programs, heads, blocks, sizes.splits),
        in_specs=[
            pl.BlockSpec(tile, lambda i, h, b, s: (i, h, b, 0)),
            jax.tree.map(everything, tuple(parts)),
        ],
        out_specs=specs,
        out_shape=shapes,
        compiler_params=triton.CompilerParams(
            num_warps=4 if sizes.block_rows <= 64 else 8,
            num_stages=3 if sizes.block_rows <= 32 and query.dtype == jnp.bfloat16 else 2,
        ),
        interpret=interpret,
        name="attention",
    )(query, tuple(parts))


def _sizes(query: Array, parts: Sequence[Part], *, lanes: int, groups: int, tokens: int) -> Sizes:
    programs, heads, rows, depth = query.shape
    width = depth * query.dtype.itemsize
    block_rows = min(max(16, pl.next_power_of_2(rows)), 128 if width <= 256 else 64)
    block_keys = 64 if width <= 256 else 32
    longest = max(part.key.shape[-2] for part in parts)
    programs *= heads * pl.cdiv(rows, block_rows)
    splits = min(max(PROGRAMS // programs, 1), pl.cdiv(longest, LEAST_BLOCKS * block_keys))
    return Sizes(lanes, groups, tokens, rows, block_rows, block_keys, splits)


def _of_lanes(part: Part) -> bool:
    """Whether each lane has keys of its own."""
    return part.key.ndim - (part.layer is not None) == 5


def _over_splits(peaks: Array, totals: Array, outs: Array) -> Sums:
    """The sums of all programs, which are along the third axis."""
    peak = peaks.max(2)
    kept = jnp.exp(peaks - peak[:, :, None])
    total, out = (totals * kept).sum(2), (outs * kept[..., None]).sum(2)
    return Sums(peak[..., None], total[..., None], out)


def _plus(a: Sums, b: Sums) -> Sums:
    """The sums of the keys of both."""
    peak = jnp.maximum(a.peak, b.peak)
    kept, more = jnp.exp(a.peak - peak), jnp.exp(b.peak - peak)
    return Sums(peak, a.total * kept + b.total * more, a.out * kept + b.out * more)


def _attend(query: Array, parts: Sequence[Part], scale: Scale, interpret: bool) -> Array:
    """``attend`` of parts that are ``_prepared``."""
    batch, lanes, heads, groups, tokens, depth = query.shape
    own = [part for part in parts if _of_lanes(part) and lanes > 1]
    shared = [part for part in parts if not _of_lanes(part) or lanes == 1]

    # The queries of a program: those of all lanes of a row, or those of one lane.
    to_rows = lambda x: x.transpose(0, 2, 1, 3, 4, 5)  # noqa: E731
    calls = [(shared, 1, to_rows(query).reshape(batch, heads, -1, depth))] if shared else []
    calls += [(own, lanes, query.reshape(batch * lanes, heads, -1, depth))] if own else []
    found = []
    for some, counted, merged in calls:
        sizes = _sizes(merged, some, lanes=counted, groups=groups, tokens=tokens)
        whole = len(calls) == sizes.splits == 1
        results = _call(merged, some, sizes, scale, whole=whole, interpret=interpret)
        if not whole:
            results = _over_splits(*results)

        def restored(x: Array, counted: int = counted) -> Array:
            rest = (groups, tokens, *x.shape[3:])
            if counted == 1:
                return jnp.moveaxis(x.reshape(batch, heads, lanes, *rest), 2, 1)
            return x.reshape(batch, lanes, heads, *rest)

        found.append([restored(x) for x in results])
    if len(found[0]) == 1:
        return found[0][0]
    return functools.reduce(_plus, [Sums(*one) for one in found]).result(query.dtype)


def _prepared(part: Part, query: Array) -> Part:
    """A part of arrays alone, with ``used`` int32 ``[B, W]`` and scalars ``[1]``."""
    size, bias = part.num_keys, part.bias
    if callable(bias):
        assert part.position is not None
        key = jnp.arange(size, dtype=jnp.int32)[None, None, None]
        bias = bias(part.position[..., None] - key, key)
    used = jnp.where(part.mask, jnp.arange(1, size + 1, dtype=jnp.int32)[None, None, None], 0).max(
        (2, 3)
    )
    scalar = lambda x: None if x is None else jnp.asarray(x, jnp.int32).reshape(1)  # noqa: E731
    return part._replace(
        bias=bias,
        used=used if _of_lanes(part) else used.max(1, keepdims=True),
        least_distance=scalar(part.least_distance),
        window=scalar(part.window),
        layer=scalar(part.layer),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _differentiable(query: Array, parts: Any, scale: Scale, interpret: bool) -> Array:
    return _attend(query, parts, scale, interpret)


def _forward(query: Array, parts: Any, scale: Scale, interpret: bool) -> tuple[Array, Any]:
    return _attend(query, parts, scale, interpret), (query, parts)


def _backward(scale: Scale, interpret: bool, saved: Any, grad: Array) -> Any:
    """The gradient of the definition, ``attention.attend_in_blocks``."""

    def run(query: Array, parts: Any) -> Array:
        first = lambda x: None if x is None else x[0]  # noqa: E731
        parts = [
            part._replace(
                used=None,
                least_distance=first(part.least_distance),
                window=first(part.window),
                layer=first(part.layer),
            )
            for part in parts
        ]
        return attention.attend_in_blocks(query, parts, scale)

    return jax.vjp(run, *saved)[1](grad)


_differentiable.defvjp(_forward, _backward)


def _specs(query: Array, parts: Any) -> Any:
    """The layouts of query and parts on the mesh in context: rows over data, heads over model."""
    rows, heads = query.shape[0], query.shape[2]

    def over(name: str, size: int) -> str | None:
        axis = meshes.axis_size(name)
        return name if axis is not None and size % axis == 0 else None

    data, model = over(meshes.DATA, rows), over(meshes.MODEL, heads)

    def spec(x: Array | None, *, row: bool = True, head: int | None = None) -> Any:
        if x is None:
            return None
        axes: list[str | None] = [None] * x.ndim
        if row and x.shape[0] == rows:
            axes[0] = data
        if head is not None and x.shape[head] == heads:
            axes[head] = model
        return PartitionSpec(*axes)

    def of(part: Part) -> Any:
        row = part.key.ndim - (part.layer is not None) > 3
        return Part(
            key=spec(part.key, row=row, head=-3),
            value=spec(part.value, row=row, head=-3),
            mask=spec(part.mask),
            bias=spec(part.bias, head=2),  # type: ignore[arg-type]
            used=spec(part.used),
            position=spec(part.position),
            least_distance=spec(part.least_distance, row=False),  # type: ignore[arg-type]
            window=spec(part.window, row=False),  # type: ignore[arg-type]
            layer=spec(part.layer, row=False),
        )

    return spec(query, head=2), tuple(of(part) for part in parts)


def on_mesh(run: Callable[[Array, Any], Array], query: Array, parts: Sequence[Part]) -> Array:
    """``run(query, parts)``, on each device of a mesh for its own rows and heads.

    Args:
      run: a function of what a device has.
      query: ``[B, W, H, G, T, d]``.
      parts: parts of arrays alone, scalars among them as ``[1]``.
    """
    axes = {name: meshes.axis_size(name) for name in (meshes.DATA, meshes.MODEL)}
    names = {name for name, size in axes.items() if size is not None}
    if any(axes[name] != 1 for name in names):
        specs = _specs(query, parts)
        run = jax.shard_map(
            run, in_specs=specs, out_specs=specs[0], axis_names=names, check_vma=False
        )
    return run(query, tuple(parts))


def attend(query: Array, parts: Sequence[Part], scale: Scale, *, interpret: bool = False) -> Array:
    """``attention_choice.attend`` by this kernel, for queries and parts without a ``refusal``.

    On a mesh, each device runs it for its own rows and heads.

    Args:
      query: ``[B, W, H, G, T, d]``.
      parts: the keys and values.
      scale: the scaling of the scores.
      interpret: whether the kernel is interpreted, for tests on devices that cannot run it.

    Returns:
      ``[B, W, H, G, T, d]``, in the dtype of the query.
    """
    prepared = tuple(_prepared(part, query) for part in parts)

    def run(query: Array, parts: Any) -> Array:
        return _differentiable(query, parts, scale, interpret)

    return on_mesh(run, query, prepared)


def refusal(query: Array, parts: Sequence[Part]) -> str | None:
    """Why the kernel cannot run, as what it expects and got, or None if it can."""
    depth, tokens = query.shape[-1], query.shape[-2]
    if depth not in HEAD_SIZES:
        return f"heads of {', '.join(map(str, HEAD_SIZES))} numbers for 'pallas', got {depth}"
    biases = max((tokens * p.num_keys for p in parts if callable(p.bias)), default=0)
    if biases > MOST_BIASES:
        return f"at most {MOST_BIASES} position biases of a head for 'pallas', got {biases}"
    return None
