"""What each kind of strategy is expected to return, and how its output is compared with that.

An expectation is a function ``(output, problem) -> p-values``. It raises an AssertionError
where the output is wrong for certain, and leaves p-values to the caller, who knows how many tests
share one level.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decoding_jax.base import DecodeOutput, Prompt
from decoding_jax.testing.certificate import brute_force, comparisons
from decoding_jax.testing.certificate.brute_force import Ranking
from decoding_jax.testing.certificate.comparisons import check_close, chi_square
from decoding_jax.testing.certificate.enumeration import Distribution, enumerate_distribution
from decoding_jax.testing.certificate.problems import AnyProblem

Expectation = Callable[[DecodeOutput, AnyProblem], list[float]]


def follows_distribution(
    output: DecodeOutput, problem: AnyProblem, *, independent: bool, spread: float | None
) -> list[float]:
    """Every lane follows the exact distribution of its prompt, and rows are independent."""
    distributions = problem.exact(enumerate_distribution)
    index = comparisons.check_outcomes(output, distributions)
    p_values = comparisons.distribution_p_values(index, distributions)
    p_values += comparisons.independence_p_values(index, distributions, independent)
    if spread is not None:
        comparisons.check_prefix_counts(index, distributions, spread)
    return p_values


def follows_beam_sample(output: DecodeOutput, problem: AnyProblem) -> list[float]:
    """The lanes of beam sampling follow their exact distribution, one by one and together."""
    draw = _beam_sampler(output.length.shape[1], problem.ways_to_end)
    p_values = []
    for row, (outcomes, lanes, prob) in enumerate(problem.exact(draw)):
        index = _index_of(output, slice(row, None, problem.size), outcomes)
        missing = len(outcomes.prob)
        for lane in range(index.shape[1]):
            counts = np.bincount(index[:, lane], minlength=missing + 1)
            expected = np.bincount(lanes[:, lane], prob, minlength=missing + 1)
            p_values.append(chi_square(counts, expected).p_value)
        place = {tuple(result): k for k, result in enumerate(lanes.tolist())}
        together = np.array([place.get(tuple(result), -1) for result in index.tolist()])
        assert (together >= 0).all(), f"tokens: no possible combination of prompt {row}"
        p_values.append(chi_square(np.bincount(together, minlength=len(prob)), prob).p_value)
        p_values += comparisons.independence_p_values(index[:, :1], [outcomes])
    return p_values


@functools.cache
def _beam_sampler(beam_size: int, ways_to_end: int) -> Callable[..., brute_force.BeamDraws]:
    """One function for each pair of settings, because problems keep results by function."""
    return functools.partial(
        brute_force.beam_sample_draws, beam_size=beam_size, ways_to_end=ways_to_end
    )


def is_path(
    output: DecodeOutput, problem: AnyProblem, path: Callable[..., Distribution]
) -> list[float]:
    """Every row is one path, such as ``greedy_path``."""
    distributions = problem.exact(enumerate_distribution)
    index = comparisons.check_outcomes(output, distributions)
    comparisons.check_exact(index, distributions, problem.exact(path))
    return []


def is_likeliest(output: DecodeOutput, problem: AnyProblem) -> list[float]:
    """Every row is the sequence with the largest probability under the model."""
    distributions = problem.exact(enumerate_distribution)
    index = comparisons.check_outcomes(output, distributions)
    comparisons.check_likeliest(index, distributions)
    return []


def are_ranked(
    output: DecodeOutput, problem: AnyProblem, rank: Callable[..., Ranking]
) -> list[float]:
    """A row holds the N best sequences of a ranking, in order, each as often as it is returned."""
    for row, ranking in enumerate(problem.exact(rank)):
        check_ranking(output, row, problem.size, ranking)
    return []


def rank_with_constraints(
    phrases: np.ndarray, alternatives: Sequence[Sequence[Sequence[int]]]
) -> Callable[..., Ranking]:
    """``rank_sequences`` of sequences that contain their prompt's phrases ``[8, Q, M]``."""

    def rank(model: Any, prompt: Prompt, row: int, **settings: Any) -> Ranking:
        lacks = brute_force.constraint_check(phrases[row], alternatives)
        return brute_force.rank_sequences(model, prompt, row, **settings, lacks=lacks)

    return rank


def rank_by_model(model: Any, prompt: Prompt, row: int, **settings: Any) -> Ranking:
    """The possible sequences, ranked by their log-probability under the model."""
    found = enumerate_distribution(model, prompt, row, **settings)
    outcomes = Distribution(*(field[found.prob > 0] for field in found))
    return Ranking(outcomes, outcomes.log_prob[:, None], np.ones(len(outcomes.prob), bool))


def are_draws_without_replacement(output: DecodeOutput, problem: AnyProblem) -> list[float]:
    """The lanes are draws without replacement, and their sampling probabilities are exact.

    The first three lanes are compared with the exact distribution of the first, second and third
    draw (chi-square); a lane is empty if and only if no sequence was left to be drawn.
    """
    distributions = problem.exact(enumerate_normalized)
    reported = np.asarray(output.info["sampling_log_prob"], np.float64)
    p_values = []
    for row, distribution in enumerate(distributions):
        rows = slice(row, None, problem.size)
        index = _index_of(output, rows, distribution)
        missing = len(distribution.prob)
        ordered = np.sort(index, axis=1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != missing)
        assert not repeated.any(), f"tokens: a sequence was drawn twice for prompt {row}"
        with np.errstate(divide="ignore"):
            want = np.append(np.log(distribution.prob), -np.inf)[index]
        check_close("sampling_log_prob", reported[rows], want, row)
        count = np.minimum((distribution.prob > 0).sum(), index.shape[1])
        empty = (index == missing).sum(-1)
        assert (empty == index.shape[1] - count).all(), f"tokens: wrong number for prompt {row}"
        draws = brute_force.without_replacement(distribution.prob, min(3, index.shape[1]))
        for lane, prob in enumerate(draws):
            counts = np.bincount(index[:, lane], minlength=missing + 1)
            p_values.append(chi_square(counts, prob / prob.sum()).p_value)
    return p_values


def enumerate_normalized(model: Any, prompt: Prompt, row: int, **settings: Any) -> Distribution:
    """The distribution of a beam search's draws: transforms are given log-probabilities."""
    return enumerate_distribution(model, prompt, row, **settings, normalized=True)


def check_ranking(output: DecodeOutput, row: int, size: int, ranking: Ranking) -> None:
    """Every row of a prompt holds the best sequences of a ranking, in any order among equals.

    Args:
      output: of rows that repeat the problem's.
      row: the index of a row of the problem.
      size: the number of different rows; the output repeats them in order.
      ranking: all sequences that the search can return.
    """
    outcomes, score, complete = ranking
    missing, copies = score.shape
    lanes = output.length.shape[1]
    flat, rank = score.ravel(), np.repeat(np.where(complete, 0, 1), copies)
    best = np.lexsort((-flat, rank))[:lanes]
    unused = lanes - len(best)
    want_score = np.append(flat[best], np.full(unused, -np.inf))
    want_rank = np.append(rank[best], np.full(unused, 2))
    rows = slice(row, None, size)
    index = _index_of(output, rows, outcomes)
    # How often each lane's sequence is in the lanes before it.
    earlier = np.tril(index[:, :, None] == index[:, None], -1).sum(-1)
    earlier = np.where(index == missing, 0, earlier)
    assert (earlier < copies).all(), f"tokens: a sequence is returned twice for prompt {row}"
    ranks = np.append(np.where(complete, 0, 1), 2)[index]
    assert (ranks == want_rank).all(), f"tokens: constraints are not met for prompt {row}"
    scores = np.concatenate([score, np.full((1, copies), -np.inf)])[index, earlier]
    check_close("score of the best sequences", scores, want_score[None], row)
    check_close("score", np.asarray(output.score, np.float64)[rows], scores, row)


def _index_of(output: DecodeOutput, rows: slice, outcomes: Distribution) -> np.ndarray:
    """The outcome of each lane ``[n, N]``; K for a lane without a sequence."""
    log_prob = np.asarray(output.log_prob, np.float64)[rows]
    length = np.asarray(output.length)[rows]
    shape, missing = length.shape, len(outcomes.prob)
    flat = np.asarray(output.tokens)[rows].reshape(-1, output.tokens.shape[-1])
    index = comparisons.outcome_index(outcomes, flat, length.ravel()).reshape(shape)
    index = np.where((length == 0) & (log_prob == -np.inf), missing, index)
    assert (index >= 0).all(), f"tokens: {flat[(index < 0).ravel()][0]} is not a possible output"
    finished = np.append(outcomes.finished, False)[index]
    assert (output.finished[rows] == finished).all(), f"finished: wrong, {rows}"
    check_close("log_prob", log_prob, np.append(outcomes.log_prob, -np.inf)[index], rows.start)
    return index
