"""One answer from many samples: the one that most samples agree with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from decoding_jax.estimators.quality import Metric

Answer = TypeVar("Answer", bound=Hashable)


def majority(answers: Sequence[Answer | None]) -> Answer | None:
    """The most frequent answer; the first of equally frequent ones.

    Self-consistency (Wang et al. 2022, arXiv:2203.11171): several samples reason independently, and
    the most frequent of their answers is returned.

    Args:
      answers: the answer of each sample; None for a sample without one, which has no vote.

    Returns:
      The answer, or None if no sample has one.

    Example:
      >>> majority(["12", None, "7", "12"])
      '12'
    """
    votes = Counter(answer for answer in answers if answer is not None)
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
