"""The decode function for speculative decoding, on a native model class with a drafter."""

from __future__ import annotations

import dataclasses
from typing import Any

from decoding_jax import registry, transforms
from decoding_jax.loop import run
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import DraftLength, GreedyVerifier, ModelDrafter, Verifier
from decoding_jax.strategies.speculative.drafters import as_drafter
from decoding_jax.t5x.decode_fns.arguments import (
    SAMPLING_ORDER,
    Decodes,
    SamplingArguments,
    T5XArguments,
    decode_fn,
)
from decoding_jax.t5x.decode_fns.call import NativeDecoder, open_call
from decoding_jax.t5x.decode_fns.sampling import certain_score
from decoding_jax.t5x.decode_fns.temperature import is_greedy, keep_forced, sampling_transform
from decoding_jax.t5x.network.rescaled import Rescaled


@pytree
@dataclasses.dataclass(frozen=True)
class SpeculativeDecoder(NativeDecoder):
    """A language model, its prompts and its drafter, given instead of ``tokens_to_logits``.

    Attributes:
      drafter: as for ``strategies.speculative_sample``, bound to the same rows.
    """

    drafter: Any


@decode_fn(SAMPLING_ORDER)
def speculative_sample(
    arguments: T5XArguments,
    sampling: SamplingArguments,
    *,
    num_draft_tokens: int | DraftLength = 4,
    num_drafts: int = 1,
    verifier: str | Verifier = "token",
) -> Decodes:
    """Draws samples in fewer calls of the network: a draft proposes tokens, one call verifies them.

    See ``strategies.speculative_sample``. The drafter is that of the model, a
    ``SpeculativeEncoderDecoderModel`` or ``SpeculativeDecoderOnlyModel`` of ``t5x.models``. The
    samples have the distribution of those of ``temperature_sample``. At temperature 0, with
    ``topk=1``, or with the greedy verifier, the texts are equal.

    Args:
      num_draft_tokens: K, 1 or more; or ``Heuristic`` or ``Measured``, which choose K for each
        lane and draft.
      num_drafts: the number of drafts of K tokens that are verified in one call, as a tree.
      verifier: ``token``, ``block``, ``greedy``, ``gumbel``, ``code`` (what ``arithmetic_sample``
        returns for the same key), ``coded_token``, or an object.
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, temperature, topk, topp,
        cache_offset, initial_index, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, transform: as for ``temperature_sample``, but ``topk`` is 0 by default.
        The draft's distribution is transformed like the model's, except for your own ``Drafter``
        with ``rescale_log_probs``.

    Returns:
      As ``temperature_sample``.

    Raises:
      ValueError: without a drafter, for ``max_decode_steps`` above L, or as
        ``strategies.speculative_sample``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax.base import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> inputs = jnp.array([[0, 2, 0, 0, 0]])
      >>> prompt = Prompt(inputs[:, :2], jnp.array([2]))
      >>> decoder = SpeculativeDecoder(model, prompt, model)
      >>> speculative_sample(inputs, {}, decoder, eos_id=1, temperature=0.0)[0].shape
      (1, 1, 5)
    """
    if not isinstance(arguments.tokens_to_logits, SpeculativeDecoder):
        raise ValueError(
            "drafter: got none; takes that of SpeculativeEncoderDecoderModel or"
            " SpeculativeDecoderOnlyModel of decoding_jax.t5x.models"
        )
    call = open_call(arguments)
    limit = sampling.step_limit(call.length)
    temperature, topk, topp = sampling.temperature, sampling.topk, sampling.topp
    model, drafter = call.model, as_drafter(arguments.tokens_to_logits.drafter)
    # A tree is verified token by token, at temperature 0 too.
    if num_drafts == 1 and is_greedy(temperature, topk):
        verifier = "greedy"
    certain = verifier == "greedy" or isinstance(verifier, GreedyVerifier)
    if certain:
        first = keep_forced(arguments.transform)
        transform = transforms.chain(*([] if first is None else [first]))
    else:
        transform = sampling_transform(arguments.transform, temperature, topk, topp)
        if sampling.rescale_log_probs and transform.transforms:
            model = Rescaled(model, transform)
            if isinstance(drafter, ModelDrafter):
                drafter = ModelDrafter(Rescaled(drafter.model, transform))
            transform = transforms.chain()
    steps = registry.steps(
        "speculative_sample",
        drafter=drafter,
        num_samples=arguments.num_decodes,
        num_draft_tokens=num_draft_tokens,
        num_drafts=num_drafts,
        verifier=verifier,
        max_new_tokens=call.length,
        transform=transform if transform.transforms else None,
        stop=call.stop(call.limits(limit)),
    )
    output = run(steps, model, call.prompt, call.key)
    rescaled = certain and sampling.rescale_log_probs
    return call.rising(output, certain_score(output) if rescaled else output.log_prob)
