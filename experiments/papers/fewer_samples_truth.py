"""Exact probabilities of pass@N and of votes, on a language model whose texts can be enumerated."""

from __future__ import annotations

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


def pass_of_lattice(prob: np.ndarray, correct: np.ndarray, count: int) -> float:
    """The probability that one of the samples of a call of ``arithmetic_sample`` is correct.

    While N times a prefix's probability is above 1, its samples carry their codes, which are those
    of a lattice; then a sample is alone and goes on by itself (``codes.arithmetic``). So the
    prefixes at which samples become alone are intervals of the line, each with a probability that
    the text is correct. What the lattice hits is the same for all shifts between two boundaries,
    modulo 1/N.

    Args:
      prob: float64 ``[V, ..., V]``, of each text, one axis for each token.
      correct: bool of that shape.
      count: N.

    Example:
      >>> halves = np.full((2, 2), 0.25)
      >>> pass_of_lattice(halves, halves > 1, 2), pass_of_lattice(halves, np.eye(2) > 0, 2)
      (0.0, 0.75)
    """
    left, right = [], []
    chance = []
    carried = np.ones(1, bool)
    mass = (prob * correct).ravel()
    for depth in range(1, prob.ndim + 1):
        size = prob.shape[0] ** depth
        width = prob.reshape(size, -1).sum(1)
        end = np.cumsum(width)
        among = np.repeat(carried, prob.shape[0])
        carried = among & (count * width > 1) & (depth < prob.ndim)
        cell = among & ~carried & (width > 0)
        left.append(end[cell] - width[cell])
        right.append(end[cell])
        chance.append(mass.reshape(size, -1).sum(1)[cell] / width[cell])
    lefts, order = np.concatenate(left), np.argsort(np.concatenate(left))
    wrong = (1 - np.concatenate(chance))[order]
    bounds = np.concatenate([lefts, *right, [0, 1]]) % (1 / count)
    bounds = np.sort(np.append(bounds, [0, 1 / count]))
    points = (bounds[1:] + bounds[:-1])[:, None] / 2 + np.arange(count) / count
    hit = np.searchsorted(lefts[order], points, side="right") - 1
    return float(1 - (np.diff(bounds) * count * wrong[hit].prod(1)).sum())


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
