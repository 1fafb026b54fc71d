"""Networks in Flax, and their checkpoints in the layouts of Hugging Face and T5X."""

from decoding_jax.models.bart import Bart, BartConfig, BoundBart
from decoding_jax.models.checkpoint import (
    CheckpointError,
    from_t5x,
    load_drafter,
    load_model,
    load_t5x,
    save_model,
    save_t5x,
    to_t5x,
)
from decoding_jax.models.combined import (
    Contrasted,
    Guided,
    LayersContrasted,
    Mixture,
    Product,
    contrasted,
    guided,
    layers_contrasted,
    mixture,
    product,
)
from decoding_jax.models.confident import Confident, confident
from decoding_jax.models.dflash import DFlashConfig, DFlashHead
from decoding_jax.models.eagle import EagleConfig, EagleHead
from decoding_jax.models.fixed_shapes import reproducible
from decoding_jax.models.gemma import Gemma, GemmaConfig
from decoding_jax.models.gemma4 import Gemma4, Gemma4Config
from decoding_jax.models.gemma4_assistant import Gemma4Assistant, Gemma4AssistantConfig
from decoding_jax.models.gpt2 import GPT2, GPT2Config
from decoding_jax.models.llama import Llama, LlamaConfig, for_long_texts
from decoding_jax.models.multi_token import MultiTokenBlock, MultiTokenConfig
from decoding_jax.models.positions import RopeScaling
from decoding_jax.models.quantized import QuantizedArray, quantize
from decoding_jax.models.shared_prefix import SharedPrefixModel, with_shared_prefix
from decoding_jax.models.t5 import T5, BoundT5, T5Config, T5Decoder, T5DecoderConfig
from decoding_jax.models.t5gemma import BoundT5Gemma, T5Gemma, T5GemmaConfig

__all__ = [
    "GPT2",
    "T5",
    "Bart",
    "BartConfig",
    "BoundBart",
    "BoundT5",
    "BoundT5Gemma",
    "CheckpointError",
    "Confident",
    "Contrasted",
    "DFlashConfig",
    "DFlashHead",
    "EagleConfig",
    "EagleHead",
    "GPT2Config",
    "Gemma",
    "Gemma4",
    "Gemma4Assistant",
    "Gemma4AssistantConfig",
    "Gemma4Config",
    "GemmaConfig",
    "Guided",
    "LayersContrasted",
    "Llama",
    "LlamaConfig",
    "Mixture",
    "MultiTokenBlock",
    "MultiTokenConfig",
    "Product",
    "QuantizedArray",
    "RopeScaling",
    "SharedPrefixModel",
    "T5Config",
    "T5Decoder",
    "T5DecoderConfig",
    "T5Gemma",
    "T5GemmaConfig",
    "confident",
    "contrasted",
    "for_long_texts",
    "from_t5x",
    "guided",
    "layers_contrasted",
    "load_drafter",
    "load_model",
    "load_t5x",
    "mixture",
    "product",
    "quantize",
    "reproducible",
    "save_model",
    "save_t5x",
    "to_t5x",
    "with_shared_prefix",
]
