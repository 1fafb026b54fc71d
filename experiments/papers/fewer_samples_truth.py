"""Exact probabilities of pass@N and of votes, on a language model whose texts can be enumerated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def pass_of_independent(share: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The probability that one of ``count`` independent samples is correct.

    Args:
      share: float64 ``[...]``, the probability of a correct sample.
      count: real numbers, to which ``share`` broadcasts.

    Example:
      >>> float(pass_of_independent(np.array(0.5), np.array(2)))
      0.75
    """
    return 1 - (1 - share) ** count


def by_probability(prob: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """All texts with the tokens after every prefix in the order of their probability.

    Args:
      prob: float64 ``[V, ..., V]``, of each text, one axis for each token.
      others: of that shape, which are put into the same order.

    Example:
      >>> by_probability(np.array([0.25, 0.75]), np.array([0, 1]))
      [array([0.75, 0.25]), array([1, 0])]
    """
    found = [prob, *others]
    for axis in range(prob.ndim):
        later = tuple(range(axis + 1, prob.ndim))
        order = np.argsort(-found[0].sum(later, keepdims=True), axis, kind="stable")
        found = [np.take_along_axis(x, np.broadcast_to(order, x.shape), axis) for x in found]
    return found


def pass_of_strata(prob: np.ndarray, correct: np.ndarray, count: int) -> float:
    """The probability that one of N points, one uniform in each of N strata, is a correct text.

    Args:
      prob, correct, count: as for ``pass_of_lattice``.

    Example:
      >>> pass_of_strata(np.full(4, 0.25), np.array([True, False, True, False]), 2)
      0.75
    """
    edges = np.concatenate([[0], np.cumsum(prob.ravel())])
    right = np.concatenate([[0], np.cumsum(prob.ravel() * correct.ravel())])
    within = np.interp(np.arange(count + 1) / count * edges[-1], edges, right) / edges[-1]
    return float(1 - (1 - count * np.diff(within)).prod())


class Pieces(NamedTuple):
    """All outcomes of a lattice of N: between two boundaries, all shifts hit the same prefixes.

    Attributes:
      weight: float64 ``[P]``, the probability of each piece.
      cell: int ``[P, N]``, the prefix at which each sample becomes alone.
      first, last: int ``[C]``, the range of the texts with that prefix, ``last`` not among them.
    """

    weight: np.ndarray
    cell: np.ndarray
    first: np.ndarray
    last: np.ndarray


def pieces_of_lattice(prob: np.ndarray, count: int, carried: bool = False) -> Pieces:
    """What the samples of a call of ``arithmetic_sample`` can be.

    While N times a prefix's probability is above 1, its samples carry their codes, which are those
    of a lattice; then a sample is alone and goes on by itself (``codes.arithmetic``). So the
    prefixes at which samples become alone are intervals of the line. What the lattice hits is the
    same for all shifts between two boundaries, modulo 1/N.

    Args:
      prob: float64 ``[V, ..., V]``, of each text, one axis for each token.
      count: N.
      carried: whether samples carry their codes after they are alone (``samplers.Carried``).
    """
    left, right, first, last = [], [], [], []
    carry = np.ones(1, bool)
    for depth in range(1, prob.ndim + 1):
        size = prob.shape[0] ** depth
        width, texts = prob.reshape(size, -1).sum(1), prob.size // size
        end = np.cumsum(width)
        among = np.repeat(carry, prob.shape[0])
        carry = among & (carried | (count * width > 1)) & (depth < prob.ndim)
        cell = among & ~carry & (width > 0)
        left.append(end[cell] - width[cell])
        right.append(end[cell])
        first.append(np.flatnonzero(cell) * texts)
        last.append(first[-1] + texts)
    lefts, order = np.concatenate(left), np.argsort(np.concatenate(left))
    bounds = np.concatenate([lefts, *right, [0, 1]]) % (1 / count)
    bounds = np.sort(np.append(bounds, [0, 1 / count]))
    points = (bounds[1:] + bounds[:-1])[:, None] / 2 + np.arange(count) / count
    hit = np.searchsorted(lefts[order], points, side="right") - 1
    weight = np.diff(bounds) * count
    some = weight > 0
    return Pieces(
        weight[some], hit[some], np.concatenate(first)[order], np.concatenate(last)[order]
    )


def pass_of_lattice(
    prob: np.ndarray, correct: np.ndarray, count: int, carried: bool = False
) -> float:
    """The probability that one of the samples of a lattice of N is correct.

    Args:
      prob, count, carried: as for ``pieces_of_lattice``.
      correct: bool of the shape of ``prob``.

    Example:
      >>> halves = np.full((2, 2), 0.25)
      >>> pass_of_lattice(halves, halves > 1, 2), pass_of_lattice(halves, np.eye(2) > 0, 2)
      (0.0, 0.75)
    """
    weight, cell, first, last = pieces_of_lattice(prob, count, carried)
    sums = [np.append(0, np.cumsum(x.ravel())) for x in (prob * correct, prob)]
    right, whole = (x[last] - x[first] for x in sums)
    return float(1 - (weight * (1 - right / whole)[cell].prod(1)).sum())


def vote_of_independent(prob: np.ndarray, count: int) -> np.ndarray:
    """The probability that the most probable answer wins the vote of independent samples.

    Of t answers with as many votes as the winner, each wins with probability 1 / t. Given the
    winner's votes c, the votes of the others are coefficients of a product of polynomials, with a
    factor s for each tie; the mean of s^(t - 1) over s from 0 to 1 is 1 / t.

    Args:
      prob: float64 ``[n, A]``, of the answers of each of n tasks.
      count: the number of samples.

    Returns:
      float64 ``[n]``.

    Example:
      >>> vote_of_independent(np.array([[0.6, 0.4], [0.2, 0.8]]), 3).round(3).tolist()
      [0.648, 0.896]
    """
    prob = -np.sort(-prob, 1)
    total = np.zeros(len(prob))
    ties = min(prob.shape[1] - 1, count)
    nodes, weights = np.polynomial.legendre.leggauss(ties // 2 + 1)
    nodes, weights = (nodes + 1) / 2, weights / 2
    # The i-th power of a probability over i!, for all i.
    steps = prob[..., None] / np.maximum(np.arange(count + 1), 1)
    steps[..., 0] = 1
    powers = np.cumprod(steps, -1)
    factorial = np.prod(np.arange(1.0, count + 1))
    for votes in range(1, count + 1):
        rest = count - votes
        product = np.zeros((len(prob), len(nodes), rest + 1))
        product[..., 0] = 1
        for answer in range(1, prob.shape[1]):
            found = np.zeros_like(product)
            for i in range(min(votes, rest) + 1):
                factor = powers[:, answer, i, None, None] * np.where(i == votes, nodes, 1)[:, None]
                found[..., i:] += factor * product[..., : rest + 1 - i]
            product = found
        total += factorial * powers[:, 0, votes] * (product[..., rest] @ weights)
    return total


def vote_right(answers: np.ndarray, right: int, size: int) -> np.ndarray:
    """Whether the right answer wins a vote; of t with as many votes as the winner, in 1 of t parts.

    Args:
      answers: int ``[R, N]``, those of the samples of R calls.
      right: the right one.
      size: the number of answers.

    Returns:
      float64 ``[R]``.

    Example:
      >>> vote_right(np.array([[0, 1, 1], [0, 1, 2]]), 1, 3).round(3).tolist()
      [1.0, 0.333]
    """
    votes = (answers[..., None] == np.arange(size)).sum(1)
    winners = votes == votes.max(1, keepdims=True)
    return winners[:, right] / winners.sum(1)
