"""Best-first and best-k search, with the presets of Xu et al. 2022."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax.typing import ArrayLike

from decoding_jax import fields
from decoding_jax.loop import as_function
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.best_first.algorithm import FrontierSearch
from decoding_jax.strategies.best_first.priority import Decay, LastLogProb, MeanLogProb, Score


def best_k_last(*, kappa: ArrayLike = 0.0, beta: ArrayLike = 0.5) -> dict[str, Any]:
    """The settings of best-k search that the paper calls "last": a memoryless score.

    Args:
      kappa: the weight of the temporal decay; the paper tries 0, 0.01, 0.05, 0.1 and 0.2.
      beta: its exponent.

    Returns:
      Keyword arguments for ``best_k_search``: score, decay, gamma and frontier_size.

    Example:
      >>> sorted(best_k_last(kappa=0.05))
      ['decay', 'frontier_size', 'gamma', 'score']
    """
    return _preset(LastLogProb(), Decay(kappa, beta))


def best_k_mean(
    *, alpha: ArrayLike = 1.0, kappa: ArrayLike = 0.0, beta: ArrayLike = 0.5
) -> dict[str, Any]:
    """The settings of best-k search that the paper calls "mean": a length-normalised score.

    Args:
      alpha: the exponent of the length.
      kappa: the weight of the temporal decay; the paper tries 0, 0.01, 0.05, 0.1 and 0.2.
      beta: its exponent.

    Returns:
      Keyword arguments for ``best_k_search``: score, decay, gamma and frontier_size.

    Example:
      >>> float(best_k_mean(alpha=0.5)["score"].final(-6.0, 4))  # -6 / 4 ** 0.5
      -3.0
    """
    return _preset(MeanLogProb(alpha), Decay(kappa, beta))


def _preset(score: Score, decay: Decay) -> dict[str, Any]:
    return {"score": score, "decay": decay, "gamma": 0.05, "frontier_size": 500}


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class BestKSearch(FrontierSearch):
    """Expands the k best hypotheses of a frontier at a time, until the budget is used.

    Xu et al. 2022, "Best-k Search Algorithm for Neural Text Generation", arXiv:2211.11924. The
    frontier holds hypotheses of all lengths. Each step pops those of the highest priority, which
    is the score plus a temporal decay. Popped hypotheses that have ended are complete, and the k
    best of the others are expanded in one call of the model. A beam's hypotheses all have the same
    length; this search can return to a shorter hypothesis that turns out to be better. A row stops
    before its budget is used only if no remaining hypothesis can change its result.

    Ties go to the hypothesis that was made first, then to the lower token id.

    The paper counts its budget C in expansions of nodes, and gives a search as many as a beam
    search expands: C = b T for a beam of width b and length T. The same is counted here: every
    hypothesis that is fed to the model, the prompt included. Completed hypotheses are not fed, so
    they are not counted. The authors' program also counts this way, but it checks the budget once
    a step, so its last step can exceed C by up to k - 1 expansions; here the last step is cut.

    The output has first the completed hypotheses, best first by ``score`` (which is ``log_prob``,
    except with a mean), then those that have ended and are still in the frontier, then, unless
    ``num_return`` is "all", the best unfinished ones of the frontier. Unused places have length 0
    and log-probability -inf. A sequence ends unfinished at the length limit and where no token is
    allowed. ``info`` is a ``SearchInfo``.

    Attributes:
      k: the number of hypotheses expanded in one call. 1 is best-first search.
      budget: C, the largest number of hypotheses that a row expands, and so of model calls.
      num_return: N, by default k. "all" returns every completed hypothesis and uses the budget to
        its end, so that ``info.completed`` is S in the paper; N is then the budget times the
        number of children of a hypothesis (see ``branching``).
      max_new_tokens: L, the largest number of new tokens.
      score: ``log_prob``, ``mean`` (over the tokens), ``last`` (the last token alone), or an
        object such as ``MeanLogProb(alpha)``. ``best_k_last`` and ``best_k_mean`` give the score
        and the other settings of the paper.
      decay: kappa, the weight of the temporal decay, or a ``Decay(kappa, beta)``.
      gamma: the smallest probability of a child under the transformed, renormalised
        distribution. The most likely child is kept even if its probability is smaller. A scalar or
        ``[B]``.
      branching: the largest number of children of a hypothesis. None sets no limit but gamma: at
        most ``1 / gamma`` tokens can have a probability of gamma, and places for that many are
        reserved; a gamma that needs another number of places compiles another program. If gamma is
        0 or ``[B]``, places for the whole vocabulary are reserved.
      frontier_size: F, the largest number of open hypotheses in the frontier, and also of ended
        ones. The worst are dropped, and counted. Dropping does not change which hypotheses are
        expanded if there is no decay and F is at least the budget.
      fallback: whether a row in which nothing has ended when its budget is used continues
        greedily, beyond the budget, with the best of its frontier.
      transform: applied to the logits before children are chosen.
      stop: when a sequence ends.

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

    k: int = fields.count()

    @property
    def group_size(self) -> int:
        return self.k


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class BestFirstSearch(FrontierSearch):
    """Expands the best hypothesis of a frontier, one at a time, until the budget is used.

    This is ``best_k_search`` with k = 1. With ``gamma=0``, no transform and a sufficiently large
    frontier, the first sequence to complete is the most probable one of all.

    Attributes:
      budget: C, the largest number of hypotheses that a row expands.
      num_return: N, or "all".
      max_new_tokens: L, the largest number of new tokens.
      score, decay, gamma, branching, frontier_size, fallback, transform, stop: as for
        ``best_k_search``.

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

    @property
    def group_size(self) -> int:
        return 1


best_k_search = as_function(BestKSearch)
best_first_search = as_function(BestFirstSearch)
