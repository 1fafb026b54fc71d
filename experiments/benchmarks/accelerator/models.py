"""Random networks of published shapes, made on the device, and the bytes that a step reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.models import Llama, quantize
from decoding_jax.models.llama import LlamaConfig
from experiments.tpu_ledger.cases import abstract
from experiments.tpu_ledger.models import is_read_at_a_step

CONFIGS: Mapping[str, LlamaConfig] = {
    # Llama 3.2 1B
    "1B": LlamaConfig(
        vocab_size=128_256, emb_dim=2048, num_heads=32, num_kv_heads=8, head_dim=64, mlp_dim=8192,
        num_layers=16, max_positions=131_072, rope_theta=500_000.0, norm_epsilon=1e-5,
        logits_via_embedding=True, dtype="bfloat16",
    ),
    # Llama 3.1 8B
    "8B": LlamaConfig(
        vocab_size=128_256, emb_dim=4096, num_heads=32, num_kv_heads=8, head_dim=128,
        mlp_dim=14_336, num_layers=32, max_positions=131_072, rope_theta=500_000.0,
        norm_epsilon=1e-5, dtype="bfloat16",
    ),
    "tiny": LlamaConfig(
        vocab_size=64, emb_dim=16, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32,
        num_layers=1, max_positions=64, dtype="bfloat16",
    ),
}  # fmt: skip
"""Shapes by name."""


@functools.lru_cache(maxsize=1)
def random_model(name: str, weights: str) -> Llama:
    """A network of random weights, which is kept until the next one is made.

    Args:
      name: a name of ``CONFIGS``.
      weights: ``bfloat16``, or as ``quantize`` takes it.
    """
    model = _random_bfloat16(name)
    return model if weights == "bfloat16" else quantize(model, weights)


def _random_bfloat16(name: str) -> Llama:
    """The network, of which one array after another is made, so that nothing is held twice."""
    config = CONFIGS[name]
    leaves, structure = jax.tree.flatten_with_path(
        abstract(lambda: Llama.init(config, jax.random.key(0)))
    )
    arrays = []
    for i, (path, leaf) in enumerate(leaves):
        if "scale" in jax.tree_util.keystr(path):
            arrays.append(jnp.ones(leaf.shape, leaf.dtype))
        else:
            arrays.append(_normal(jax.random.key(i), leaf.shape))
    return jax.tree.unflatten(structure, arrays)


@functools.partial(jax.jit, static_argnums=1)
def _normal(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.normal(key, shape, jnp.bfloat16) * jnp.bfloat16(0.02)


def weight_bytes(model: Llama) -> int:
    """The bytes of the parameters that a step has to read, each once."""
    tied = model.config.logits_via_embedding
    return sum(
        math.prod(x.shape) * _bits(x.dtype) // 8
        for path, x in jax.tree.leaves_with_path(model)
        if is_read_at_a_step(jax.tree_util.keystr(path, simple=True, separator="/"), tied=tied)
    )


def _bits(dtype: Any) -> int:
    return (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).bits


def token_bytes(config: LlamaConfig) -> int:
    """The bytes of the keys and values of one token in all layers."""
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return numbers * jnp.dtype(config.dtype).itemsize


def prefill_operations(config: LlamaConfig, rows: int, length: int) -> int:
    """The multiplications and additions of a prefill: products with weights, causal attention, and
    the logits after the last token of each row."""
    width = config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads) + 3 * config.mlp_dim
    attention = 2 * config.num_heads * config.head_dim * length
    layer = 2 * config.emb_dim * width + attention
    logits = 2 * config.emb_dim * config.vocab_size
    return rows * (length * config.num_layers * layer + logits)
