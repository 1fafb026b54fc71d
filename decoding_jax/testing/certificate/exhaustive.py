"""Beam searches by brute force: all sequences with their scores, and the draws of a beam of one.

A beam search scores a sequence with the sum of its transformed log-probabilities, which are not
normalised again. The functions here follow that definition with plain tuples and float64, without
the library's beams, so a search that is wide enough to keep every hypothesis has to agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.base import Prompt, Stop, Transform
from decoding_jax.testing.certificate.enumeration import (
    Distribution,
    exact_log_softmax,
    row_stop,
    stepper,
)
from decoding_jax.testing.table_lm import TableLM


class Ranking(NamedTuple):
    """All K sequences that one row's search can return.

    Attributes:
      outcomes: the sequences; ``prob`` is uniform and has no meaning.
      score: float64 ``[K]``, by which they are ranked.
      complete: bool ``[K]``: whether the sequence meets the search's constraints. Sequences that
        do are ranked before all that do not.
    """

    outcomes: Distribution
    score: np.ndarray
    complete: np.ndarray


class Node(NamedTuple):
    """A hypothesis: its new tokens, its score, and its log-probability under the model."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    log_prob: float = 0.0
    finished: bool = False


def rank_sequences(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
    lacks: Callable[[Sequence[int]], bool] = lambda tokens: False,
) -> Ranking:
    """Every sequence that a beam search without pruning completes, with its score.

    Args:
      model: the table.
      prompt: all rows, so that settings per row keep their meaning.
      row: the index of the row.
      max_new_tokens: L.
      transform: as given to the search; it receives log-probabilities.
      stop: as given to the search.
      lacks: whether new tokens do not meet the constraints yet. A token that would end such a
        sequence is banned.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = TableLM.random(jax.random.key(0), 3)
      >>> prompt = Prompt(jnp.array([[2, 1]]), jnp.array([2]))
      >>> ranking = rank_sequences(model, prompt, max_new_tokens=2, lacks=lambda t: 1 not in t)
      >>> ranking.score.shape, int(ranking.complete.sum())
      ((9,), 5)
    """
    rule = row_stop(stop or Stop(), row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule, normalized=True)
    ended: list[Node] = []
    growing = [Node()]
    while growing:
        if len(growing[0].tokens) >= rule.limit:
            ended += growing
            break
        raw, allowed = step([node.tokens for node in growing])
        raw = exact_log_softmax(raw)
        children: list[Node] = []
        for node, gains, log_probs in zip(growing, allowed, raw, strict=True):
            found = [
                Node(
                    tokens := (*node.tokens, int(token)),
                    node.score + float(gains[token]),
                    node.log_prob + float(log_probs[token]),
                    rule.finishes(tokens),
                )
                for token in np.flatnonzero(gains > -np.inf)
            ]
            found = [child for child in found if not (child.finished and lacks(child.tokens))]
            # A hypothesis without an allowed continuation is a whole sequence.
            ended += [child for child in found if child.finished] or ([] if found else [node])
            children += [child for child in found if not child.finished]
        growing = children
    complete = np.array([not lacks(node.tokens) for node in ended], bool)
    prob = np.full(len(ended), 1 / len(ended))
    score = np.array([node.score for node in ended], np.float64)
    return Ranking(outcomes_of(ended, prob, max_new_tokens), score, complete)


def outcomes_of(nodes: Sequence[Node], prob: np.ndarray, max_new_tokens: int) -> Distribution:
    """Hypotheses and their probabilities as a ``Distribution``."""
    tokens = np.zeros((len(nodes), max_new_tokens), np.int32)
    for place, node in enumerate(nodes):
        tokens[place, : len(node.tokens)] = node.tokens
    return Distribution(
        tokens=tokens,
        length=np.array([len(node.tokens) for node in nodes], np.int32),
        finished=np.array([node.finished for node in nodes], bool),
        prob=prob,
        log_prob=np.array([node.log_prob for node in nodes], np.float64),
    )


def beam_sample_distribution(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Distribution:
    """The exact distribution of what ``beam_sample`` returns with a beam of one.

    At every step n continuations are drawn in order, without replacement, from the softmax of their
    scores. The first of them enters the pool if it ends the sequence. The one with the best score
    among those that are not finished goes on. The pool keeps its best sequence, and the row stops
    when nothing goes on that could still beat it.

    Args and example as for ``rank_sequences``, without constraints.
    """
    stop = stop or Stop()
    rule = row_stop(stop, row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule, normalized=True)
    ways_to_end = 0 if stop.eos_ids is None else np.asarray(stop.eos_ids).shape[-1]
    ways_to_end += np.shape(stop.sequences)[-2] if np.ndim(stop.sequences) >= 2 else 0
    count = max(2, 1 + ways_to_end)
    ended: dict[Node, float] = {}
    # Each state is a running hypothesis and the pool's best sequence, if there is one.
    states: dict[tuple[Node, Node | None], float] = {(Node(), None): 1.0}
    if rule.limit < 1:
        ended, states = {Node(): 1.0}, {}
    for position in range(rule.limit):
        following: dict[tuple[Node, Node | None], float] = {}
        for (node, pool), prob in states.items():
            raw, allowed = step([node.tokens])
            raw, gains = exact_log_softmax(raw)[0], np.asarray(allowed[0], np.float64)
            tokens = [int(token) for token in np.flatnonzero(gains > -np.inf)]
            if not tokens:
                best = _better(pool, node)
                ended[best] = ended.get(best, 0.0) + prob
                continue
            children = {
                token: Node(
                    path := (*node.tokens, token),
                    node.score + float(gains[token]),
                    node.log_prob + float(raw[token]),
                    rule.finishes(path),
                )
                for token in tokens
            }
            for order, chance in _draws(gains, tokens, min(count, len(tokens))):
                first = children[order[0]]
                leaves = first.finished or position + 1 >= rule.limit
                new_pool = _better(pool, first) if leaves else pool
                open_children = [children[token] for token in order if not children[token].finished]
                going = max(open_children, key=lambda child: child.score, default=None)
                closed = (
                    going is None
                    or position + 1 >= rule.limit
                    or (new_pool is not None and going.score <= new_pool.score)
                )
                if not closed:
                    assert going is not None
                    state = (going, new_pool)
                    following[state] = following.get(state, 0.0) + prob * chance
                else:
                    assert new_pool is not None  # the first draw ended, or something goes on
                    ended[new_pool] = ended.get(new_pool, 0.0) + prob * chance
        states = following
    nodes = list(ended)
    return outcomes_of(nodes, np.array(list(ended.values()), np.float64), max_new_tokens)


def _better(pool: Node | None, node: Node) -> Node:
    """The better of the pool's sequence and another; of equals, the pool's."""
    return node if pool is None or node.score > pool.score else pool


def _draws(gains: np.ndarray, tokens: list[int], count: int) -> list[tuple[tuple[int, ...], float]]:
    """Every ordered draw of ``count`` tokens without replacement, with its probability."""
    weights = np.exp(gains - gains.max())
    found = []
    for order in itertools.permutations(tokens, count):
        left, chance = float(weights[tokens].sum()), 1.0
        for token in order:
            chance *= float(weights[token]) / left
            left -= float(weights[token])
        found.append((order, chance))
    return found


def without_replacement(prob: np.ndarray, draws: int) -> list[np.ndarray]:
    """The distribution of each of the first draws without replacement, of at most three.

    Args:
      prob: float64 ``[K]``, of the first draw.
      draws: how many draws, 1 to 3.

    Returns:
      One float64 ``[K + 1]`` per draw; the last entry is the probability that nothing is left.

    Example:
      >>> [p.round(2).tolist() for p in without_replacement(np.array([0.5, 0.5]), 3)]
      [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    size = len(prob)
    off_diagonal = ~np.eye(size, dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        left_after_one = np.array([prob[np.arange(size) != i].sum() for i in range(size)])
        pairs = prob[:, None] * prob[None] / left_after_one[:, None]
        pairs = np.where(off_diagonal & (prob[:, None] * prob[None] > 0), pairs, 0.0)
        left_after_two = np.maximum(left_after_one[:, None] - prob[None], 0.0)
        scaled = np.where((pairs > 0) & (left_after_two > 1e-12), pairs / left_after_two, 0.0)
    third = prob * (scaled.sum() - scaled.sum(0) - scaled.sum(1))
    found = [prob, pairs.sum(0), np.maximum(third, 0.0)][:draws]
    return [np.append(p, max(0.0, 1.0 - p.sum())) for p in found]


def constraint_check(
    phrases: Any, alternatives: Sequence[Sequence[Sequence[int]]]
) -> Callable[[Sequence[int]], bool]:
    """Whether new tokens lack one of the phrases, or all of a set of alternatives.

    Args:
      phrases: token sequences, padded with -1 on the left.
      alternatives: sets of token sequences.

    Example:
      >>> lacks = constraint_check([[-1, 3]], [[[1], [2, 2]]])
      >>> lacks([3, 2]), lacks([3, 2, 2])
      (True, False)
    """
    plain = [tuple(int(t) for t in phrase if t >= 0) for phrase in np.asarray(phrases).tolist()]

    def occurs(phrase: Sequence[int], tokens: Sequence[int]) -> bool:
        size = len(phrase)
        starts = range(len(tokens) - size + 1)
        return any(tuple(tokens[i : i + size]) == tuple(phrase) for i in starts)

    def lacks(tokens: Sequence[int]) -> bool:
        met = all(occurs(phrase, tokens) for phrase in plain)
        return not (met and all(any(occurs(p, tokens) for p in one) for one in alternatives))

    return lacks
