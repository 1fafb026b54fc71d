"""Decode functions of best-k, best-first and contrastive search, for native models only.

Their hypotheses form a tree, their rows are at different depths, or they read hidden states, none
of which T5X's ``tokens_to_logits`` serves.
"""

from __future__ import annotations

import inspect
from typing import Any

from decoding_jax import strategies
from decoding_jax.base import Array
from decoding_jax.loop import Strategy
from decoding_jax.t5x.decode_fns.calls import Decodes, T5XArguments, decode_fn, open_native_call

_SHARED = ("score", "decay", "gamma", "branching", "frontier_size", "fallback")
_PARAMETERS = inspect.signature(strategies.best_k_search).parameters
_FURTHER = {name: _PARAMETERS[name] for name in _SHARED}


@decode_fn(further=_FURTHER, num_decodes=4)
def best_k_search(
    arguments: T5XArguments,
    *,
    budget: int | None = None,
    max_decode_steps: int | Array | None = None,
    k: int | None = None,
    **settings: Any,
) -> Decodes:
    """Expands the k best hypotheses of a frontier in each call; for native models only.

    See ``strategies.best_k_search`` (Xu et al. 2022).

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
    return _search(strategies.BestKSearch, arguments, budget, max_decode_steps, k=k, **settings)


@decode_fn(further=_FURTHER)
def best_first_search(
    arguments: T5XArguments,
    *,
    budget: int | None = None,
    max_decode_steps: int | Array | None = None,
    **settings: Any,
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
    return _search(strategies.BestFirstSearch, arguments, budget, max_decode_steps, **settings)


def _search(
    made: type[Strategy],
    arguments: T5XArguments,
    budget: int | None,
    max_decode_steps: int | Array | None,
    **settings: Any,
) -> Decodes:
    call, count = open_native_call(made, arguments), arguments.num_decodes
    strategy = call.strategy(
        made,
        max_decode_steps,
        num_return=count,
        budget=count * call.length if budget is None else budget,
        transform=call.transform,
        **settings,
    )
    return call.best_last(call.run(strategy))


@decode_fn()
def contrastive_search(
    arguments: T5XArguments,
    *,
    penalty_alpha: float | Array = 0.6,
    top_k: int = 4,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Appends one of the k most probable tokens, preferring those unlike the tokens before.

    For native models only; see ``strategies.contrastive_search`` (Su et al. 2022).

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
    call = open_native_call(strategies.ContrastiveSearch, arguments)
    if arguments.num_decodes != 1:
        raise ValueError(
            "num_decodes: expected 1, since contrastive_search finds one text for a row, got "
            f"{arguments.num_decodes}"
        )
    strategy = call.strategy(
        strategies.ContrastiveSearch,
        max_decode_steps,
        penalty_alpha=penalty_alpha,
        top_k=top_k,
        transform=call.transform,
    )
    return call.best_last(call.run(strategy))
