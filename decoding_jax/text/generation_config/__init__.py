"""Generation as ``transformers`` describes it: its parameters, and the strategy they amount to."""

from decoding_jax.text.generation_config.choice import Choice, choose
from decoding_jax.text.generation_config.config import GenerationConfig
from decoding_jax.text.generation_config.parameters import PARAMETERS, Parameter

__all__ = ["PARAMETERS", "Choice", "GenerationConfig", "Parameter", "choose"]
