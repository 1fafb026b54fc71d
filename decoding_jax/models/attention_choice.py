"""Which of several programs computes the attention of a model.

``attention`` is the definition, ``attention_kernel`` and ``splash`` are kernels for the same
function, and this is the one place that knows all three.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.models import attention
from decoding_jax.models.attention import Part, Scale

KERNEL_QUERIES = 64
"""The number of new tokens up to which the kernel takes float32 queries. Its products of float32 do
not use the matrix units."""

SPLASH_QUERIES = 1024
"""The number of tokens from which ``splash`` takes a prompt on a TPU, however few its scores are.
It takes every prompt with more than ``attention.SCORE_LIMIT`` scores."""


def attend(
    query: Array,
    parts: Sequence[Part],
    factor: float,
    soft_cap: float | None = None,
    *,
    implementation: str = "auto",
) -> Array:
    """Softmax attention of every query over all parts together.

    It is computed by ``attention.attend_in_blocks``, which XLA compiles for every device, by the
    kernel for NVIDIA GPUs (``attention_kernel``), or by that for prompts on TPUs (``splash``).

    Args:
      query: ``[B, W, H, G, T, d]``: G query heads share each of the H key-value heads.
      parts: the keys and values. Every query sees at least one key of them.
      factor: the factor of the logits.
      soft_cap: None, or the bound of the scaled logits (see ``Scale``).
      implementation: ``"xla"``; ``"pallas"``, the kernels: TPUs get ``splash`` for all prompts that
        it serves, and other devices than GPUs interpret that for GPUs; or ``"auto"``, a kernel
        where it can run and is faster.

    Returns:
      ``[B, W, H, G, T, d]``, in the dtype of the query.

    Raises:
      ValueError: for ``"pallas"`` where the kernel for GPUs cannot run.
    """
    scale = Scale(factor, soft_cap)
    if implementation == "fixed":
        return attention.attend_in_fixed_blocks(query, parts, scale)
    plain = functools.partial(attention.attend_in_blocks, query, parts, scale)
    if implementation == "xla":
        return plain()
    forced = implementation == "pallas"
    ways = {} if _has_kernels() else _tpu_kernel(query, parts, scale, forced)
    if forced or _has_kernels():
        from decoding_jax.models import attention_kernel  # half a second, which CPUs need not wait

        refusal = attention_kernel.refusal(query, parts)
        if forced and refusal is not None:
            raise ValueError(f"attention: expected {refusal}")
        slow = query.dtype == jnp.float32 and query.shape[-2] > KERNEL_QUERIES
        kernel = functools.partial(attention_kernel.attend, query, parts, scale)
        if forced:
            ways = {"tpu": plain, **ways, "cuda": kernel}
            plain = functools.partial(kernel, interpret=True)
        elif refusal is None and not slow:
            ways = {**ways, "cuda": kernel}
    return lax.platform_dependent(default=plain, **ways) if ways else plain()


def _tpu_kernel(
    query: Array, parts: Sequence[Part], scale: Scale, forced: bool
) -> dict[str, Callable[[], Array]]:
    """The attention of a prompt by ``splash`` on TPUs, where it serves and the prompt is long."""
    size, rows = query.shape[-2], math.prod(query.shape[:4])
    if size < SPLASH_QUERIES and rows * size**2 <= attention.SCORE_LIMIT and not forced:
        return {}
    if query.dtype != jnp.bfloat16:
        return {}
    from decoding_jax.models import splash  # half a second, which other prompts need not wait

    if not splash.serves(query, parts):
        return {}
    return {"tpu": functools.partial(splash.attend, query, parts, scale)}


@functools.cache
def _has_kernels() -> bool:
    """Whether JAX runs on GPUs for which the kernel compiles: those of NVIDIA since Ampere.

    JAX 0.12 announces that it will drop the backend that compiles it.
    """
    if jax.default_backend() != "gpu" or find_spec("jax.experimental.pallas.triton") is None:
        return False
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return capability.replace(".", "", 1).isdigit() and float(capability) >= 8.0
