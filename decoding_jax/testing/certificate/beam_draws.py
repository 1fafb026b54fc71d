"""The exact distribution of what ``beam_sample`` returns, with plain tuples and float64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.base import Prompt, Stop, Transform
from decoding_jax.testing.certificate.enumeration import (
    Distribution,
    RowStop,
    exact_log_softmax,
    row_stop,
    stepper,
)
from decoding_jax.testing.certificate.exhaustive import Node, outcomes_of
from decoding_jax.testing.table_lm import TableLM


class BeamDraws(NamedTuple):
    """All S results of one row's search, each K sequences, best first.

    Attributes:
      outcomes: the M sequences that occur in the results; ``prob`` is that of the first lane.
      lanes: int64 ``[S, K]``, which sequence each lane of a result is; M for none.
      prob: float64 ``[S]``, of each result.
    """

    outcomes: Distribution
    lanes: np.ndarray
    prob: np.ndarray


class State(NamedTuple):
    """The hypotheses that continue and those that have ended, both best first."""

    running: tuple[Node, ...] = (Node(),)
    pool: tuple[Node, ...] = ()


def beam_sample_draws(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
    beam_size: int,
    ways_to_end: int,
) -> BeamDraws:
    """The exact distribution of what ``beam_sample`` returns for one row.

    At every step n = max(2, 1 + ways to end) K continuations are drawn in order, without
    replacement, from the softmax of their scores. The first K of them enter the pool if they end
    their sequences. The K with the best scores among those that are not finished go on. The pool
    keeps its K best sequences, and the row stops when nothing goes on that could still enter it.

    Args:
      model: the table.
      prompt: all rows, so that settings per row keep their meaning.
      row: the index of the row.
      max_new_tokens: L.
      transform: as given to the search; it receives log-probabilities.
      stop: as given to the search.
      beam_size: K.
      ways_to_end: the number of end tokens and stop sequences of ``stop``, padding included.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = TableLM.random(jax.random.key(0), 3)
      >>> prompt = Prompt(jnp.array([[2, 1]]), jnp.array([2]))
      >>> draws = beam_sample_draws(model, prompt, max_new_tokens=1, beam_size=2, ways_to_end=0)
      >>> draws.lanes.shape, round(float(draws.prob.sum()), 6)
      ((3, 2), 1.0)
    """
    rule = row_stop(stop or Stop(), row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule, normalized=True)
    grow = functools.cache(functools.partial(_children, step, rule))
    count = max(2, 1 + ways_to_end) * beam_size
    ended: dict[tuple[Node, ...], float] = {}
    states: dict[State, float] = {State(): 1.0}
    if rule.limit < 1:
        ended, states = {(Node(),): 1.0}, {}
    for position in range(rule.limit):
        last = position + 1 >= rule.limit
        following: dict[State, float] = {}
        for state, prob in states.items():
            for (running, pool), chance in _next_states(state, grow, beam_size, count, last):
                full = len(pool) == beam_size and running
                hopeless = full and running[0].score <= pool[-1].score
                if last or not running or hopeless:
                    ended[pool] = ended.get(pool, 0.0) + prob * chance
                else:
                    reached = State(running, pool)
                    following[reached] = following.get(reached, 0.0) + prob * chance
        states = following
    return _as_draws(ended, beam_size, max_new_tokens)


def _children(step: Callable[..., Any], rule: RowStop, node: Node) -> list[Node]:
    """The continuations of a hypothesis, in order of their tokens."""
    raw, allowed = step([node.tokens])
    raw, gains = exact_log_softmax(raw)[0], np.asarray(allowed[0], np.float64)
    return [
        Node(
            tokens := (*node.tokens, int(token)),
            node.score + float(gains[token]),
            node.log_prob + float(raw[token]),
            rule.finishes(tokens),
        )
        for token in np.flatnonzero(gains > -np.inf)
    ]


def _next_states(
    state: State, grow: Callable[[Node], list[Node]], size: int, count: int, last: bool
) -> Iterator[tuple[State, float]]:
    """What may follow a state, with the probability of each."""
    grown = [grow(node) for node in state.running]
    dead = [node for node, found in zip(state.running, grown, strict=True) if not found]
    children = [child for found in grown for child in found]
    pool = [*state.pool, *dead]
    if not children:
        yield State((), _best(pool, size)), 1.0
        return
    total = len(children)
    score = np.array([child.score for child in children])
    finished = np.array([child.finished for child in children])
    # If all are drawn, only the order of the first matters; among few, it also decides ties.
    some = size if count >= total > 4 else count
    order = _orders(total, min(some, total))
    chance = _chances(np.exp(score - score.max()), order)
    first = order[:, :size]
    leaves = np.where(finished[first] | last, first, total)
    candidates = np.broadcast_to(np.arange(total), (1, total)) if some != count else order
    rank = np.argsort(np.where(finished[candidates], np.inf, -score[candidates]), kind="stable")
    going = np.take_along_axis(candidates, rank[:, :size], 1)
    going = np.broadcast_to(np.where(finished[going], total, going), (len(order), going.shape[1]))
    results, which = np.unique(np.concatenate([leaves, going], 1), axis=0, return_inverse=True)
    probs = np.bincount(which.ravel(), chance)
    for result, prob in zip(results.tolist(), probs, strict=True):
        of = lambda places: [children[place] for place in places if place < total]  # noqa: E731
        left, on = of(result[: leaves.shape[1]]), of(result[leaves.shape[1] :])
        yield State(tuple(on), _best([*pool, *left], size)), float(prob)


def _best(nodes: Sequence[Node], count: int) -> tuple[Node, ...]:
    """The best nodes, in order; the earlier of equal ones."""
    return tuple(sorted(nodes, key=lambda node: -node.score)[:count])


@functools.cache
def _orders(total: int, count: int) -> np.ndarray:
    """Every ordered draw of ``count`` of ``total``, one in a row."""
    return np.array(list(itertools.permutations(range(total), count)))


def _chances(weights: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The probability of each ordered draw without replacement."""
    drawn = weights[order]
    before = np.cumsum(drawn, 1) - drawn
    return np.prod(drawn / (weights.sum() - before), axis=1)


def _as_draws(
    ended: dict[tuple[Node, ...], float], beam_size: int, max_new_tokens: int
) -> BeamDraws:
    nodes = list(dict.fromkeys(node for pool in ended for node in pool))
    place = {node: k for k, node in enumerate(nodes)}
    lanes = np.full((len(ended), beam_size), len(nodes))
    for k, pool in enumerate(ended):
        lanes[k, : len(pool)] = [place[node] for node in pool]
    prob = np.array(list(ended.values()))
    first = np.bincount(lanes[:, 0], prob, minlength=len(nodes))
    return BeamDraws(outcomes_of(nodes, first, max_new_tokens), lanes, prob)
