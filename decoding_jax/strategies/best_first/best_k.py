"""Best-k search, Algorithm 1 of Xu et al. 2022 (arXiv:2211.11924), as one ``while_loop``.

The paper's symbols and steps, and where they are in this folder:

======================================================  ===========================================
Paper                                                   Here
======================================================  ===========================================
H, the heap of nodes that were found, not yet expanded  ``State.heap``
P, the completed paths                                  ``State.results``
t, the time step, and n.time                            ``State.t`` and ``Nodes.time``
b < C, the budget that is used                          ``State.expanded < budget``
priority, ``n.score + decay(n.time, t)``                ``priority`` in ``advance``; ``priority.py``
pop the k best of the heap                              ``pop``
``p(v) >= gamma`` for each token v: the children        ``expansion.py``
heap pruning                                            ``frontier.prune``
======================================================  ===========================================

Best-first search is k = 1. Four things differ from the paper's pseudo-code or are added to it:

- Completed nodes do not take up one of the k places and do not use the budget, because the model is
  not called for them.
- The last group is cut to the budget that is left, so that the budget is never exceeded.
- A row stops early once no open node can change the result.
- A row in which nothing was completed can be finished greedily (``fallback``).

Each row keeps its nodes as one tree in the cache slots of one lane (``token_tree.py``), so that a
shared prefix is computed once, and each row has its own cursor.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from decoding_jax import fields
from decoding_jax.base import Array, Cache, DecodeOutput, LanguageModel, Prefix, Prompt
from decoding_jax.loop import as_function, model_calls, stopping
from decoding_jax.loop.search_trace import (
    ABSENT,
    CUT,
    EXPANDED,
    FINISHED,
    NAN,
    OPEN,
    SearchTrace,
)
from decoding_jax.loop.sequences import check_lengths
from decoding_jax.loop.strategy import Strategy
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.best_first import frontier, token_tree
from decoding_jax.strategies.best_first.expansion import Expansion, max_children
from decoding_jax.strategies.best_first.frontier import Nodes
from decoding_jax.strategies.best_first.priority import (
    Decay,
    LastLogProb,
    MeanLogProb,
    Score,
    check_decay,
    check_score,
)
from decoding_jax.strategies.best_first.token_tree import TokenTree
from decoding_jax.transforms import carried


class SearchInfo(NamedTuple):
    """Statistics of a search.

    Attributes:
      model_calls: int32, the prefill and every ``extend``.
      expanded: int32 ``[B]``, the number of nodes expanded within the budget, prompt included.
      completed: int32 ``[B]``, the number of ended nodes that were popped. With
        ``num_return="all"`` this is S in the paper; with a number, a row may stop before it has
        used its budget. The row's first sequences are these, as many as were asked for.
      pruned: int32 ``[B]``, the number of nodes dropped because the frontier was full.
      fallback: bool ``[B, N]``, the sequences finished greedily after the budget was used.
      slots_used: int32 ``[B]``, the number of cache slots that were written.
      slots_held: int32, the number of cache slots reserved for a row.
      trace: with ``with_trace``.
    """

    model_calls: Array
    expanded: Array
    completed: Array
    pruned: Array
    fallback: Array
    slots_used: Array
    slots_held: Array
    trace: SearchTrace | None = None


class State(NamedTuple):
    """The state of the loop, with F for the size of the frontier.

    Attributes:
      cache: the model's cache.
      tree: the nodes in the cache.
      heap: H, ``[B, 2 F]``: room for F open nodes and for F that have ended.
      popped: ``[B, k]``, the nodes to expand next; unused places are at the end.
      results: P, ``[B, N]``, best first, or in the order of completion if all are kept.
      t: int32 ``[B]``, the time step of each row.
      greedy: bool ``[B]``, whether the row is being finished greedily.
      model_calls, expanded, completed, pruned: as in ``SearchInfo``.
      log_probs: float32 ``[B, S]``, the log-probability of each node of the tree; None without
        ``with_trace``.
    """

    cache: Cache
    tree: TokenTree
    heap: Nodes
    popped: Nodes
    results: Nodes
    t: Array
    greedy: Array
    model_calls: Array
    expanded: Array
    completed: Array
    pruned: Array
    log_probs: Array | None = None


def _check_num_return(name: str, value: Any) -> int | Literal["all"]:
    if isinstance(value, str):
        if value == "all":
            return "all"
        raise fields.error(name, 'an int of 1 or more, or "all"', value)
    return fields.as_count(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrontierSearch(Strategy):
    """A search that expands the k best hypotheses of a frontier at a time.

    Attributes:
      budget: C, the largest number of hypotheses that a row expands, its prompt included.
      num_return: N, or "all" for every completed hypothesis; by default k.
      score: gives the scores of hypotheses.
      decay: the temporal decay.
      gamma: the smallest probability of a child.
      branching: the largest number of children of a hypothesis; None for no limit but gamma.
      frontier_size: F, the largest number of open hypotheses in the frontier, and of ended ones.
      fallback: whether rows that complete nothing within the budget are finished greedily.
      with_trace: whether ``info`` has a ``trace`` of the nodes, a ``SearchTrace``.
      places: the number of places that are reserved for the children of a hypothesis, computed
        from ``branching`` and ``gamma``; None for the whole vocabulary.
    """

    budget: int = fields.count()
    num_return: int | Literal["all"] | None = fields.field(
        _check_num_return, expected='an int of 1 or more, or "all"', static=True, default=None
    )
    score: Score = fields.field(check_score, default="log_prob")
    decay: Decay = fields.field(check_decay, default=0.0)
    gamma: Any = fields.probability(default=0.05)
    branching: int | None = fields.count(default=None)
    frontier_size: int = fields.count(default=500)
    fallback: bool = fields.switch(default=False)
    with_trace: bool = fields.switch(default=False)
    places: int | None = fields.field(static=True, init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        places = self.branching
        if places is None and isinstance(self.gamma, np.ndarray) and not self.gamma.ndim:
            places = max_children(self.gamma)
        object.__setattr__(self, "places", places)

    @property
    def group_size(self) -> int:
        """k, the largest number of hypotheses expanded in one call of the model."""
        raise NotImplementedError

    @property
    def num_pops(self) -> int:
        """The largest number of nodes that are popped at a time."""
        return min(self.group_size, self.frontier_size, max(self.budget - 1, 1))

    @property
    def num_outputs(self) -> int | Literal["all"]:
        """N."""
        return self.group_size if self.num_return is None else self.num_return

    @property
    def num_fallback(self) -> int:
        """The number of nodes that a row continues greedily, where it completed nothing."""
        if not self.fallback:
            return 0
        k, count = self.num_pops, self.num_outputs
        return k if count == "all" else min(k, count)

    def num_slots(self, max_new_tokens: int) -> int:
        """The number of cache slots of a row."""
        return max(self.budget - 1, 1) + self.num_fallback * (max_new_tokens - 1)

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """H holds the prompt alone, and b and t are 0; the prompt is expanded."""
        batch, size = prompt.tokens.shape
        length = check_lengths(model, size, self.max_new_tokens)
        if not (model.ragged and model.tree):
            raise ValueError(
                "model: expected one with ragged and tree, since the rows of a best-first search "
                "are at different slots, each in a token tree, got "
                f"ragged={model.ragged} and tree={model.tree}"
            )
        slots, k = self.num_slots(length), self.num_pops
        output, cache = model_calls.prefill(model, prompt, lanes=1, slots=slots)
        most_children = self.budget * self._expansion.num_children(output.logits.shape[-1])
        num_results = most_children if self.num_outputs == "all" else self.num_outputs
        zeros = jnp.zeros(batch, jnp.int32)
        states = carried.begin(self.transform, prompt, 1)
        state = State(
            cache=cache,
            tree=token_tree.empty(batch, slots, length, states),
            heap=frontier.absent(batch, 2 * min(self.frontier_size, most_children)),
            popped=frontier.absent(batch, k),
            results=frontier.absent(batch, num_results),
            t=zeros - 1,
            greedy=zeros > 0,
            model_calls=jnp.int32(0),
            expanded=zeros,
            completed=zeros,
            pruned=zeros,
            log_probs=jnp.zeros((batch, slots), jnp.float32) if self.with_trace else None,
        )
        limit = stopping.limits(self.stop, batch, length)[:, None]
        root = frontier.absent(batch, 1)._replace(kind=jnp.where(limit < 1, CUT, OPEN))
        no_tokens = jnp.zeros((batch, 1, 1, length), jnp.int32)
        path = Prefix(*prompt, no_tokens, root.length[:, None], states)
        return self.advance(output.logits, state, root, root.parent, path)

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """Feeds the popped nodes to the model in one call, and goes on with their children."""
        nodes = state.popped
        tokens = token_tree.paths(state.tree, nodes.parent, nodes.token, nodes.length)
        root = carried.begin(self.transform, prompt, 1)
        states = token_tree.states_before(state.tree, nodes.parent, nodes.length, root)
        path = Prefix(*prompt, tokens[:, None], nodes.length[:, None])
        path = carried.advance(self.transform, path, states)
        start = state.tree.used[:, None]
        tree, slot, visible = token_tree.add(state.tree, nodes.parent, path, num_open(nodes))
        token = nodes.token[:, None]
        output, cache = model_calls.extend(model, state.cache, token, start, visible[:, None])
        log_probs = state.log_probs
        if log_probs is not None:
            put = jax.vmap(lambda old, index, new: old.at[index].set(new, mode="drop"))
            log_probs = put(log_probs, slot, nodes.log_prob)
        state = state._replace(cache=cache, tree=tree, log_probs=log_probs)
        return self.advance(output.logits, state, nodes, slot, path)

    @property
    def _expansion(self) -> Expansion:
        return Expansion(self.places, self.gamma, self.score, self.transform, self.stop)

    def advance(
        self, logits: Array, state: State, nodes: Nodes, slot: Array, path: Prefix
    ) -> State:
        """Adds the children of ``nodes [B, n]`` to the heap, prunes it, and pops the next nodes."""
        # b <- b + 1 for every node that is expanded; its children have n.time = t.
        t = state.t + (num_open(nodes) > 0).astype(jnp.int32)
        expanded = state.expanded + jnp.where(state.greedy, 0, num_open(nodes))
        children, most_likely, ending = self._expansion(logits, nodes, slot, path, t)
        children = frontier.only(children, most_likely | ~state.greedy[:, None])
        ending = jnp.where(nodes.kind == CUT, CUT, ending)
        log_prob = jnp.where(ending == NAN, jnp.nan, nodes.log_prob)
        dead_ends = nodes._replace(kind=ending, log_prob=log_prob)

        # t <- t + 1. The priority is n.score + decay(n.time, t), with an age of at least 1.
        heap = frontier.join(state.heap, children)
        age = jnp.clip(t[:, None] + 1 - heap.time, 0, self.budget)
        priority = heap.score + self.decay.table(self.budget + 1)[age]
        pruned = frontier.prune(heap, priority, state.heap.kind.shape[1] // 2)
        state = state._replace(
            t=t,
            model_calls=state.model_calls + 1,
            expanded=expanded,
            pruned=state.pruned + frontier.count(heap) - frontier.count(pruned),
        )
        return self.pop(state, pruned, priority, dead_ends)

    def pop(self, state: State, heap: Nodes, priority: Array, dead_ends: Nodes) -> State:
        """Pops nodes in order of priority until min(k, C - b) open ones are found.

        The ended nodes among them go to P. A row in the greedy fallback pops its newest children
        alone, which are those after the nodes of ``state.heap``.
        """
        k, size, greedy = self.num_pops, heap.kind.shape[1], state.greedy[:, None]
        is_new = jnp.arange(size, dtype=jnp.int32)[None] >= state.heap.kind.shape[1]
        is_open = (heap.kind == OPEN) & (is_new | ~greedy)
        is_ended = (heap.kind > OPEN) & (is_new | ~greedy)
        best = frontier.best(priority, is_open, k)
        num_pops = jnp.where(state.greedy, k, jnp.minimum(self.budget - state.expanded, k))

        # Ended nodes are popped up to the last open one, or all of them once the budget is used.
        rank = jnp.where(state.greedy, size, jnp.maximum(num_pops, 1))
        is_ended &= frontier.before(priority, is_open, best, rank)
        ended = frontier.join(dead_ends, frontier.only(heap, is_ended))
        completed = state.completed + frontier.count(frontier.without_nan(ended))
        kept = frontier.compact if self.num_outputs == "all" else self._ranked
        results = kept(frontier.join(state.results, ended), state.results.kind.shape[1])
        heap = frontier.only(heap, ~is_ended)

        still_greedy = state.greedy
        if self.fallback:
            nothing = (completed == 0) & (heap.kind <= OPEN).all(1)
            begins = ~still_greedy & (state.expanded >= self.budget) & nothing
            num_pops = jnp.where(begins, self.num_fallback, num_pops)
            still_greedy |= begins
        max_new_tokens = state.tree.paths.shape[-1]
        num_pops = jnp.where(self._is_decided(heap, results, max_new_tokens), 0, num_pops)
        num_pops = jnp.minimum(num_pops, is_open.sum(1, dtype=jnp.int32))
        is_popped = jnp.arange(k, dtype=jnp.int32)[None] < num_pops[:, None]
        remaining = ~frontier.members(jnp.where(is_popped, best, size), size)
        return state._replace(
            heap=frontier.compact(frontier.only(heap, remaining), state.heap.kind.shape[1]),
            popped=frontier.only(frontier.take(heap, best), is_popped),
            results=results,
            greedy=still_greedy,
            completed=completed,
        )

    def _ranked(self, nodes: Nodes, size: int) -> Nodes:
        """The ``size`` nodes with the best final scores, in order; those with NaN come last."""
        size = min(size, nodes.kind.shape[1])
        return frontier.take(nodes, frontier.best(self._ranks(nodes), nodes.kind != ABSENT, size))

    def _ranks(self, nodes: Nodes) -> Array:
        final = self.score.final(nodes.log_prob, nodes.length)
        return jnp.where(nodes.kind == NAN, -jnp.inf, final)

    def _is_decided(self, heap: Nodes, results: Nodes, max_new_tokens: int) -> Array:
        """bool ``[B]``: whether no node of the heap can change the results."""
        limit = stopping.limits(self.stop, heap.kind.shape[0], max_new_tokens)[:, None]
        length = jnp.where(heap.kind == OPEN, limit, heap.length)
        bound = self.score.final(heap.log_prob, length)  # log-probabilities only fall
        worst = self._ranks(results)[:, -1:]
        better = (heap.kind != ABSENT) & (bound > worst)
        return (results.kind[:, -1] != ABSENT) & ~better.any(1)

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``: whether the row has no node to expand."""
        return (state.popped.kind == ABSENT).all(-1)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """P, the ended nodes that are left in the heap, the best open ones, then those with NaN."""
        size = state.results.kind.shape[1]
        heap, ranked = frontier.join(state.heap, state.popped), self._ranked
        completed = ranked(frontier.without_nan(state.results), size)
        parts = [completed, ranked(frontier.only(heap, heap.kind > OPEN), size)]
        if self.num_outputs != "all":
            parts.append(ranked(frontier.only(heap, heap.kind == OPEN), size))
        parts.append(frontier.only(state.results, state.results.kind == NAN))
        out = frontier.compact(frontier.join(*parts), size)
        exists = out.kind != ABSENT
        tokens = token_tree.paths(state.tree, out.parent, out.token, out.length)
        final = self.score.final(out.log_prob, out.length)
        return DecodeOutput(
            tokens=jnp.where(exists[..., None], tokens, 0),
            length=jnp.where(exists, out.length, 0),
            log_prob=jnp.where(exists, out.log_prob, -jnp.inf),
            score=jnp.where(exists, final, -jnp.inf),
            finished=out.kind == FINISHED,
            info=SearchInfo(
                model_calls=state.model_calls,
                expanded=state.expanded,
                completed=state.completed,
                pruned=state.pruned,
                fallback=state.greedy[:, None] & (completed.kind != ABSENT),
                slots_used=state.tree.used,
                slots_held=jnp.int32(state.tree.paths.shape[1]),
                trace=None if state.log_probs is None else self._trace(state, heap),
            ),
        )

    def _trace(self, state: State, heap: Nodes) -> SearchTrace:
        """The nodes of the tree, then those that have ended and those that are still open."""
        tree, left = state.tree, frontier.join(state.results, heap)
        slot = jnp.arange(tree.paths.shape[1], dtype=jnp.int32)[None]
        used = slot < tree.used[:, None]
        # The number of tokens of a node is that of its ancestors and itself.
        depth = lax.population_count(tree.ancestors).sum(-1, dtype=jnp.uint32).astype(jnp.int32)
        log_probs: Any = state.log_probs
        expanded = tree.paths, depth, log_probs, jnp.where(used, EXPANDED, ABSENT)
        tokens = token_tree.paths(tree, left.parent, left.token, left.length)
        others = tokens, left.length, left.log_prob, left.kind
        parts = zip(expanded, others, strict=True)
        return SearchTrace(*(jnp.concatenate(part, axis=1) for part in parts))


def num_open(nodes: Nodes) -> Array:
    """The number of open nodes of each row, int32 ``[B]``."""
    return (nodes.kind == OPEN).sum(1, dtype=jnp.int32)


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
        0, ``[B]`` or an array of JAX, places for the whole vocabulary are reserved.
      frontier_size: F, the largest number of open hypotheses in the frontier, and also of ended
        ones. The worst are dropped, and counted. Dropping does not change which hypotheses are
        expanded if there is no decay and F is at least the budget.
      fallback: whether a row in which nothing has ended when its budget is used continues
        greedily, beyond the budget, with the best of its frontier.
      with_trace: whether ``info`` has a ``trace`` of the nodes, a ``SearchTrace``.
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

    All other settings are those of ``best_k_search``.

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

    num_return: int | Literal["all"] = fields.field(
        _check_num_return, expected='an int of 1 or more, or "all"', static=True, default=1
    )

    @property
    def group_size(self) -> int:
        return 1


best_k_search = as_function(BestKSearch)
best_first_search = as_function(BestFirstSearch)
