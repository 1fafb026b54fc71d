"""T5 as a language model: a T5 that is bound to encoder inputs decodes like any other model."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from decoding_jax.base import Array
from decoding_jax.models.encoder_decoder import BoundEncoderDecoder, EncoderDecoder
from decoding_jax.models.encoder_decoder_network import EncoderDecoderNetwork
from decoding_jax.models.t5_layers import PARTITION_RULES, SHARDED_NAMES, T5Config
from decoding_jax.models.t5_network import T5Network
from decoding_jax.pytrees import pytree


@pytree
@dataclasses.dataclass(frozen=True)
class BoundT5(BoundEncoderDecoder):
    """A T5 decoder that is bound to encoder inputs, a ``LanguageModel``.

    Attributes:
      params: as in ``T5``.
      source: int32 ``[B, P]``, the encoder inputs.
      source_length: int32 ``[B]``.
      config: as in ``T5``.
    """

    params: Any
    source: Array
    source_length: Array
    config: T5Config = dataclasses.field(metadata={"static": True})

    network: ClassVar[type[EncoderDecoderNetwork]] = T5Network
    partition_rules = PARTITION_RULES
    sharded_names = SHARDED_NAMES


@pytree
@dataclasses.dataclass(frozen=True)
class T5(EncoderDecoder):
    """A T5 network with its parameters. Bind it to inputs with ``bind`` to get a language model.

    Attributes:
      params: the tree under ``params`` of a T5X checkpoint with unscanned layers, of any float
        dtype.
      config: a ``T5Config``.
    """

    params: Any
    config: T5Config = dataclasses.field(metadata={"static": True})

    bound: ClassVar[type[BoundEncoderDecoder]] = BoundT5
