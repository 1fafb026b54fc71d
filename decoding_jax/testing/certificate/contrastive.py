"""Contrastive search in plain Python on a table, as equation 5 of Su et al. 2022 states it."""

from __future__ import annotations

import numpy as np

from decoding_jax.base import Prompt, Stop, Transform
from decoding_jax.testing.certificate.enumeration import (
    Distribution,
    exact_log_softmax,
    outcomes,
    row_stop,
    stepper,
)
from decoding_jax.testing.table_lm import CHECKSUMS, TableLM

ALPHA, TOP_K = 0.6, 3
"""The settings of the certificate's contrastive search."""


def contrastive_path(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Distribution:
    """The outcome of a contrastive search with ``ALPHA`` and ``TOP_K``.

    Args as for ``enumerate_distribution``. The result has one outcome, K = 1.
    """
    rule = row_stop(stop or Stop(), row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule)
    features = np.asarray(model.features, np.float64)
    path = [int(t) for t in np.asarray(prompt.tokens)[row, : int(prompt.length[row])]]
    start, log_prob, finished = len(path), 0.0, False
    context = [_hidden(features, path[: i + 1]) for i in range(start)]
    while len(path) - start < rule.limit and not finished:
        raw, allowed = step([tuple(path[start:])])
        if np.all(allowed == -np.inf):
            break
        prob = np.exp(exact_log_softmax(allowed)[0])
        likeliest = [int(t) for t in np.argsort(-prob, kind="stable")[:TOP_K] if prob[t] > 0]
        hidden = [_hidden(features, [*path, token]) for token in likeliest]
        score = [
            (1 - ALPHA) * prob[token] - ALPHA * max(h @ earlier for earlier in context)
            for token, h in zip(likeliest, hidden, strict=True)
        ]
        chosen = int(np.argmax(score))
        path.append(likeliest[chosen])
        context.append(hidden[chosen])
        log_prob += float(exact_log_softmax(raw)[0, path[-1]])
        finished = rule.finishes(path[start:])
    return outcomes([(tuple(path[start:]), finished, 1.0, log_prob)], max_new_tokens)


def _hidden(features: np.ndarray, path: list[int]) -> np.ndarray:
    """The hidden state of the last token of a path, divided by its norm."""
    weighted = [(token % 10 + 1) * (place % 10 + 1) for place, token in enumerate(path)]
    hidden = features[sum(weighted) % CHECKSUMS, path[-1]]
    return hidden / np.linalg.norm(hidden)
