"""Metrics by name: sacrebleu, rouge-score and NLTK's METEOR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from decoding_jax.estimators import quality

Metric = quality.Metric

NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "meteor": "METEOR",
    "meteor_exact": "METEOR, exact",
}
"""What figures call the metrics."""


def metric(name: str) -> Metric:
    """The metric of that name: ``(text, references) -> score``, 0 to 100.

    Args:
      name: ``bleu`` (sentence-BLEU) and ``chrf`` by sacrebleu; ``rouge1``, ``rouge2`` or ``rougeL``
        (F-measure) by rouge-score; ``meteor`` by NLTK with WordNet, for English; ``meteor_exact``
        by NLTK with exact matches only, for any language.

    Raises:
      ValueError: for an unknown name, or METEOR without its package or data.

    Example:
      >>> round(metric("meteor_exact")("a small house", ["a small house"]), 1)
      98.1
    """
    if name not in METRICS:
        raise ValueError(f"metric: expected one of {', '.join(METRICS)}, got {name!r}")
    return METRICS[name]()


def _chrf(text: str, references: Sequence[str]) -> float:
    import sacrebleu

    return float(sacrebleu.sentence_chrf(text, list(references)).score)


class _Exact:
    """No stems and no synonyms, for METEOR."""

    def stem(self, word: str) -> str:
        return word

    def synsets(self, word: str) -> tuple[()]:
        return ()


def _meteor(exact: bool) -> Metric:
    try:
        from nltk.translate.meteor_score import meteor_score
    except ImportError as e:
        raise ValueError(
            "metric: expected NLTK for METEOR (pip install nltk), got an environment without it"
        ) from e
    settings = {"stemmer": _Exact(), "wordnet": _Exact()} if exact else {}

    def score(text: str, references: Sequence[str]) -> float:
        split = [words(reference) for reference in references]
        return 100 * float(meteor_score(split, words(text), **settings))

    if not exact:
        try:
            score("a word", ["another word"])
        except LookupError as e:
            raise ValueError(
                "metric: expected WordNet (python -m nltk.downloader wordnet), or 'meteor_exact', "
                "got 'meteor' without it"
            ) from e
    return score


def words(text: str) -> list[str]:
    """The words of a text in lower case: letters and digits of any language, as for ROUGE."""
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


METRICS: dict[str, Callable[[], Metric]] = {
    "bleu": lambda: quality.bleu,
    "chrf": lambda: _chrf,
    "rouge1": lambda: functools.partial(quality.rouge, kind="rouge1"),
    "rouge2": lambda: functools.partial(quality.rouge, kind="rouge2"),
    "rougeL": lambda: functools.partial(quality.rouge, kind="rougeL"),
    "meteor": lambda: _meteor(exact=False),
    "meteor_exact": lambda: _meteor(exact=True),
}
"""Makers of the metrics, which import what they need."""


class Scores:
    """Metrics of texts against the references of their inputs; equal texts are scored once.

    Args:
      names: names of metrics.
      references: one list of texts for each input.

    Example:
      >>> Scores(["rouge1"], [["one two"]])(0, ["one two", "three"])
      {'rouge1': [100.0, 0.0]}
    """

    def __init__(self, names: Sequence[str], references: Sequence[Sequence[str]]):
        self._references = references
        self._metrics = {name: metric(name) for name in names}
        self._known: dict[tuple[int, str], dict[str, float]] = {}

    def __call__(self, row: int, texts: Sequence[str]) -> dict[str, list[float]]:
        """The scores of every metric for the texts of an input, in their order."""
        found = [self._of(row, text) for text in texts]
        return {name: [scores[name] for scores in found] for name in self._metrics}

    def _of(self, row: int, text: str) -> dict[str, float]:
        if (row, text) not in self._known:
            scores = {n: round(m(text, self._references[row]), 4) for n, m in self._metrics.items()}
            self._known[row, text] = scores
        return self._known[row, text]
