"""Matrix products with narrow operands and float32 accumulation, forwards and backwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array


def matmul(x: Array, kernel: Array, dtype: str) -> Array:
    """The product ``x @ kernel`` of operands in ``dtype``, accumulated and returned in float32.

    Args:
      x: ``[..., D]``.
      kernel: ``[D, F]``, or with more axes ``[D, ..., F]``.
      dtype: ``float32`` or ``bfloat16``.

    Returns:
      float32 ``[..., F]``, with all axes of the kernel but the first.
    """
    return _product(x.astype(dtype), kernel.astype(dtype))


@jax.custom_vjp
def _product(x: Array, kernel: Array) -> Array:
    return jnp.tensordot(x, kernel, 1, preferred_element_type=jnp.float32)


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    # The cotangent is rounded to the dtype of the operands, so that the operands of these products
    # are narrow too, as matrix units require.
    x, kernel = saved
    grad = grad.astype(x.dtype)
    flat_kernel = kernel.reshape(kernel.shape[0], -1)
    flat_x, flat_grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, flat_kernel.shape[-1])
    dx = jnp.matmul(flat_grad, _transposed(flat_kernel), preferred_element_type=jnp.float32)
    dkernel = jnp.matmul(_transposed(flat_x), flat_grad, preferred_element_type=jnp.float32)
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
