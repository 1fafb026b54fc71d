"""Gemma 1, 2 and 3: networks of the Llama family with scaled embeddings and norms of their own.

Gemma 2 and 3 have norms around each part, local and global layers, and soft caps. Gemma Team 2024,
"Gemma: Open Models Based on Gemini Research and Technology"; Gemma Team 2024, "Gemma 2: Improving
Open Language Models at a Practical Size"; Gemma Team 2025, "Gemma 3 Technical Report".
"""

from __future__ import annotations

import dataclasses
import math

from decoding_jax.models import llama
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class GemmaConfig(llama.LlamaConfig):
    """The shape of a Gemma network: that of a Llama network, with other defaults.

    ``embedding_scale`` is the root of the width unless it is given. With ``norm_place="before"``,
    it is a Gemma 1.

    Raises:
      ValueError: as ``LlamaConfig``.
    """

    activation: str = "gelu"
    logits_via_embedding: bool = True
    norm: str = "rms_offset"
    norm_place: str = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_scale is None:
            object.__setattr__(self, "embedding_scale", math.sqrt(self.emb_dim))


@pytree
@dataclasses.dataclass(frozen=True)
class Gemma(llama.Llama):
    """A Gemma 1, 2 or 3 network with its parameters, a ``LanguageModel``.

    Attributes:
      params: the parameters of ``LlamaNetwork``, of any float dtype. A ``scale`` is its distance
        from 1.
      config: a ``GemmaConfig``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = GemmaConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=2, max_positions=32, window=16, window_pattern=(True, False),
      ...     qk_norm=True, local_rope_theta=10_000.0, rope_theta=1_000_000.0)
      >>> def logits(key):
      ...     model = Gemma.init(config, key)
      ...     output, cache = model.prefill(jnp.array([[1, 2]]), jnp.array([2]), lanes=3, slots=5)
      ...     return model.extend(cache, jnp.ones((1, 3, 2), jnp.int32), 0)[0].logits
      >>> jax.eval_shape(logits, jax.random.key(0)).shape
      (1, 3, 2, 9)
    """
