"""The precision of products of matrices, which the dtype of their operands decides."""

from __future__ import annotations

import jax
from jax import lax

from decoding_jax.base import Array

_SETTING = "jax_default_matmul_precision"


def of(*operands: Array) -> lax.Precision | None:
    """The ``precision`` to pass to a product of these operands.

    JAX multiplies float32 matrices with fewer bits by default where the hardware does so faster:
    TensorFloat-32 (10 bits of mantissa) on NVIDIA GPUs, one pass of bfloat16 (7 bits) on TPUs. The
    logits of a float32 model would then have the rounding of those formats. Here a product of
    float32 has all 23 bits everywhere, unless ``jax_default_matmul_precision`` is set, by
    ``jax.default_matmul_precision`` or in the environment, which decides then.

    Args:
      operands: the arrays that are multiplied.

    Returns:
      ``HIGHEST`` where all operands are float32; None, JAX's default, where one is narrower, and
      wherever the user has set a default.

    Example:
      >>> import jax.numpy as jnp
      >>> of(jnp.ones(2, jnp.float32)).name, of(jnp.ones(2, jnp.bfloat16))
      ('HIGHEST', None)
      >>> with jax.default_matmul_precision("tensorfloat32"):
      ...     print(of(jnp.ones(2, jnp.float32)))
      None
    """
    chosen = getattr(jax.config, _SETTING) is not None
    wide = all(operand.dtype == "float32" for operand in operands)
    return lax.Precision.HIGHEST if wide and not chosen else None
