"""The shapes of published models, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from decoding_jax.models import T5, Llama
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.t5 import T5Config
from experiments.tpu_ledger.cases import abstract

CHUNK = 256
"""Prompts run this many tokens at a time, so that what a chip holds beside weights and cache does
not grow with them."""


def llama(*, scan_layers: bool = True, **sizes: Any) -> Llama:
    config = LlamaConfig(
        **sizes, max_positions=8192, dtype="bfloat16", prefill_chunk=CHUNK, scan_layers=scan_layers
    )
    return Llama.init(config, jax.random.key(0))


def t5(**sizes: Any) -> T5:
    config = T5Config(
        **sizes, vocab_size=32_128, mlp_activations=("gelu", "linear"), dtype="bfloat16",
        scan_layers=True,
    )  # fmt: skip
    return T5.init(config, jax.random.key(0))


MODELS: Mapping[str, Callable[[], Any]] = {
    # TinyLlama
    "Llama 1B": lambda: llama(
        vocab_size=32_000, emb_dim=2048, num_heads=32, num_kv_heads=4, head_dim=64, mlp_dim=5632,
        num_layers=22,
    ),
    # The same without a scan, and with few layers, because each is compiled.
    "Llama 1B, 4 separate layers": lambda: llama(
        vocab_size=32_000, emb_dim=2048, num_heads=32, num_kv_heads=4, head_dim=64, mlp_dim=5632,
        num_layers=4, scan_layers=False,
    ),
    "Llama 8B": lambda: llama(
        vocab_size=128_256, emb_dim=4096, num_heads=32, num_kv_heads=8, head_dim=128,
        mlp_dim=14_336, num_layers=32,
    ),
    "Llama 70B": lambda: llama(
        vocab_size=128_256, emb_dim=8192, num_heads=64, num_kv_heads=8, head_dim=128,
        mlp_dim=28_672, num_layers=80,
    ),
    "Qwen3 30B, 4 separate layers": lambda: llama(
        vocab_size=151_936, emb_dim=2048, num_heads=32, num_kv_heads=4, head_dim=128, mlp_dim=768,
        num_layers=4, num_experts=128, experts_per_token=8, qk_norm=True, scan_layers=False,
    ),
    "T5 1.1 base": lambda: t5(
        emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048, num_encoder_layers=12,
        num_decoder_layers=12,
    ),
    "T5 1.1 XXL": lambda: t5(
        emb_dim=4096, num_heads=64, head_dim=64, mlp_dim=10_240, num_encoder_layers=24,
        num_decoder_layers=24,
    ),
}  # fmt: skip
"""Models by name. The 1B is TinyLlama's shape, the 8B and 70B those of Llama 3, the 30B that of the
mixture of 128 experts with 3B active weights."""


def model_of(name: str) -> Any:
    """A model of abstract bfloat16 weights.

    Args:
      name: a name of ``MODELS``.
    """
    return abstract(MODELS[name])


def is_read_at_a_step(path: str, *, tied: bool) -> bool:
    """Whether a step has to read a whole parameter.

    The encoder and the projections of its output have run before, and an embedding table that is
    not the output layer too is looked up in.

    Args:
      path: such as ``params/layers/mlp/up/kernel``.
      tied: whether the output layer is the embedding table.

    Example:
      >>> is_read_at_a_step("params/token_embedder/embedding", tied=False)
      False
    """
    if "token_embedder" in path:
        return tied
    cross = "encoder_decoder_attention/key" in path or "encoder_decoder_attention/value" in path
    return not (cross or path.startswith("params/encoder/"))


def share_of_experts(config: Any, tokens: int) -> float | None:
    """The share of the experts that some of so many tokens run through, if each chooses at random.

    None for a network without experts.

    Example:
      >>> config = LlamaConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=2, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=8, num_experts=4, experts_per_token=2,
      ... )
      >>> [share_of_experts(config, tokens) for tokens in (1, 2)]
      [0.5, 0.75]
    """
    count = getattr(config, "num_experts", None)
    return None if count is None else 1 - (1 - config.experts_per_token / count) ** tokens
