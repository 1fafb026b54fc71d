"""Beam searches by brute force: all sequences with their scores, and draws without replacement.

A beam search scores a sequence with the sum of its transformed log-probabilities, which are not
normalised again. The functions here follow that definition with plain tuples and float64, without
the library's beams, so a search that is wide enough to keep every hypothesis has to agree.
"""

from __future__ import annotations

import collections
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
