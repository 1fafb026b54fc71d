"""How different a set of texts is: of one input, or of many taken together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def words(text: str) -> list[str]:
    """The words of a text: what stands between its spaces, in lower case."""
    return text.lower().split()


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Every n neighbours of a list of words."""
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def distinct_n(texts: Iterable[str], n: int) -> float:
    """How many of all n-grams over words are different ones: from 0 (none there are) to 1.

    Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models".

    Args:
      texts: the completions of one input.
      n: 1 and above.

    Raises:
      ValueError: for an n below 1.

    Example:
      >>> distinct_n(["the cat sat", "the cat ran"], 2)
      0.75
    """
    if n < 1:
        raise ValueError(f"n: got {n}; takes 1 or more")
    found = [gram for text in texts for gram in ngrams(words(text), n)]
    return len(set(found)) / max(len(found), 1)


def num_unique(texts: Iterable[str]) -> int:
    """How many different texts there are: after decoding, where tokens may spell one text twice.

    Example:
      >>> num_unique(["a b", "a b", "b a"])
      2
    """
    return len(set(texts))
