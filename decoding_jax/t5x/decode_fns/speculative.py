"""The decode function for speculative decoding, on a native model class with a drafter."""

from __future__ import annotations

import dataclasses
from typing import Any

from decoding_jax.pytrees import pytree
from decoding_jax.strategies import SpeculativeSample, speculative
from decoding_jax.t5x.decode_fns import calls, sampling
from decoding_jax.t5x.rescaled import Rescaled


@pytree
@dataclasses.dataclass(frozen=True)
class SpeculativeDecoder(calls.NativeDecoder):
    """A language model, its prompts and its drafter, given instead of ``tokens_to_logits``.

    Attributes:
      drafter: as for ``strategies.speculative_sample``, bound to the same rows.
    """

    drafter: Any


@calls.decode_fn(calls.SAMPLING_ORDER)
def speculative_sample(
    arguments: calls.T5XArguments,
    settings: calls.SamplingArguments,
    *,
    num_draft_tokens: int | speculative.DraftLength = 4,
    num_drafts: int = 1,
    tree: str = "independent",
    tree_size: int | None = None,
    verifier: str | speculative.Verifier = "token",
) -> calls.Decodes:
    """Draws samples in fewer calls of the network: a draft proposes tokens, one call verifies them.

    See ``strategies.speculative_sample``. The drafter is that of the model, a
    ``SpeculativeEncoderDecoderModel`` or ``SpeculativeDecoderOnlyModel`` of ``t5x.models``. The
    samples have the distribution of those of ``temperature_sample``. At temperature 0, with
    ``topk=1``, or with the greedy verifier, the texts are equal.

    Args:
      num_draft_tokens: K, 1 or more; or ``Heuristic`` or ``Measured``, which choose K for each
        lane and draft.
      num_drafts: the number of drafts of K tokens that are verified in one call, as a tree.
      tree: ``independent`` drafts, or a ``dynamic`` tree of the draft's most probable tokens.
      tree_size: the largest number of drafted tokens in a tree.
      verifier: ``token``, ``block``, ``greedy``, ``gumbel``, ``code`` (what ``arithmetic_sample``
        returns for the same key), ``coded_token``, or an object.
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, temperature, topk, topp,
        cache_offset, initial_index, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, transform: as for ``temperature_sample``, but ``topk`` is 0 by default.
        The draft's distribution is transformed like the model's, except for that of a head and of
        your own ``Drafter`` with ``rescale_log_probs``.

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
            "drafter: expected that of SpeculativeEncoderDecoderModel or"
            " SpeculativeDecoderOnlyModel of decoding_jax.t5x.models, got none"
        )
    call = calls.open_call(arguments)
    drafter = speculative.drafters.as_drafter(arguments.tokens_to_logits.drafter)
    # Several drafts are verified token by token, at temperature 0 too.
    one_draft = num_drafts == 1 or tree == "dynamic"
    if one_draft and sampling.is_greedy(settings.temperature, settings.topk):
        verifier = "greedy"
    certain = verifier == "greedy" or isinstance(verifier, speculative.GreedyVerifier)
    if certain:
        transform = call.kept_transform
    else:
        transform = sampling.sampling_transform(call.transform, settings)
        if settings.rescale_log_probs and transform is not None:
            call = dataclasses.replace(call, model=Rescaled(call.model, transform))
            if isinstance(drafter, speculative.ModelDrafter):
                drafter = speculative.ModelDrafter(Rescaled(drafter.model, transform))
            transform = None
    strategy = call.strategy(
        SpeculativeSample,
        settings.step_limit(call.length),
        drafter=drafter,
        num_samples=arguments.num_decodes,
        num_draft_tokens=num_draft_tokens,
        num_drafts=num_drafts,
        tree=tree,
        tree_size=tree_size,
        verifier=verifier,
        transform=transform,
    )
    output = call.run(strategy)
    rescaled = certain and settings.rescale_log_probs
    return call.ascending(output, sampling.certain_score(output) if rescaled else output.log_prob)
