"""Text decoding in JAX, as pure functions that run inside one ``lax.while_loop``.

A strategy is a compiled function whose first argument is the model::

    output = decoding_jax.arithmetic_sample(model, prompt, key, num_samples=8, max_new_tokens=64)

A model is any object with the two methods of ``LanguageModel``, ``prefill`` and ``extend``.
"""

from decoding_jax import adapters, codes, constraints, estimators, registry, strategies, transforms
from decoding_jax.base import (
    DecodeOutput,
    LanguageModel,
    ModelOutput,
    Prefix,
    Prompt,
    Stop,
    Transform,
)
from decoding_jax.models import load_drafter
from decoding_jax.pytrees import pytree
from decoding_jax.strategies import (
    ArithmeticSample,
    BeamSample,
    BeamSearch,
    BestFirstSearch,
    BestKSearch,
    ConditionalSample,
    ConstrainedBeamSearch,
    ContrastiveSearch,
    DiverseBeamSearch,
    Greedy,
    MetropolisSample,
    PowerSample,
    Sample,
    SMCSample,
    SpeculativeSample,
    StochasticBeamSearch,
)
from decoding_jax.strategies.beam import Constraints, GNMTPenalty, PowerPenalty
from decoding_jax.strategies.best_first import Decay, MeanLogProb, best_k_last, best_k_mean
from decoding_jax.text import (
    CutTextWarning,
    GenerationConfig,
    NanLogitsWarning,
    RunningBatch,
    TextStreamer,
    generate,
    load,
    score,
    share_prefix,
    show,
    stream,
    stream_text,
)

arithmetic_sample = registry.STRATEGIES["arithmetic_sample"].function
beam_sample = registry.STRATEGIES["beam_sample"].function
beam_search = registry.STRATEGIES["beam_search"].function
best_first_search = registry.STRATEGIES["best_first_search"].function
best_k_search = registry.STRATEGIES["best_k_search"].function
conditional_sample = registry.STRATEGIES["conditional_sample"].function
constrained_beam_search = registry.STRATEGIES["constrained_beam_search"].function
contrastive_search = registry.STRATEGIES["contrastive_search"].function
diverse_beam_search = registry.STRATEGIES["diverse_beam_search"].function
greedy = registry.STRATEGIES["greedy"].function
metropolis_sample = registry.STRATEGIES["metropolis_sample"].function
power_sample = registry.STRATEGIES["power_sample"].function
sample = registry.STRATEGIES["sample"].function
smc_sample = registry.STRATEGIES["smc_sample"].function
speculative_sample = registry.STRATEGIES["speculative_sample"].function
stochastic_beam_search = registry.STRATEGIES["stochastic_beam_search"].function

__version__ = "0.3.0"

__all__ = [
    "ArithmeticSample",
    "BeamSample",
    "BeamSearch",
    "BestFirstSearch",
    "BestKSearch",
    "ConditionalSample",
    "ConstrainedBeamSearch",
    "Constraints",
    "ContrastiveSearch",
    "CutTextWarning",
    "Decay",
    "DecodeOutput",
    "DiverseBeamSearch",
    "GNMTPenalty",
    "GenerationConfig",
    "Greedy",
    "LanguageModel",
    "MeanLogProb",
    "MetropolisSample",
    "ModelOutput",
    "NanLogitsWarning",
    "PowerPenalty",
    "PowerSample",
    "Prefix",
    "Prompt",
    "RunningBatch",
    "SMCSample",
    "Sample",
    "SpeculativeSample",
    "StochasticBeamSearch",
    "Stop",
    "TextStreamer",
    "Transform",
    "adapters",
    "arithmetic_sample",
    "beam_sample",
    "beam_search",
    "best_first_search",
    "best_k_last",
    "best_k_mean",
    "best_k_search",
    "codes",
    "conditional_sample",
    "constrained_beam_search",
    "constraints",
    "contrastive_search",
    "diverse_beam_search",
    "estimators",
    "generate",
    "greedy",
    "load",
    "load_drafter",
    "metropolis_sample",
    "power_sample",
    "pytree",
    "sample",
    "score",
    "share_prefix",
    "show",
    "smc_sample",
    "speculative_sample",
    "stochastic_beam_search",
    "strategies",
    "stream",
    "stream_text",
    "transforms",
]
