"""Generation by the parameters of ``transformers``, and the strategy that they choose."""

from decoding_jax.text.generation_config.choice import (
    Chooser,
    Parameters,
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
    "PARAMETERS",
    "Chooser",
    "DirectoryConfig",
    "GenerationConfig",
    "Parameter",
    "Parameters",
    "choose",
    "chooser_of",
]
