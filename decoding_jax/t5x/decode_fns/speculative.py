"""The decode function that speculates, on a native model class that brings a draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from decoding_jax import registry, transforms
from decoding_jax.base import Array, Transform
from decoding_jax.loop import run
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import DraftLength, Greedy, ModelDrafter, Verifier
from decoding_jax.strategies.speculative.drafters import as_drafter
from decoding_jax.t5x.decode_fns import call as requests
from decoding_jax.t5x.decode_fns.call import NativeDecoder
from decoding_jax.t5x.decode_fns.sampling import decode_steps
from decoding_jax.t5x.decode_fns.sampling_settings import KeepForced, is_greedy, sampling_rule
from decoding_jax.t5x.network.rescaled import Rescaled


@pytree
@dataclasses.dataclass(frozen=True)
class SpeculativeDecoder(NativeDecoder):
    """In the place of ``tokens_to_logits``: a language model, its prompts, and what drafts for it.

    Attributes:
      drafter: as ``strategies.speculative_sample`` takes it, of the same rows.
    """

    drafter: Any


def speculative_sample(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    decode_rng: Array | None = None,
    num_decodes: int = 1,
    temperature: float | Array = 1.0,
    topk: int | Array = 0,
    topp: float | Array = 0.0,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    max_decode_steps_hard_limit: int | None = None,
    rescale_log_probs: bool = True,
    transform: Transform | None = None,
    num_draft_tokens: int | DraftLength = 4,
    num_drafts: int = 1,
    verifier: str | Verifier = "token",
) -> tuple[Array, Array]:
    """Draws samples in fewer calls of the network: a draft proposes, one call judges its tokens.

    ``strategies.speculative_sample`` on SpeculativeEncoderDecoderModel and
    SpeculativeDecoderOnlyModel of ``t5x.speculative_models``, which know the draft. The law of what
    is returned is that of ``temperature_sample``; at temperature 0, where ``topk`` is 1, or with
    the greedy verifier it is the same text.

    Args:
      num_draft_tokens: K, 1 or more; or ``Heuristic`` or ``Measured``, which choose it for each
        lane and block.
      num_drafts: how many drafts of K tokens are judged in one call as a tree.
      verifier: ``token``, ``block``, ``greedy``, ``gumbel``, ``code`` (what ``arithmetic_sample``
        returns for the same key), ``coded_token``, or an object.
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, temperature, topk, topp,
        cache_offset, initial_index, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, transform: as in ``temperature_sample``, but that ``topk`` is 0. The
        draft's law is changed as the model's is, but for the law of a ``Drafter`` of one's own
        where scores are rescaled.

    Returns:
      As ``temperature_sample``.

    Raises:
      ValueError: without a draft, for more ``max_decode_steps`` than L, or as
        ``strategies.speculative_sample``.

    Example:
      >>> import jax
      >>> from decoding_jax.base import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> inputs = jnp.array([[0, 2, 0, 0, 0]])
      >>> prompt = Prompt(inputs[:, :2], jnp.array([2]))
      >>> decoder = SpeculativeDecoder(model, prompt, model)
      >>> speculative_sample(inputs, {}, decoder, eos_id=1, temperature=0.0)[0].shape
      (1, 1, 5)
    """
    if not isinstance(tokens_to_logits, SpeculativeDecoder):
        raise ValueError(
            "drafter: got none; takes that of SpeculativeEncoderDecoderModel or"
            " SpeculativeDecoderOnlyModel of decoding_jax.t5x.models"
        )
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index,
    )  # fmt: skip
    steps = decode_steps(max_decode_steps, max_decode_steps_hard_limit, request.length)
    model, drafter = request.model, as_drafter(tokens_to_logits.drafter)
    # A tree is judged token by token, at temperature 0 too.
    if num_drafts == 1 and is_greedy(temperature, topk):
        verifier = "greedy"
    certain = verifier == "greedy" or isinstance(verifier, Greedy)
    if certain:
        rule = transforms.chain(*([] if transform is None else [KeepForced(transform)]))
    else:
        rule = sampling_rule(transform, temperature, topk, topp)
        if rescale_log_probs and rule.transforms:
            model = Rescaled(model, rule)
            if isinstance(drafter, ModelDrafter):
                drafter = ModelDrafter(Rescaled(drafter.model, rule))
            rule = transforms.chain()
    built = registry.steps(
        "speculative_sample",
        drafter=drafter,
        num_samples=num_decodes,
        num_draft_tokens=num_draft_tokens,
        num_drafts=num_drafts,
        verifier=verifier,
        max_new_tokens=request.length,
        transform=rule if rule.transforms else None,
        stop=request.stop(request.limits(steps)),
    )
    output = run(built, model, request.prompt, request.key)
    score = output.log_prob
    if certain and rescale_log_probs:
        score = jnp.zeros_like(score)
    return request.answer(output.tokens, output.length, score, jnp.argsort(score, axis=-1))
