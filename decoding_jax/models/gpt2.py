"""GPT-2: a network of the Llama family with learned positions, layer norms and biases.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

import dataclasses

from decoding_jax import fields
from decoding_jax.models import llama
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class GPT2Config(llama.LlamaConfig):
    """The shape of a GPT-2 network: that of a Llama network, with other defaults.

    Attributes:
      num_kv_heads: ``num_heads``, also where it is given as 0.
      head_dim: ``emb_dim / num_heads``, also where it is given as 0.
      max_positions: the number of rows of the position table. Larger positions are clipped.

    Raises:
      ValueError: if ``num_heads`` does not divide ``emb_dim``, for other sizes of its heads, or as
        ``LlamaConfig``.
    """

    num_kv_heads: int = dataclasses.field(default=0, kw_only=True)
    head_dim: int = dataclasses.field(default=0, kw_only=True)
    max_positions: int = 1024
    activation: str = "gelu"
    norm_epsilon: float = 1e-5
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    logits_via_embedding: bool = True
    norm: str = "layer"
    gated: bool = False
    rotary_pattern: tuple[bool, ...] = (False,)
    learned_positions: int | None = 0

    def __post_init__(self) -> None:
        if self.emb_dim % self.num_heads:
            expected = f"a divisor of emb_dim = {self.emb_dim}"
            raise fields.error("num_heads", expected, self.num_heads)
        own = {"num_kv_heads": self.num_heads, "head_dim": self.emb_dim // self.num_heads}
        for name, value in own.items():
            # ``dataclasses.replace`` passes on what followed from the former settings.
            if getattr(self, name) not in (0, value):
                expected = f"{value} with num_heads = {self.num_heads}, or 0 for it"
                raise fields.error(name, expected, getattr(self, name))
            object.__setattr__(self, name, value)
        super().__post_init__()


@pytree
@dataclasses.dataclass(frozen=True)
class GPT2(llama.Llama):
    """A GPT-2 network with its parameters, a ``LanguageModel``.

    Attributes:
      params: the parameters of ``LlamaNetwork``, of any float dtype.
      config: a ``GPT2Config``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = GPT2Config(vocab_size=9, emb_dim=4, num_heads=2, mlp_dim=8, num_layers=1)
      >>> model = GPT2.init(config, jax.random.key(0))
      >>> prompt = jnp.array([[1, 2, 3], [4, 0, 0]])
      >>> output, cache = model.prefill(prompt, jnp.array([3, 1]), lanes=2, slots=5)
      >>> output.logits.shape
      (2, 1, 1, 9)
      >>> output, cache = model.extend(cache, jnp.ones((2, 2, 1), jnp.int32), 0)
      >>> output.logits.shape
      (2, 2, 1, 9)
    """
