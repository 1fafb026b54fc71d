"""The decode function of contrastive search."""

from __future__ import annotations

from decoding_jax import registry
from decoding_jax.base import Array
from decoding_jax.loop import run
from decoding_jax.t5x.decode_fns.arguments import Decodes, T5XArguments, decode_fn
from decoding_jax.t5x.decode_fns.call import open_call


@decode_fn()
def contrastive_search(
    arguments: T5XArguments,
    *,
    penalty_alpha: float | Array = 0.6,
    top_k: int = 4,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Appends one of the k most probable tokens, preferring those unlike the tokens before.

    For native models only.

    See ``strategies.contrastive_search`` (Su et al. 2022). It reads hidden states, which T5X's
    ``tokens_to_logits`` does not return, and its candidates are siblings of one call.

    Args:
      inputs, cache, tokens_to_logits, eos_id, cache_offset, initial_index, transform: see
        ``T5XArguments``.
      num_decodes: 1, since the strategy draws nothing and finds one text.
      decode_rng: not used.
      penalty_alpha: alpha, a number or ``[B]``; 0 decodes greedily.
      top_k: k, the number of candidates.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, 1, L]`` and scores float32 ``[B, 1]``, the log-probabilities under the
      model.

    Raises:
      ValueError: on T5X's own networks, and for more than one decode.
    """
    call = open_call(arguments)
    if not call.model.tree:
        raise ValueError(
            "decode_fn: got contrastive_search on a network that returns no hidden states and is "
            "fed one token per row and call; takes it on NativeEncoderDecoderModel or "
            "NativeDecoderOnlyModel of decoding_jax.t5x.models"
        )
    if arguments.num_decodes != 1:
        raise ValueError(
            f"num_decodes: got {arguments.num_decodes}; takes 1, since contrastive_search finds "
            "one text for a row"
        )
    steps = registry.steps(
        "contrastive_search",
        penalty_alpha=penalty_alpha,
        top_k=top_k,
        max_new_tokens=call.length,
        transform=arguments.transform,
        stop=call.stop(call.limits(max_decode_steps)),
    )
    return call.best_last(run(steps, call.model, call.prompt))
