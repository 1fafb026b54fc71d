"""How confident a model is of a text, by the distributions of its tokens: weights of votes.

The figures are those of ``with_scores`` (``TokenScores``), and need no further call of the model.
``choice.majority`` takes them as weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def of_tokens(top_log_probs: ArrayLike) -> np.ndarray:
    """The confidence in each token: minus the mean log-probability of the k most probable ones.

    Fu, Wang, Tian & Zhao (2025), "Deep think with confidence", arXiv:2508.15260, equation 2.

    Args:
      top_log_probs: ``[..., L, k]``, of ``TokenScores``, with k alternatives.

    Returns:
      float64 ``[..., L]``, in nats: at least log k, and infinite where fewer than k tokens have any
      probability.

    Raises:
      ValueError: for no alternatives.

    Example:
      >>> of_tokens(np.log([[0.5, 0.5], [0.9, 0.1]])).round(2).tolist()
      [0.69, 1.2]
    """
    values = np.asarray(top_log_probs, np.float64)
    if values.ndim < 1 or not values.shape[-1]:
        raise ValueError(
            f"top_log_probs: expected [..., L, k] with k of 1 or more, got {list(values.shape)}"
        )
    return -values.mean(-1)


def of_groups(confidence: ArrayLike, window: int) -> np.ndarray:
    """The running means of the confidence in the tokens of a text.

    A trace is as good as its worst part: its lowest group, ``of_groups(...).min()``, is a weight of
    a vote, as is the last one, of the text's end. A group whose mean is below a threshold is where
    ``models.confident`` ends a text with the same window and number of alternatives.

    Args:
      confidence: ``[..., L]``, from ``of_tokens``, of texts of L tokens, 1 or more.
      window: the number of tokens of a group. Shorter texts are one group.

    Returns:
      float64 ``[..., max(L - window, 0) + 1]``.

    Raises:
      ValueError: for no tokens, or a window below 1.

    Example:
      >>> of_groups([1.0, 3.0, 5.0], 2).tolist(), of_groups([1.0, 3.0], 5).tolist()
      ([2.0, 4.0], [2.0])
    """
    values = np.asarray(confidence, np.float64)
    if not values.ndim or not values.shape[-1]:
        raise ValueError(
            f"confidence: expected [..., L] with L of 1 or more, got {list(values.shape)}"
        )
    if window < 1:
        raise ValueError(f"window: expected an int of 1 or more, got {window}")
    size = min(window, values.shape[-1])
    return np.lib.stride_tricks.sliding_window_view(values, size, axis=-1).mean(-1)


def borda_votes(confidence: Sequence[float], power: float = 1.0) -> np.ndarray:
    """Votes by rank: of N samples, the most confident one has N votes, to a power, the last one 1.

    Kang, Zhao & Song (2025), "Scalable best-of-N selection for large language models via
    self-certainty", arXiv:2502.18581, section 4.3. Their confidence in a text is its mean
    ``TokenScores.self_certainty``.

    Args:
      confidence: of each of N samples. Equal ones rank as they are ordered.
      power: 0 gives every sample one vote.

    Returns:
      float64 ``[N]``.

    Example:
      >>> borda_votes([0.5, 2.0, 1.0]).tolist()
      [1.0, 3.0, 2.0]
    """
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    votes = np.empty(len(order))
    votes[order] = np.arange(len(order), 0, -1.0) ** power
    return votes
