"""What the heads have in common that draft from the hidden states of a target."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, ClassVar, Self

from flax import linen as nn

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models.llama import LlamaConfig, refuse_switches, repeated_heads
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class FeatureHeadConfig(LlamaConfig):
    """The shape of a head, whose layers are those of a ``LlamaConfig``.

    Attributes:
      feature_layers: the layers of the target, as for ``SupportsFeatures.with_features``.
      feature_dim: D, the width of the target's hidden states.
    """

    feature_layers: tuple[int, ...] = dataclasses.field(kw_only=True)
    feature_dim: int = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_switches(self)


@pytree
@dataclasses.dataclass(frozen=True)
class FeatureHead:
    """A head with its parameters. A subclass names the ``network``, which has a method ``fuse``."""

    params: Any
    config: Any = fields.field(static=True)
    embedding: Any = None

    network: ClassVar[type[nn.Module]]
    widens: ClassVar[bool] = True

    vocab_size = property(operator.attrgetter("config.vocab_size"))
    feature_layers = property(operator.attrgetter("config.feature_layers"))
    sharded_sizes = property(operator.attrgetter("config.sharded_sizes"))

    def for_model_axis(self, size: int) -> Self:
        """See ``Llama.for_model_axis``."""
        params, config = repeated_heads(self.params, self.config, size)
        return dataclasses.replace(self, params=params, config=config)

    def apply(self, method: Any, *args: Any) -> Any:
        """Calls a method of the network."""
        network: Any = self.network(self.config)
        return network.apply({"params": self.params}, *args, method=method)

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """Makes states ``[B, W, T, D']`` of the target's hidden states, ``[B, W, T, D]`` each."""
        return self.apply("fuse", features)
