"""Best-first and best-k search: hypotheses of all lengths wait, the best are expanded first."""

from __future__ import annotations

from typing import Any

from decoding_jax.base import Stop, Transform
from decoding_jax.loop import Static, Steps, search, steps_of
from decoding_jax.rows import PerRow
from decoding_jax.strategies.best_first.algorithm import best_first
from decoding_jax.strategies.best_first.expansion import Expansion
from decoding_jax.strategies.best_first.priority import Score, as_decay, as_score


@search
def best_k_search(
    *,
    k: Static[int],
    budget: Static[int],
    num_return: Static[int | None] = None,
    max_new_tokens: Static[int],
    score: str | Score = "log_prob",
    decay: Any = 0.0,
    gamma: PerRow[Any] = 0.05,
    branching: Static[int] = 10,
    frontier_size: Static[int] = 500,
    fallback: Static[bool] = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Expands the k best hypotheses of a frontier at a time, until the budget is spent.

    Xu et al. 2022, "Best-k Search Algorithm for Neural Text Generation", arXiv:2211.11924. A
    hypothesis waits in the frontier with its score, less a cost that grows with its age, and is
    popped when its turn comes, however long it is: unlike a beam, whose hypotheses are all of one
    length, the search returns to a shorter one that turns out better. A popped hypothesis that
    has ended is complete; of the others k are expanded in one call. A row stops early only where
    nothing that is left can change what it returns.

    Ties go to the hypothesis made earlier, then to the lower token id.

    Args:
      model: the language model, with ragged rows and trees.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      k: hypotheses expanded in one call. 1 is best-first search.
      budget: C, the most hypotheses that a row expands, its prompt included; so also the most
        model calls. A beam of width b expands b T of them in T steps.
      num_return: N, by default k.
      max_new_tokens: L, the most new tokens.
      score: ``log_prob``, ``mean`` (over the tokens), ``last`` (the last token's alone), or an
        object, such as ``MeanLogProb(alpha)`` (see ``priority``).
      decay: kappa, the cost of age, or a ``Decay(kappa, beta)``.
      gamma: the least probability of a child, by the transformed and renormalised law. The
        likeliest child is kept even below it. A scalar or ``[B]``.
      branching: the most children of a hypothesis.
      frontier_size: F, how many hypotheses may wait; the worst are dropped, and counted. As many
        again may wait that have ended. Dropping changes nothing in what is expanded as long as
        there is no decay and F is at least the budget.
      fallback: whether a row in which nothing has ended when its budget is spent goes on beyond
        it, greedily, with the best of its frontier.
      transform: applied to the logits before children are chosen.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput``, best first by ``score`` (``log_prob``, except with a mean): first what
      was completed, then what has ended and still waited, then, unfinished, the best of the
      frontier. Where there is nothing more, length 0 and log-probability -inf. A sequence ends
      unfinished at the length limit and where no continuation is allowed. ``info`` is a
      ``algorithm.SearchInfo``.

    Raises:
      ValueError: for a model that is not ragged or has no trees, a prompt of wrong shapes, counts
        below 1, an unknown score, or a length that the model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = best_k_search(model, prompt, k=3, budget=30, max_new_tokens=4)
      >>> output.tokens.shape, int(output.info.expanded[0]) <= 30
      ((1, 3, 4), True)
    """
    num_return = k if num_return is None else num_return
    for name, value in (
        ("k", k),
        ("budget", budget),
        ("num_return", num_return),
        ("branching", branching),
        ("frontier_size", frontier_size),
    ):
        if value < 1:
            raise ValueError(f"{name}: got {value}; takes 1 or more")
    if isinstance(gamma, (int, float)) and not 0 <= gamma <= 1:
        raise ValueError(f"gamma: got {gamma}; takes a probability from 0 to 1")
    expand = Expansion(
        branching=branching,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        score=as_score(score),
        transform=transform,
        stop=Stop() if stop is None else stop,
    )
    return best_first(
        expand,
        as_decay(decay),
        width=k,
        budget=budget,
        num_return=num_return,
        frontier_size=frontier_size,
        fallback=fallback,
    )


@search
def best_first_search(
    *,
    budget: Static[int],
    num_return: Static[int] = 1,
    max_new_tokens: Static[int],
    score: str | Score = "log_prob",
    decay: Any = 0.0,
    gamma: PerRow[Any] = 0.05,
    branching: Static[int] = 10,
    frontier_size: Static[int] = 500,
    fallback: Static[bool] = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Expands the best hypothesis of a frontier, one at a time, until the budget is spent.

    ``best_k_search`` with k = 1, and its arguments. With ``gamma=0``, no transform and children
    and frontier enough, the first sequence to complete is the likeliest there is.

    Args:
      model: the language model, with ragged rows and trees.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      budget: C, the most hypotheses that a row expands.
      num_return: N.
      max_new_tokens: L, the most new tokens.
      score, decay, gamma, branching, frontier_size, fallback, transform, stop: as for
        ``best_k_search``.

    Returns:
      As ``best_k_search``.

    Raises:
      ValueError: as ``best_k_search``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> best_first_search(model, prompt, budget=30, max_new_tokens=4, gamma=0).tokens.shape
      (1, 1, 4)
    """
    return steps_of(best_k_search)(
        k=1,
        budget=budget,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        score=score,
        decay=decay,
        gamma=gamma,
        branching=branching,
        frontier_size=frontier_size,
        fallback=fallback,
        transform=transform,
        stop=stop,
    )
