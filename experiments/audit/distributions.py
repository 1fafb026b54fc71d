"""The exact distributions, in plain NumPy and float64, that samplers are compared with.

Documentation often leaves open what happens where settings meet, so a distribution is computed for
a ``Convention``, and a row of the audit names those that its project's documentation allows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Convention:
    """What a project's documentation says, or leaves open, of settings that meet.

    Attributes:
      order: ``"temperature first"`` or ``"temperature last"``, after all truncation.
      ties: top-k keeps k tokens, those of the ``"lowest ids"`` or ``"highest ids"`` among equals,
        or ``"all"`` that are as probable as the k-th.
      top_p: the kept tokens have ``"at least"`` the mass p together, or ``"more than"`` it.
      nucleus: top-p measures the mass of a token among the tokens that ``"top_k"`` has kept, or
        among ``"all"`` tokens.
      beams: the beams are the ``"first"`` that are drawn, or the ``"best"`` of them.
      language: texts of a language are ``"masked"``, each token by itself, or drawn from the
        ``"conditional"`` distribution, the model's given that the text is in the language.
    """

    order: str = "temperature first"
    ties: str = "lowest ids"
    top_p: str = "at least"
    nucleus: str = "top_k"
    beams: str = "first"
    language: str = "masked"

    def name(self, case: dict[str, Any]) -> str:
        """Says the choices that matter to a case."""
        settings = case.get("settings", {})
        said = [self.language] if case["kind"] == "language" else []
        if settings.get("temperature", 1.0) != 1.0 and {"top_k", "top_p", "min_p"} & set(settings):
            said.append(self.order)
        if "width" in settings:
            said.append(f"the {self.beams} of those drawn")
        if "top_k" in settings:
            said.append(f"ties: {self.ties}")
        if "top_p" in settings:
            said.append(f"top-p: {self.top_p}")
        if {"top_k", "top_p"} <= set(settings):
            said.append(f"mass among {self.nucleus}")
        return ", ".join(said)


def conventions(**allowed: Sequence[str]) -> tuple[Convention, ...]:
    """All conventions with the given choices, and the first choice of what is not given.

    Example:
      >>> [c.ties for c in conventions(ties=("lowest ids", "all"))]
      ['lowest ids', 'all']
    """
    choices = itertools.product(*allowed.values())
    return tuple(Convention(**dict(zip(allowed, choice, strict=True))) for choice in choices)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def token(logits: Sequence[float], settings: dict[str, Any], convention: Convention) -> np.ndarray:
    """The probabilities of the next token.

    Args:
      logits: the model's logits, ``[V]``.
      settings: any of ``temperature``, ``top_k``, ``top_p`` and ``min_p``, applied in this order
        except for the temperature, whose place the convention says.
      convention: what holds where settings meet.
    """
    x = np.asarray(logits, np.float64)
    temperature = settings.get("temperature", 1.0)
    if convention.order == "temperature first":
        x = x / temperature
    whole = softmax(x)
    keep = np.ones(len(x), bool)
    if "top_k" in settings:
        keep = _most_probable(x, settings["top_k"], convention.ties)
    if "top_p" in settings:
        mass = whole if convention.nucleus == "all" else softmax(np.where(keep, x, -np.inf))
        keep &= _nucleus(mass, settings["top_p"], convention.top_p)
    if "min_p" in settings:
        keep &= whole >= settings["min_p"] * whole.max()
    x = np.where(keep, x, -np.inf)
    return softmax(x if convention.order == "temperature first" else x / temperature)


def _most_probable(x: np.ndarray, k: int, ties: str) -> np.ndarray:
    ids = np.arange(len(x))
    ranked = np.lexsort((-ids if ties == "highest ids" else ids, -x))
    return x >= x[ranked[k - 1]] if ties == "all" else np.isin(ids, ranked[:k])


def _nucleus(mass: np.ndarray, p: float, rule: str) -> np.ndarray:
    ranked = np.argsort(-mass, kind="stable")
    before = np.cumsum(mass[ranked]) - mass[ranked]
    kept = before < p - _ROUNDING if rule == "at least" else before <= p + _ROUNDING
    return np.isin(np.arange(len(mass)), ranked[kept])


def of_case(case: dict[str, Any], convention: Convention) -> np.ndarray:
    """The distribution of a case of ``cases.CASES``, with an axis for each counted token."""
    settings = case.get("settings", {})
    if case["kind"] == "token":
        return token(case["logits"], settings, convention)
    if case["kind"] == "rows":
        each = [{k: v[i] for k, v in settings.items()} for i in range(2)]
        first, second = (token(case["logits"], s, convention) for s in each)
        return np.outer(first, second)
    if case["kind"] == "pair":
        one = token(case["logits"], settings, convention)
        both = np.outer(one, one)
        return np.triu(both) + np.tril(both, -1).T
    if case["kind"] == "beams":
        return _beams(softmax(np.asarray(case["logits"])), settings["width"], convention.beams)
    table = np.array([token(row, settings, convention) for row in case["table"]])
    if case["kind"] == "language":
        alphabet = case.get("alphabet", "abc")
        texts = [[alphabet.index(letter) for letter in text] for text in case["texts"]]
        return _language(table, texts, masked=convention.language == "masked")
    return table[0][:, None] * table


def _language(table: np.ndarray, texts: Sequence[list[int]], *, masked: bool) -> np.ndarray:
    """The probabilities of texts, and 0 for every other text.

    Args:
      table: the probabilities of the token after each token, ``[V, V]``; the last ends a text.
      texts: the language, as tokens without the last one.
      masked: whether the tokens that may follow have probabilities that sum to 1.
    """
    end = len(table) - 1
    tokens = [[*text, end] for text in texts]
    probs = []
    for text in tokens:
        prob = 1.0
        for i, (before, now) in enumerate(zip([0, *text], text, strict=False)):
            allowed = {other[i] for other in tokens if other[:i] == text[:i]}
            prob *= table[before, now] / (table[before, list(allowed)].sum() if masked else 1.0)
        probs.append(prob)
    return np.append(np.array(probs) / np.sum(probs), 0.0)


def _beams(p: np.ndarray, width: int, beams: str) -> np.ndarray:
    """Of pairs of tokens, the smaller id first, by enumerating all draws without replacement."""
    distribution = np.zeros((len(p), len(p)))
    for drawn in itertools.permutations(range(len(p)), 2 * width):
        left = 1 - np.concatenate([[0.0], np.cumsum(p[list(drawn)])[:-1]])
        kept = drawn[:width] if beams == "first" else sorted(drawn, key=lambda i: -p[i])[:width]
        distribution[min(kept), max(kept)] += np.prod(p[list(drawn)] / left)
    return distribution


def nearest(
    case: dict[str, Any], allowed: Sequence[Convention], counts: np.ndarray
) -> tuple[Convention, np.ndarray]:
    """The allowed convention whose distribution is nearest to the counts, and the distribution."""

    def ranked() -> Iterator[tuple[float, int]]:
        for i, convention in enumerate(allowed):
            yield float(np.abs(counts / counts.sum() - of_case(case, convention)).sum()), i

    best = allowed[min(ranked())[1]]
    return best, of_case(case, best)
