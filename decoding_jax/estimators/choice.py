"""One answer from many samples: the one that most samples agree with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from decoding_jax.estimators.quality import Metric

Answer = TypeVar("Answer", bound=Hashable)


def majority(
    answers: Sequence[Answer | None], weights: Sequence[float] | None = None
) -> Answer | None:
    """The answer with most votes; the first of equal ones.

    Self-consistency (Wang et al. 2022, arXiv:2203.11171): several samples reason independently, and
    the most frequent of their answers is returned. Weights by ``estimators.confidence`` let samples
    count for more in which the model is confident.

    Args:
      answers: the answer of each sample; None for a sample without one, which has no vote.
      weights: the votes of each sample, 0 or more; one each by default.

    Returns:
      The answer, or None if no sample has one.

    Raises:
      ValueError: for another number of weights than of answers, or one that is negative or NaN.

    Example:
      >>> majority(["12", None, "7", "12"]), majority(["12", None, "7", "12"], [1, 9, 3, 1])
      ('12', '7')
    """
    weights = [1] * len(answers) if weights is None else list(weights)
    if len(weights) != len(answers):
        raise ValueError(
            f"weights: expected one for each of {len(answers)} answers, got {len(weights)}"
        )
    votes: dict[Answer, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if not weight >= 0:
            raise ValueError(f"weights: expected numbers of 0 or more, got {weight}")
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + weight
    return max(votes, key=votes.__getitem__) if votes else None


def minimum_bayes_risk(texts: Sequence[str], utility: Metric) -> int:
    """The number of the sample with the highest mean utility against all samples.

    Every sample is a candidate, and all samples represent the model's distribution (Kumar and Byrne
    2004; Eikema and Aziz 2020, "Is MAP Decoding All You Need?", arXiv:2005.10283, section 5). The
    samples may be dependent, as arithmetic samples are: the mean utility is unbiased where each by
    itself has the model's distribution. Equal texts are compared once.

    Args:
      texts: the samples.
      utility: ``(text, [reference]) -> score``, higher is better, such as ``quality.bleu``. A text
        with more utilities of NaN than another one is never chosen; the other utilities decide
        among texts with equally many.

    Returns:
      The index of the sample in ``texts``; the first of equally good ones.

    Raises:
      ValueError: if there is no text.

    Example:
      >>> shared_words = lambda text, references: len({*text.split()} & {*references[0].split()})
      >>> minimum_bayes_risk(["a b c", "a b d", "e f"], shared_words)
      0
    """
    if not texts:
        raise ValueError("texts: expected one or more, got none")
    counts = Counter(texts)

    def total(text: str) -> tuple[int, float]:
        found = [(n, utility(text, [reference])) for reference, n in counts.items()]
        num_nan = sum(n for n, value in found if math.isnan(value))
        return -num_nan, sum(n * value for n, value in found if not math.isnan(value))

    return list(texts).index(max(counts, key=total))
