"""Measures of how different a set of texts is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def words(text: str) -> list[str]:
    """The words of a text in lower case, split at white space."""
    return text.lower().split()


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """The n-grams of a list of words."""
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def distinct_n(texts: Iterable[str], n: int) -> float:
    """The number of distinct n-grams divided by the number of words, from 0 to 1.

    Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models",
    scale by the number of generated tokens, as do Xu et al. 2022 ("Best-k Search Algorithm for
    Neural Text Generation") and their program. A text of m words has m - n + 1 n-grams, so for n
    of 2 and above the value stays below 1 even if no n-gram is repeated.

    Args:
      texts: the completions of one input.
      n: 1 or more.

    Returns:
      The ratio over all texts together; 0 if they contain no words.

    Raises:
      ValueError: for an n below 1.

    Example:
      >>> distinct_n(["the cat sat", "the cat ran"], 2)
      0.5
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more, got {n}")
    split = [words(text) for text in texts]
    distinct = {gram for tokens in split for gram in ngrams(tokens, n)}
    return len(distinct) / max(sum(map(len, split)), 1)


def num_unique(texts: Iterable[str]) -> int:
    """The number of different texts.

    It compares texts, not tokens, because different token sequences can spell the same text.

    Example:
      >>> num_unique(["a b", "a b", "b a"])
      2
    """
    return len(set(texts))
