"""Small Flax layers and functions that the networks share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import caches
from decoding_jax.models.quantized import QuantizedArray
from decoding_jax.ops import precision
from decoding_jax.sharding import meshes

Kernel: TypeAlias = Array | QuantizedArray


def matmul(x: Array, kernel: Kernel, dtype: str) -> Array:
    """The product ``x @ kernel`` of operands in ``dtype``, accumulated and returned in float32.

    A float32 ``x`` is multiplied in all its bits (``ops.precision``). A bfloat16 one is multiplied
    in JAX's default precision, even by a float32 kernel.

    Args:
      x: ``[..., D]``.
      kernel: ``[D, F]``, or with more axes ``[D, ..., F]``; or such an array, quantised.
      dtype: ``float32`` or ``bfloat16``.

    Returns:
      float32 ``[..., F]``, with all axes of the kernel but the first.
    """
    left = x.astype(dtype)
    exactness = precision.of(x, left)

    def multiply(left: Array, kernel: Kernel) -> Array:
        if isinstance(kernel, QuantizedArray):
            return kernel.product(left, exactness)
        return _product(left, kernel.astype(dtype), exactness)

    one_row = left.size == left.shape[-1] and left.dtype == jnp.bfloat16
    if not one_row or jax.default_backend() != "gpu":
        return multiply(left, kernel)
    return lax.platform_dependent(
        left, kernel, cuda=partial(as_several_rows, multiply), default=multiply
    )


SEVERAL_ROWS = 8
"""The rows that a single one is padded to on GPUs, where XLA would make a sum of its product, which
reads a kernel at 40 to 50% of the bandwidth; a product of eight rows reads it at 80 to 90%."""


def as_several_rows(multiply: Callable[[Array, Any], Array], x: Array, kernel: Kernel) -> Array:
    """The product of one row ``[..., D]`` and a kernel, by that of ``SEVERAL_ROWS`` rows."""
    rows = jnp.pad(x.reshape(1, -1), ((0, SEVERAL_ROWS - 1), (0, 0)))
    return multiply(rows, kernel)[:1].reshape(*x.shape[:-1], *kernel.shape[1:])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, kernel: Array, exactness: lax.Precision | None) -> Array:
    return jnp.tensordot(x, kernel, 1, precision=exactness, preferred_element_type=jnp.float32)


def _forward(
    x: Array, kernel: Array, exactness: lax.Precision | None
) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, kernel, exactness), (x, kernel)


def _backward(
    exactness: lax.Precision | None, saved: tuple[Array, Array], grad: Array
) -> tuple[Array, Array]:
    # The cotangent is rounded to the dtype of the operands, so that the operands of these products
    # are narrow too, as matrix units require.
    x, kernel = saved
    grad = grad.astype(x.dtype)
    flat_kernel = kernel.reshape(kernel.shape[0], -1)
    flat_x, flat_grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, flat_kernel.shape[-1])
    multiply = partial(jnp.matmul, precision=exactness, preferred_element_type=jnp.float32)
    dx = multiply(flat_grad, _transposed(flat_kernel))
    dkernel = multiply(_transposed(flat_x), flat_grad)
    return (
        dx.reshape(x.shape).astype(x.dtype),
        dkernel.reshape(kernel.shape).astype(kernel.dtype),
    )


_product.defvjp(_forward, _backward)


def _transposed(x: Array) -> Array:
    """``x.T`` as a contiguous copy.

    XLA folds a transposition into the product that reads it. Its CPU backend then does not use the
    bfloat16 matrix unit, which was measured to be five times slower. XLA does not fold across a
    loop, so a bfloat16 array is transposed inside one.
    """
    if x.dtype != jnp.bfloat16:
        return x.T
    # The loop always runs once, but the compiler cannot infer this.
    passes = jnp.where(jnp.isinf(x[0, 0]), 1, 1 + (x[0, 0] > jnp.finfo(x.dtype).max))
    start = (jnp.int32(0), jnp.zeros(x.shape[::-1], x.dtype))
    return lax.while_loop(lambda c: c[0] < passes, lambda c: (c[0] + 1, x.T), start)[1]


_ROWS, _COLUMNS = PartitionSpec(meshes.MODEL, None), PartitionSpec(None, meshes.MODEL)

PARTITION_RULES = {
    "*position_embedder/embedding": PartitionSpec(),
    "*image_end": PartitionSpec(),
    "*embedding": _ROWS,
    "*embedding_*/kernel": PartitionSpec(),
    "*norm/*": PartitionSpec(),
    "*attention/out/kernel": _ROWS,
    "*attention/out/bias": PartitionSpec(),
    "*attention/*/kernel": _COLUMNS,
    "*attention/*/bias": PartitionSpec(meshes.MODEL),
    "*attention/sinks": PartitionSpec(meshes.MODEL),
    "*_experts/kernel": PartitionSpec(meshes.MODEL, None, None),
    "*_experts/bias": PartitionSpec(meshes.MODEL, None),
    "*router/*": PartitionSpec(),
    "*mlp/wo/kernel": _ROWS,
    "*mlp/wo/bias": PartitionSpec(),
    "*mlp/down/kernel": _ROWS,
    "*mlp/down/bias": PartitionSpec(),
    "*mlp/*/kernel": _COLUMNS,
    "*mlp/*/bias": PartitionSpec(meshes.MODEL),
    "*logits_dense/kernel": _COLUMNS,
    "*logits_dense/bias": PartitionSpec(meshes.MODEL),
    "*logits_bias": _COLUMNS,
    "source": PartitionSpec(meshes.DATA, None),
    "source_length": PartitionSpec(meshes.DATA),
}
"""The layout of all networks on a mesh: heads, features and vocabulary over ``model``, and the rows
of inputs that an encoder-decoder is bound to over ``data``."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: x,
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
}


class Dense(nn.Module):
    """A linear map ``[..., D] -> [..., features]`` with a two-dimensional ``kernel``."""

    features: int
    dtype: str = "float32"
    use_bias: bool = False
    init_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.variance_scaling(self.init_scale, "fan_in", "truncated_normal")
        kernel = self.param("kernel", init, (x.shape[-1], self.features), jnp.float32)
        y = matmul(x, kernel, self.dtype).astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
            y += bias.astype(self.dtype).reshape((1,) * (y.ndim - 1) + (-1,))
        return y


def vocabulary_logits(hidden: Array, kernel: Kernel) -> Array:
    """The product ``hidden [..., D] @ kernel [D, V]`` in float32.

    bfloat16 weights are not converted. The product accumulates in float32 in any case, and a
    float32 copy of the largest matrix at every step would cost more than the product.
    """
    dtype = "bfloat16" if kernel.dtype == jnp.bfloat16 else "float32"
    logits = matmul(hidden, kernel, dtype)
    # Without this, the compiler may gather a small kernel at every step rather than the logits.
    return meshes.over_rows(logits, logits.ndim - 1) if logits.ndim > 1 else logits


class Output(nn.Module):
    """The projection to the vocabulary, ``[..., D]`` to float32 logits ``[..., features]``."""

    features: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, hidden: Array) -> Array:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        kernel = self.param("kernel", init, (hidden.shape[-1], self.features), jnp.float32)
        logits = vocabulary_logits(hidden, kernel)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
            logits += bias.astype(jnp.float32).reshape((1,) * (logits.ndim - 1) + (-1,))
        return logits


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang & Sennrich 2019), computed in float32.

    Attributes:
      epsilon: the number that is added to the mean square.
      dtype: the dtype of the result.
      offset: the number that is added to the parameter ``scale``; 1 where ``scale`` minus 1 is
        stored.
    """

    epsilon: float = 1e-6
    dtype: str = "float32"
    offset: float = 0.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.constant(1.0 - self.offset)
        scale = self.param("scale", init, (x.shape[-1],), jnp.float32).astype(jnp.float32)
        scale = scale + self.offset if self.offset else scale
        x = rms_normed(x, self.epsilon)
        return (x * scale.reshape((1,) * (x.ndim - 1) + (-1,))).astype(self.dtype)


def rms_normed(x: Array, epsilon: float) -> Array:
    """``x [..., D]`` divided by the root of its mean square, in float32; see ``RMSNorm``."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)


class LayerNorm(nn.Module):
    """Layer normalisation (Ba, Kiros & Hinton 2016), computed in float32 from any dtype.

    Attributes:
      epsilon: the number that is added to the variance.
      dtype: the dtype of the result.
      offset: as for ``RMSNorm``.
      use_scale: whether it has a parameter ``scale``.
      use_bias: whether it has a parameter ``bias``.
    """

    epsilon: float = 1e-6
    dtype: str = "float32"
    offset: float = 0.0
    use_scale: bool = True
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def parameter(name: str, value: float) -> Array:
            init = nn.initializers.constant(value)
            values = self.param(name, init, (x.shape[-1],), jnp.float32).astype(jnp.float32)
            return values.reshape((1,) * (x.ndim - 1) + (-1,))

        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
        if self.use_scale:
            scale = parameter("scale", 1.0 - self.offset)
            factor = factor * (scale + self.offset if self.offset else scale)
        y = y * factor
        y = y + parameter("bias", 0.0) if self.use_bias else y
        return y.astype(self.dtype)


def split_heads(x: Array, heads: int, groups: int = 1) -> Array:
    """``[B, W, T, H * G * d] -> [B, W, H, G, T, d]``: G query heads for each key-value head."""
    b, w, t, _ = x.shape
    return x.reshape(b, w, t, heads, groups, -1).transpose(0, 1, 3, 4, 2, 5)


def merge_heads(x: Array) -> Array:
    """``[B, W, H, G, T, d] -> [B, W, T, H * G * d]``."""
    b, w, h, g, t, d = x.shape
    return x.transpose(0, 1, 4, 2, 3, 5).reshape(b, w, t, h * g * d)


def key_value(key: Array, value: Array, heads: int) -> caches.KeyValue:
    """Keys and values ``[B, W, H, T, d]`` from two projections ``[B, W, T, H * d]``.

    All returned values are finite. A value that is not finite would reach the tokens from which the
    mask hides it, because a weight of 0 times NaN is NaN. Such a value is replaced by 0, and its
    key by NaN. The tokens that see the key get NaN, as they should, and the mask drops the score
    for all other tokens.
    """
    finite = jnp.isfinite(value)
    key, value = jnp.where(finite, key, jnp.nan), jnp.where(finite, value, 0.0)
    return caches.KeyValue(
        split_heads(key, heads)[:, :, :, 0], split_heads(value, heads)[:, :, :, 0]
    )


def embedder(size: int, width: int) -> nn.Embed:
    """The module of a table of embeddings ``[size, width]``, which begins with small numbers."""
    return nn.Embed(size, width, embedding_init=nn.initializers.normal(0.02))


def embed(table: Array | QuantizedArray, tokens: Array, dtype: str) -> Array:
    """The rows of ``table [V, D]`` for ``tokens [...]``, as ``[..., D]`` in ``dtype``.

    Ids outside ``[0, V)`` are clipped, so that no row is NaN.
    """
    if isinstance(table, QuantizedArray):
        return table.rows(tokens, dtype)
    return jnp.take(table, tokens, axis=0, mode="clip").astype(dtype)


def last_real(x: Array, length: Array) -> Array:
    """The entries ``[B, 1, 1, D]`` of ``x [B, 1, P, D]`` at the last real token of each row."""
    index = jnp.clip(length - 1, 0, x.shape[2] - 1)
    return jnp.take_along_axis(x, index[:, None, None, None], axis=2)
