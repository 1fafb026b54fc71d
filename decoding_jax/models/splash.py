"""Softmax attention of prompts on TPUs, by the kernel that JAX has: splash attention.

``jax.experimental.pallas.ops.tpu.splash_attention`` keeps the scores of a block in the chip's own
memory, with a running softmax, and skips blocks of keys that a causal or a windowed prompt does not
see. ``attention.attend_in_blocks`` is its definition, and ``attention_choice.attend`` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention

from decoding_jax.base import Array
from decoding_jax.models import attention, attention_kernel
from decoding_jax.models.attention import Part, Scale

BLOCKS = (512, 256, 128)
"""The numbers of queries and of keys of a block. The first that divides the prompt is taken."""


def serves(query: Array, parts: Sequence[Part]) -> bool:
    """Whether the queries are those of a whole prompt, in bfloat16, with a rule that is static."""
    if len(parts) > 1 or query.dtype != jnp.bfloat16 or query.shape[-2] % BLOCKS[-1] != 0:
        return False
    part, size = parts[0], query.shape[-2]
    whole = part.key.ndim == 4 and part.num_keys == part.key.shape[-2] == size
    rules = (part.least_distance, part.window)
    if not whole or query.shape[1] != 1 or part.mask.shape[1:3] != (1, 1):
        return False
    if part.bias is not None or part.used is not None or part.layer is not None:
        return False
    if rules == (None, None):
        return True
    # Positions that are not traced are those of the tokens of a prompt, from 0.
    if not isinstance(part.position, np.ndarray) or part.position.shape != (1, 1, size):
        return False
    return all(isinstance(x, int | None) for x in rules) and (part.least_distance or 0) <= 0


def _mask(size: int, part: Part) -> Any:
    """The keys that each query of a prompt sees by the rule of its part."""
    if part.least_distance is None and part.window is None:
        return splash_attention.FullMask((size, size))
    before = None if part.window is None else part.window - 1
    after = None if part.least_distance is None else -part.least_distance
    return splash_attention.LocalMask((size, size), (before, after), 0)  # type: ignore[arg-type]


def attend(query: Array, parts: Sequence[Part], scale: Scale, *, interpret: bool = False) -> Array:
    """``attention_choice.attend`` by splash attention, for queries and parts that it ``serves``.

    The factor is multiplied with the queries, which rounds them to bfloat16 once more if it is no
    power of two. A query that sees no key, as one in the padding of a prompt with a window may,
    gets a mean of values. Gradients are those of the definition. On a mesh, each device runs the
    kernel for its own rows and heads.

    Args:
      query: bfloat16 ``[B, 1, H, G, P, d]``.
      parts: the keys and values of the same prompts.
      scale: the scaling of the scores.
      interpret: whether the kernel is interpreted, for tests on devices that cannot run it.

    Returns:
      ``[B, 1, H, G, P, d]``, in the dtype of the query.
    """
    (rule,) = parts
    groups, size = query.shape[3:5]
    block = next(block for block in BLOCKS if size % block == 0)

    def definition(query: Array, parts: Sequence[Part]) -> Array:
        (part,) = parts
        whole = rule._replace(key=part.key, value=part.value, mask=part.mask)
        return attention.attend_in_blocks(query, [whole], scale)

    @jax.custom_vjp
    def run(query: Array, parts: Sequence[Part]) -> Array:
        kernel = splash_attention.make_splash_mqa_single_device(
            splash_attention.MultiHeadMask([_mask(size, rule)] * groups),
            block_sizes=splash_attention.BlockSizes(block_q=block, block_kv=block),
            attn_logits_soft_cap=scale.soft_cap,
            interpret=interpret,
        )

        def of_row(query: Array, part: Part) -> Array:
            # No query sees a key that is not real; a query in the padding is like any other.
            real = part.mask[0, 0].astype(jnp.int32)
            segments = splash_attention.SegmentIds(jnp.ones(size, jnp.int32), real)
            return jax.vmap(kernel, (0, 0, 0, None))(query, part.key, part.value, segments)

        (part,) = parts
        mask = jnp.broadcast_to(part.mask, (query.shape[0], 1, 1, size))
        scaled = query[:, 0] * jnp.asarray(scale.factor, query.dtype)
        return jax.vmap(of_row)(scaled, part._replace(mask=mask))[:, None]

    run.defvjp(
        lambda *given: (run(*given), given),
        lambda given, grad: jax.vjp(definition, *given)[1](grad),
    )
    return attention_kernel.on_mesh(run, query, (Part(rule.key, rule.value, rule.mask),))
