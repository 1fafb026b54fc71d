"""Decode functions of best-k and best-first search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding_jax import registry
from decoding_jax.base import Array, Transform
from decoding_jax.loop import run
from decoding_jax.strategies.best_first.priority import Score
from decoding_jax.t5x.decode_fns import call as requests


def best_k_search(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 4,
    k: int | None = None,
    budget: int | None = None,
    score: str | Score = "log_prob",
    decay: Any = 0.0,
    gamma: float | Array = 0.05,
    branching: int | None = None,
    frontier_size: int = 500,
    fallback: bool = False,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Expands the k best hypotheses of a frontier at a time; on native models only.

    See ``strategies.best_k_search`` (Xu et al. 2022). Its hypotheses form a tree and its rows are
    at different depths, which T5X's ``tokens_to_logits`` cannot serve.

    Args:
      inputs: this argument, and those that are not listed here, are as in ``beam_search``.
      num_decodes: N, the number of hypotheses that are returned.
      k: the number of hypotheses expanded in one call; None means N.
      budget: the largest number of hypotheses that a row expands; None means N L, as many as a
        beam search of width N expands.
      score, decay, gamma, branching, frontier_size, fallback: see ``strategies.best_k_search``.
      decode_rng: not used.
      max_decode_steps: the largest number of tokens after the last of ``inputs``.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the best last. Completed hypotheses
      come after those that were not completed; both parts are in rising order. Places that the
      search could not fill have length 0 and score -inf.

    Raises:
      ValueError: on T5X's own networks, and for counts below 1.
    """
    return _search(
        "best_k_search",
        (inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
         initial_index),
        max_decode_steps,
        budget,
        k=num_decodes if k is None else k,
        score=score,
        decay=decay,
        gamma=gamma,
        branching=branching,
        frontier_size=frontier_size,
        fallback=fallback,
        transform=transform,
    )  # fmt: skip


def best_first_search(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 1,
    budget: int | None = None,
    score: str | Score = "log_prob",
    decay: Any = 0.0,
    gamma: float | Array = 0.05,
    branching: int | None = None,
    frontier_size: int = 500,
    fallback: bool = False,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Expands the best hypothesis of a frontier, one at a time; on native models only.

    ``best_k_search`` with k = 1, and its arguments.

    Args:
      inputs, cache, tokens_to_logits, eos_id, num_decodes, budget, score, decay, gamma, branching,
        frontier_size, fallback, decode_rng, cache_offset, initial_index, max_decode_steps,
        transform: see there.

    Returns:
      As ``best_k_search``.

    Raises:
      ValueError: as ``best_k_search``.
    """
    return _search(
        "best_first_search",
        (inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
         initial_index),
        max_decode_steps,
        budget,
        score=score,
        decay=decay,
        gamma=gamma,
        branching=branching,
        frontier_size=frontier_size,
        fallback=fallback,
        transform=transform,
    )  # fmt: skip


def _search(
    name: str,
    arguments: tuple[Any, ...],
    max_decode_steps: Any,
    budget: int | None,
    **settings: Any,
) -> tuple[Array, Array]:
    request = requests.read(*arguments)
    if not (request.model.ragged and request.model.tree):
        raise ValueError(
            f"decode_fn: got {name} on a network that is fed one token a row and call; takes it on"
            " NativeEncoderDecoderModel or NativeDecoderOnlyModel of decoding_jax.t5x.models"
        )
    num_decodes = arguments[5]
    steps = registry.steps(
        name,
        num_return=num_decodes,
        budget=num_decodes * request.length if budget is None else budget,
        max_new_tokens=request.length,
        stop=request.stop(request.limits(max_decode_steps)),
        **settings,
    )
    return request.best_last(run(steps, request.model, request.prompt))
