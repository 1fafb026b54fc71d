"""Generation by the parameters of ``transformers``, and the strategy that they choose."""

from decoding_jax.text.generation_config.choice import Choice, choose
from decoding_jax.text.generation_config.config import GenerationConfig
from decoding_jax.text.generation_config.parameters import PARAMETERS, Parameter

__all__ = ["PARAMETERS", "Choice", "GenerationConfig", "Parameter", "choose"]
