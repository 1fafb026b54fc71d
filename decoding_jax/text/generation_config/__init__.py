"""Generation by the parameters of ``transformers``, and the strategy that they choose."""

from decoding_jax.text.generation_config.choice import (
    LENGTHS,
    Choice,
    Chooser,
    choose,
    chooser_of,
)
from decoding_jax.text.generation_config.config import (
    PARAMETERS,
    DirectoryConfig,
    GenerationConfig,
    Parameter,
)

__all__ = [
    "LENGTHS",
    "PARAMETERS",
    "Choice",
    "Chooser",
    "DirectoryConfig",
    "GenerationConfig",
    "Parameter",
    "choose",
    "chooser_of",
]
