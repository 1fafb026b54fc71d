"""Keys and values that queries attend to, and their scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array

Bias = Array | Callable[[Array], Array]
"""Position biases, float32 ``[B, W, H, G, T, K]``-broadcastable, or the function that computes them
from distances, int32 ``[B, W, T, K]``-broadcastable: query minus key position."""


class Part(NamedTuple):
    """K keys and values that queries ``[B, W, H, G, T, d]`` may attend to.

    What would take T x K numbers, a causal mask or biases, can be given as a rule on distances
    instead, so that it is never held whole.

    Attributes:
      key: ``[H, K, d]``, shared by all rows; ``[B, H, K, d]``, shared by the lanes of a row; or
        ``[B, W, H, K, d]``. A stack of layers has an axis N before H. An array may have more than K
        keys; those from K on are not read.
      value: as ``key``.
      mask: bool, broadcastable to ``[B, W, T, K]``, with a last axis of K.
      bias: None, or a bias that is added to the logits; a function of distances needs ``position``.
      used: None, or an int32 scalar. The mask is False from this key on, so the keys and values
        from there on need not be read.
      position: None, or int32, broadcastable to ``[B, W, T]``, the positions of the queries. Key k
        is at position k.
      least_distance: None, or the least distance at which a query sees a key, 0 in a causal
        prompt; needs ``position``.
      window: None, or the distance from which a query sees no key; needs ``position``.
      layer: None, or an int32 scalar, the layer of the stack whose keys these are. Chunks are read
        from the stack, which saves a copy of the layer.
    """

    key: Array
    value: Array
    mask: Array
    bias: Bias | None = None
    used: Array | None = None
    position: Array | None = None
    least_distance: Array | int | None = None
    window: Array | int | None = None
    layer: Array | None = None

    @property
    def num_keys(self) -> int:
        """K."""
        return self.mask.shape[-1]


class Scale(NamedTuple):
    """The scaling of the products of queries and keys before the softmax.

    Attributes:
      factor: the factor of the products.
      soft_cap: None, or the bound c of ``c tanh(x / c)``, which scaled products become (Bello et
        al. 2016, "Neural Combinatorial Optimization with Reinforcement Learning"; Gemma 2).
    """

    factor: float
    soft_cap: float | None = None


def soft_capped(x: Array, cap: float | None) -> Array:
    """``cap * tanh(x / cap)``, or ``x`` if there is no cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def read_part(part: Part, first: Array | int = 0, size: int | None = None) -> Part:
    """The part with the arrays of its own layer's keys alone, ``size`` of them from ``first``."""
    size = part.num_keys if size is None else size

    def read(x: Array) -> Array:
        if part.layer is not None:
            zero = jnp.int32(0)
            origin = [*[zero] * (x.ndim - 4), part.layer, zero, jnp.asarray(first, jnp.int32), zero]
            sizes = [*x.shape[:-4], 1, x.shape[-3], size, x.shape[-1]]
            return lax.dynamic_slice(x, origin, sizes).squeeze(-4)
        if isinstance(first, int):
            return x[..., first : first + size, :]
        return lax.dynamic_slice_in_dim(x, first, size, -2)

    return part._replace(key=read(part.key), value=read(part.value), layer=None)


_AXES = {3: "hkd", 4: "bhkd", 5: "bwhkd"}  # of keys and values, by their number


def scores(query: Array, part: Part, scale: Scale, first: Array | int = 0) -> Array:
    """The scores, float32 ``[B, W, H, G, T, K]``, -inf where a key is not seen.

    Args:
      query: as for ``attend``.
      part: as for ``attend``.
      scale: the factor and the bound of the scores.
      first: the position of the part's first key.
    """
    # A part that rows or lanes share has no axis of them, so it is never tiled.
    keys = _AXES[part.key.ndim]
    # The keys come first, so that the longer operand is read in the order of its memory.
    score = jnp.einsum(
        f"{keys},bwhgtd->bwhkgt", part.key, query, preferred_element_type=jnp.float32
    )
    score = jnp.moveaxis(score, 3, -1)
    score = score if scale.factor == 1.0 else score * scale.factor
    score = soft_capped(score, scale.soft_cap)
    mask, bias = part.mask, part.bias
    if part.position is not None:
        key = first + jnp.arange(part.key.shape[-2], dtype=jnp.int32)
        distance = part.position[..., None] - key[None, None, None]
        if part.least_distance is not None:
            mask = mask & (distance >= part.least_distance)
        if part.window is not None:
            mask = mask & (distance < part.window)
        bias = bias(distance) if callable(bias) else bias
    assert not callable(bias), "biases by distance need positions"
    score = score if bias is None else score + bias
    return jnp.where(mask[:, :, None, None], score, -jnp.inf)


def weighted(part: Part, weight: Array) -> Array:
    """The weighted sum of the part's values, float32 ``[B, W, H, G, T, d]``."""
    values = _AXES[part.value.ndim]
    # The product is in the dtype of the cache, because XLA's CPU backend has no batched bfloat16
    # product of this layout with a float32 result.
    out = jnp.einsum(f"bwhgtk,{values}->bwhgtd", weight.astype(part.value.dtype), part.value)
    return out.astype(jnp.float32)
