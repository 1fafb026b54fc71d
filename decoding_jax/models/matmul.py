"""Matrix products with narrow operands and float32 accumulation, forwards and backwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array


def matmul(x: Array, kernel: Array, dtype: str) -> Array:
    """``x @ kernel`` with operands in ``dtype``; accumulated and returned in float32.

    Args:
      x: ``[..., D]``.
      kernel: ``[D, F]``.
      dtype: ``float32`` or ``bfloat16``.
    """
    return _product(x.astype(dtype), kernel.astype(dtype))


@jax.custom_vjp
def _product(x: Array, kernel: Array) -> Array:
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    # The cotangent is rounded to the operands' dtype, so that these products too are of two
    # narrow operands: what matrix units are made for.
    x, kernel = saved
    grad = grad.astype(x.dtype)
    flat_x, flat_grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    dx = jnp.matmul(flat_grad, _transposed(kernel), preferred_element_type=jnp.float32)
    dkernel = jnp.matmul(_transposed(flat_x), flat_grad, preferred_element_type=jnp.float32)
    return dx.reshape(x.shape).astype(x.dtype), dkernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)


def _transposed(x: Array) -> Array:
    """``x.T`` laid out anew.

    XLA folds a transposition into the product that reads it, and its CPU backend then leaves the
    bfloat16 matrix unit unused (measured: five times slower). It folds nothing across a loop.
    """
    if x.dtype != jnp.bfloat16:
        return x.T
    # One pass, but the compiler cannot know.
    passes = jnp.where(jnp.isinf(x[0, 0]), 1, 1 + (x[0, 0] > jnp.finfo(x.dtype).max))
    start = (jnp.int32(0), jnp.zeros(x.shape[::-1], x.dtype))
    return lax.while_loop(lambda c: c[0] < passes, lambda c: (c[0] + 1, x.T), start)[1]
