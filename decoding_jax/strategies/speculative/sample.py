"""Speculative decoding as one function."""

from __future__ import annotations

from typing import Any

from decoding_jax.base import DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop import run
from decoding_jax.strategies.speculative.algorithm import steps
from decoding_jax.strategies.speculative.draft_length import DraftLength
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser
from decoding_jax.strategies.speculative.verifiers import Verifier


def speculative_sample(
    model: LanguageModel,
    drafter: LanguageModel | Drafter | Guesser,
    prompt: Prompt,
    key: Any,
    *,
    num_samples: int = 1,
    num_draft_tokens: int | DraftLength,
    num_drafts: int = 1,
    verifier: str | Verifier = "token",
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> DecodeOutput:
    """Samples the target's law with fewer calls of it, by verifying what a drafter proposes.

    Leviathan, Kalman and Matias 2022, "Fast Inference from Transformers via Speculative Decoding";
    Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling". The
    law of every sample is the transformed target's, whatever the drafter; how many calls it takes
    depends on how often the two agree.

    Args:
      model: the target, ``ragged``.
      drafter: a language model of the same vocabulary, bound to the same rows, or a drafter:
        ``PromptLookup``, ``Bigram``, ``NextToken``, or one of your own.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      key: a typed key, folded with each row's index; or typed keys ``[B]``, one a row. The greedy
        verifier needs none.
      num_samples: N.
      num_draft_tokens: K, 1 or more; or ``Heuristic`` or ``Measured``, which choose it for each
        lane and block.
      num_drafts: how many drafts of K tokens, drawn independently, the target judges in one call
        as a tree. More than one takes the token verifier and a language model as the drafter, and
        models with ``tree`` and ``keep``.
      verifier: by name or as an object. ``token`` and ``block`` accept drafts at random, ``block``
        more of them. ``greedy`` gives what ``greedy`` gives. ``gumbel`` gives samples that do not
        depend on the drafter. ``code`` gives what ``arithmetic_sample`` gives for the same key.
        ``coded_token`` is ``token`` with drafts that are spread over the samples as on a lattice.
      max_new_tokens: L, the most new tokens.
      transform: applied to the logits of target and draft alike, each with its own path.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput`` in the order of the lanes; ``info`` is an ``Info``. ``score`` is
      ``log_prob``. A lane whose every continuation is banned ends there, not finished. A drafted
      token that is banned is never accepted.

    Raises:
      ValueError: for models whose vocabularies differ or that are not ragged, K below 1, an unknown
        verifier, a raw key, a prompt of wrong shapes, or a length that either model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = speculative_sample(
      ...     model, model, prompt, jax.random.key(1), num_draft_tokens=3, max_new_tokens=9)
      >>> output.tokens.shape, int(output.info.target_calls), float(output.info.acceptance_rate)
      ((1, 1, 9), 2, 1.0)
    """
    made = steps(
        drafter=drafter,
        num_samples=num_samples,
        num_draft_tokens=num_draft_tokens,
        num_drafts=num_drafts,
        verifier=verifier,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )
    return run(made, model, prompt, key)
