"""Decode functions for T5X: each replaces one of T5X's functions or adds a strategy.

In gin, after the gin file of a T5X model::

    from decoding_jax.t5x import decode_fns
    models.EncoderDecoderModel.decode_fn = @decode_fns.arithmetic_sample

T5X calls them with ``inputs, cache, tokens_to_logits, eos_id, num_decodes, decode_rng`` and
``cache_offset``, and with ``initial_index`` after a prefill. All other arguments are set in gin.
Every function returns ``(decodes int32 [B, num_decodes, L], scores float32 [B, num_decodes])``, the
best last. ``decodes`` hold the prompt and the generated text, followed by zeros.
"""

from decoding_jax.t5x.decode_fns.beams import beam_search
from decoding_jax.t5x.decode_fns.forms import (
    beam_sample,
    best_first_search,
    best_k_search,
    conditional_sample,
    constrained_beam_search,
    contrastive_search,
    diverse_beam_search,
    smc_sample,
    stochastic_beam_search,
)
from decoding_jax.t5x.decode_fns.sampling import arithmetic_sample, temperature_sample
from decoding_jax.t5x.decode_fns.speculative import speculative_sample

__all__ = [
    "arithmetic_sample",
    "beam_sample",
    "beam_search",
    "best_first_search",
    "best_k_search",
    "conditional_sample",
    "constrained_beam_search",
    "contrastive_search",
    "diverse_beam_search",
    "smc_sample",
    "speculative_sample",
    "stochastic_beam_search",
    "temperature_sample",
]
