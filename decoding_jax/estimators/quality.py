"""Similarity of texts to references: BLEU and ROUGE, the mean and the best of a set of texts.

BLEU is computed by sacrebleu and ROUGE by rouge-score. Both come with ``pip install
'decoding_jax[experiments]'`` and are imported when they are first used.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

Metric = Callable[[str, Sequence[str]], float]
"""``(text, references) -> score``, higher is better."""


def bleu(text: str, references: Sequence[str]) -> float:
    """Sentence-BLEU with sacrebleu's defaults (13a tokens, exponential smoothing): 0 to 100.

    Args:
      text: the generated text.
      references: one or more.

    Raises:
      ValueError: if there is no reference.
      ImportError: if sacrebleu is not installed.
    """
    _check(references)
    return float(imported("sacrebleu").sentence_bleu(text, list(references)).score)


def rouge(text: str, references: Sequence[str], kind: str = "rougeL") -> float:
    """The F-measure of ROUGE against the best-matching reference: 0 to 100.

    Args:
      text: the generated text.
      references: one or more.
      kind: ``rouge1``, ``rouge2``, ..., ``rougeL``. No stemming; words are letters and digits.

    Raises:
      ValueError: if there is no reference.
      ImportError: if rouge-score is not installed.
    """
    _check(references)
    return 100 * float(_scorer(kind).score_multi(list(references), text)[kind].fmeasure)


def oracle(metric: Metric, texts: Sequence[str], references: Sequence[str]) -> float:
    """The best score of several texts, which a perfect choice among them would reach.

    A score of NaN is the best only if all are NaN.

    Args:
      metric: a function such as ``bleu``.
      texts: one or more.
      references: one or more.

    Raises:
      ValueError: if there is no text.

    Example:
      >>> exact = lambda text, references: float(text in references)
      >>> oracle(exact, ["a", "b"], ["b"]), mean(exact, ["a", "b"], ["b"])
      (1.0, 0.5)
    """
    return max(_scores(metric, texts, references), key=lambda s: -math.inf if math.isnan(s) else s)


def mean(metric: Metric, texts: Sequence[str], references: Sequence[str]) -> float:
    """The mean score of several texts; NaN if any is. Arguments and errors are ``oracle``'s."""
    scores = _scores(metric, texts, references)
    return sum(scores) / len(scores)


def _scores(metric: Metric, texts: Sequence[str], references: Sequence[str]) -> list[float]:
    if not texts:
        raise ValueError("texts: expected one or more, got none")
    return [metric(text, references) for text in texts]


def _check(references: Sequence[str]) -> None:
    if isinstance(references, str) or not references:
        raise ValueError(f"references: expected a list of one string or more, got {references!r}")


def imported(name: str) -> Any:
    """A module of a package that the extra ``experiments`` brings.

    Raises:
      ImportError: if the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"expected an installed {package} (pip install 'decoding_jax[experiments]'), got none",
            name=package,
        ) from error


class _Words:
    """Words of any language. The default tokenizer of rouge-score would split at every accent."""

    def tokenize(self, text: str) -> list[str]:
        return "".join(c if c.isalnum() else " " for c in text.lower()).split()


@functools.cache
def _scorer(kind: str) -> Any:
    return imported("rouge_score.rouge_scorer").RougeScorer([kind], tokenizer=_Words())
