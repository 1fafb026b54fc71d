"""Decode functions of best-k and best-first search."""

from __future__ import annotations

from typing import Annotated, Any

from decoding_jax import registry, strategies
from decoding_jax.base import Array
from decoding_jax.loop import run
from decoding_jax.t5x.decode_fns.arguments import Decodes, SettingsOf, T5XArguments, decode_fn
from decoding_jax.t5x.decode_fns.call import open_call

_NAMES = ("score", "decay", "gamma", "branching", "frontier_size", "fallback")

SearchSettings = Annotated[dict[str, Any], SettingsOf(strategies.best_k_search, _NAMES)]
"""The settings that best-k and best-first search share; see ``strategies.best_k_search``."""


@decode_fn(num_decodes=4)
def best_k_search(
    arguments: T5XArguments,
    settings: SearchSettings,
    *,
    budget: int | None = None,
    max_decode_steps: int | Array | None = None,
    k: int | None = None,
) -> Decodes:
    """Expands the k best hypotheses of a frontier in each call; for native models only.

    See ``strategies.best_k_search`` (Xu et al. 2022). Its hypotheses form a tree and its rows are
    at different depths, which T5X's ``tokens_to_logits`` cannot serve.

    Args:
      inputs, cache, tokens_to_logits, eos_id, cache_offset, initial_index, transform: see
        ``T5XArguments``.
      num_decodes: N, the number of hypotheses that are returned.
      decode_rng: not used.
      budget: the maximum number of hypotheses that a row expands; None means N L, as many as a
        beam search of width N expands.
      score, decay, gamma, branching, frontier_size, fallback: see ``strategies.best_k_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.
      k: the number of hypotheses expanded in one call; None means N.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the best last. Completed hypotheses
      come after those that were not completed; both parts are in ascending order. Places that the
      search could not fill have length 0 and score -inf.

    Raises:
      ValueError: on T5X's own networks, and for counts below 1.
    """
    k = arguments.num_decodes if k is None else k
    return _search("best_k_search", arguments, budget, max_decode_steps, k=k, **settings)


@decode_fn()
def best_first_search(
    arguments: T5XArguments,
    settings: SearchSettings,
    *,
    budget: int | None = None,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Expands the best hypothesis of a frontier in each call; for native models only.

    This is ``best_k_search`` with k = 1.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform, budget, score, decay, gamma, branching, frontier_size, fallback,
        max_decode_steps: as for ``best_k_search``.

    Returns:
      As ``best_k_search``.

    Raises:
      ValueError: as ``best_k_search``.
    """
    return _search("best_first_search", arguments, budget, max_decode_steps, **settings)


def _search(
    name: str,
    arguments: T5XArguments,
    budget: int | None,
    max_decode_steps: int | Array | None,
    **settings: Any,
) -> Decodes:
    call, count = open_call(arguments), arguments.num_decodes
    if not (call.model.ragged and call.model.tree):
        raise ValueError(
            f"decode_fn: got {name} on a network that is fed one token per row and call; takes it"
            " on NativeEncoderDecoderModel or NativeDecoderOnlyModel of decoding_jax.t5x.models"
        )
    steps = registry.steps(
        name,
        num_return=count,
        budget=count * call.length if budget is None else budget,
        max_new_tokens=call.length,
        transform=arguments.transform,
        stop=call.stop(call.limits(max_decode_steps)),
        **settings,
    )
    return call.best_last(run(steps, call.model, call.prompt))
