"""Searches by brute force, with plain tuples and float64, and without the library's beams.

A beam search scores a sequence with the sum of its transformed log-probabilities, which are not
normalised again. ``rank_sequences`` lists all sequences with their scores, with which a search that
is wide enough to keep every hypothesis has to agree. ``beam_sample_draws`` is the distribution of
what ``beam_sample`` returns, and ``contrastive_path`` equation 5 of Su et al. 2022.
"""

from __future__ import annotations

import collections
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
    outcomes,
    row_stop,
    stepper,
)
from decoding_jax.testing.table_lm import CHECKSUMS, TableLM

ALPHA, TOP_K = 0.6, 3
"""The settings of the certificate's contrastive search."""


class Ranking(NamedTuple):
    """All K sequences that one row's search can return.

    Attributes:
      outcomes: the sequences; ``prob`` is uniform and has no meaning.
      score: float64 ``[K, C]``, by which they are ranked: a sequence is returned C times, with a
        score each, best first.
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

    def children(self, gains: np.ndarray, log_probs: np.ndarray, rule: RowStop) -> list[Node]:
        """The continuations that are not banned, in order of their tokens."""
        return [
            Node(
                tokens := (*self.tokens, int(token)),
                self.score + float(gains[token]),
                self.log_prob + float(log_probs[token]),
                rule.finishes(tokens),
            )
            for token in np.flatnonzero(gains > -np.inf)
        ]


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
      ((9, 1), 5)
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
            found = node.children(gains, log_probs, rule)
            found = [child for child in found if not (child.finished and lacks(child.tokens))]
            # A hypothesis without an allowed continuation is a whole sequence.
            ended += [child for child in found if child.finished] or ([] if found else [node])
            children += [child for child in found if not child.finished]
        growing = children
    complete = np.array([not lacks(node.tokens) for node in ended], bool)
    prob = np.full(len(ended), 1 / len(ended))
    score = np.array([[node.score] for node in ended], np.float64)
    return Ranking(outcomes_of(ended, prob, max_new_tokens), score, complete)


def rank_two_groups(penalties: np.ndarray) -> Callable[..., Ranking]:
    """The ranking of a diverse beam search with two groups that keep every hypothesis.

    Both groups return every sequence. In the second, a token costs the penalty for each hypothesis
    of the first that continues with this token at the same step.

    Args:
      penalties: float32 ``[8]``, the diversity penalty of each prompt.
    """

    def rank(model: TableLM, prompt: Prompt, row: int, **settings: Any) -> Ranking:
        ranking = rank_sequences(model, prompt, row, **settings)
        tokens, length, finished, *_ = ranking.outcomes
        texts = [tuple(t[:n]) for t, n in zip(tokens.tolist(), length, strict=True)]
        ended = {text for text, end in zip(texts, finished, strict=True) if end}
        running = {text[:n] for text in texts for n in range(1, len(text) + 1)} - ended
        chosen = collections.Counter((len(text), text[-1]) for text in running)
        counts = [sum(chosen[n + 1, token] for n, token in enumerate(text)) for text in texts]
        second = ranking.score[:, 0] - float(penalties[row]) * np.array(counts)
        return ranking._replace(score=np.stack([ranking.score[:, 0], second], 1))

    return rank


def outcomes_of(nodes: Sequence[Node], prob: np.ndarray, max_new_tokens: int) -> Distribution:
    """Hypotheses and their probabilities as a ``Distribution``."""
    listed = zip(nodes, prob, strict=True)
    return outcomes(
        [(n.tokens, n.finished, float(p), n.log_prob) for n, p in listed], max_new_tokens
    )


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
    return node.children(np.asarray(allowed[0], np.float64), exact_log_softmax(raw)[0], rule)


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


def contrastive_path(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Distribution:
    """The outcome of a contrastive search with ``ALPHA`` and ``TOP_K``.

    Args as for ``enumerate_distribution``. The result has one outcome, K = 1.
    """
    rule = row_stop(stop or Stop(), row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule)
    features = np.asarray(model.features, np.float64)
    path = [int(t) for t in np.asarray(prompt.tokens)[row, : int(prompt.length[row])]]
    start, log_prob, finished = len(path), 0.0, False
    context = [_hidden(features, path[: i + 1]) for i in range(start)]
    while len(path) - start < rule.limit and not finished:
        raw, allowed = step([tuple(path[start:])])
        if np.all(allowed == -np.inf):
            break
        prob = np.exp(exact_log_softmax(allowed)[0])
        likeliest = [int(t) for t in np.argsort(-prob, kind="stable")[:TOP_K] if prob[t] > 0]
        hidden = [_hidden(features, [*path, token]) for token in likeliest]
        score = [
            (1 - ALPHA) * prob[token] - ALPHA * max(h @ earlier for earlier in context)
            for token, h in zip(likeliest, hidden, strict=True)
        ]
        chosen = int(np.argmax(score))
        path.append(likeliest[chosen])
        context.append(hidden[chosen])
        log_prob += float(exact_log_softmax(raw)[0, path[-1]])
        finished = rule.finishes(path[start:])
    return outcomes([(tuple(path[start:]), finished, 1.0, log_prob)], max_new_tokens)


def _hidden(features: np.ndarray, path: list[int]) -> np.ndarray:
    """The hidden state of the last token of a path, divided by its norm."""
    weighted = [(token % 10 + 1) * (place % 10 + 1) for place, token in enumerate(path)]
    hidden = features[sum(weighted) % CHECKSUMS, path[-1]]
    return hidden / np.linalg.norm(hidden)
