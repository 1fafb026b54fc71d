"""Contrastive search in plain Python, as equation 5 of Su et al. 2022 states it."""

import numpy as np


def search(next_logits, hidden_of, prompt, *, alpha, top_k, length, ends=(), change=None):
    """The tokens after a prompt.

    Args:
      next_logits: ``path -> [V]``, the logits after a path.
      hidden_of: ``path -> [D]``, the hidden state of the last token of a path.
      prompt: token ids.
      alpha, top_k, length: as for the strategy.
      ends: end tokens.
      change: ``(logits, path) -> logits``, the transform.

    Returns:
      The tokens, and for each the gap between the best two candidates.
    """
    path, gaps = list(prompt), []
    for _ in range(length):
        logits = np.asarray(next_logits(path), np.float64)
        logits = logits if change is None else change(logits, path)
        if np.all(logits == -np.inf):
            break
        prob = np.exp(logits - logits.max())
        prob /= prob.sum()
        candidates = np.argsort(-prob, kind="stable")[:top_k]
        candidates = [c for c in candidates if prob[c] > 0]
        context = [unit(hidden_of(path[: i + 1])) for i in range(len(path))]
        scores = [
            (1 - alpha) * prob[c] - alpha * max(unit(hidden_of([*path, c])) @ h for h in context)
            for c in candidates
        ]
        ranked = sorted(scores, reverse=True)
        gaps.append(ranked[0] - ranked[1] if len(ranked) > 1 else np.inf)
        token = int(candidates[int(np.argmax(scores))])
        path.append(token)
        if token in ends:
            break
    return path[len(prompt) :], gaps


def unit(hidden):
    hidden = np.asarray(hidden, np.float64)
    return hidden / np.linalg.norm(hidden)
