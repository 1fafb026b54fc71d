"""Every sequence of a table model with its exact probability, in float64 NumPy and without a cache.

This code follows the definitions and shares nothing with the strategies: a path is a tuple of ints,
and a distribution is a list of paths with probabilities. At each position of a sequence with n new
tokens so far,

1. the model gives raw logits;
2. end tokens are banned (-inf) while n < ``min_new_tokens``;
3. the transform is applied;
4. a token is chosen, and its raw log-softmax is added to the sequence's log-probability.

A sequence is finished by an end token, or by a stop sequence once it has ``min_new_tokens``. It
stops unfinished at its row's length limit, or where no token is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Prefix, Prompt, Stop, Transform
from decoding_jax.ops.jit import jit
from decoding_jax.testing.table_lm import CHECKSUMS, TableLM

CHUNK = 64
"""The number of prefixes in each call of a transform, so that few shapes are compiled."""


class Distribution(NamedTuple):
    """All K outcomes of one row. Their probabilities sum to 1.

    Attributes:
      tokens: int32 ``[K, L]``, 0 after the end.
      length: int32 ``[K]``.
      finished: bool ``[K]``.
      prob: float64 ``[K]``, of the transformed distribution.
      log_prob: float64 ``[K]``, in nats, under the model before any transform.
    """

    tokens: np.ndarray
    length: np.ndarray
    finished: np.ndarray
    prob: np.ndarray
    log_prob: np.ndarray


Outcome = tuple[tuple[int, ...], bool, float, float]
"""The tokens of one sequence, whether it is finished, its probability and its ``log_prob``."""


def outcomes(sequences: Sequence[Outcome], max_new_tokens: int) -> Distribution:
    """Arranges K outcomes as arrays, with tokens ``[K, L]`` for L = ``max_new_tokens``."""
    padded = np.zeros((len(sequences), max_new_tokens), np.int32)
    for k, (tokens, *_) in enumerate(sequences):
        padded[k, : len(tokens)] = tokens
    return Distribution(
        tokens=padded,
        length=np.array([len(tokens) for tokens, *_ in sequences], np.int32),
        finished=np.array([finished for _, finished, _, _ in sequences], bool),
        prob=np.array([prob for _, _, prob, _ in sequences], np.float64),
        log_prob=np.array([log_prob for *_, log_prob in sequences], np.float64),
    )


class RowStop(NamedTuple):
    """The stop conditions of one row, as plain Python."""

    eos_ids: frozenset[int]
    sequences: tuple[tuple[int, ...], ...]
    min_new_tokens: int
    limit: int

    def finishes(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these new tokens finishes the text."""
        if tokens[-1] in self.eos_ids:
            return True
        return len(tokens) >= self.min_new_tokens and any(
            tuple(tokens[-len(s) :]) == s for s in self.sequences
        )


def row_stop(stop: Stop, row: int, max_new_tokens: int) -> RowStop:
    """The stop conditions of one row of a batch."""

    def of_row(value: Any, plain_rank: int) -> np.ndarray:
        value = np.asarray(value)
        return value[row] if value.ndim > plain_rank else value

    sequences = np.asarray(stop.sequences)
    limit = max_new_tokens
    if stop.max_new_tokens is not None:
        limit = min(limit, int(of_row(stop.max_new_tokens, 0)))
    ends = () if stop.eos_ids is None else stop.eos_ids
    rows = of_row(sequences, 2) if sequences.size else ()
    return RowStop(
        eos_ids=frozenset(int(e) for e in of_row(ends, 1).ravel() if e >= 0),
        sequences=tuple(s for s in (tuple(int(t) for t in r if t >= 0) for r in rows) if s),
        min_new_tokens=int(of_row(stop.min_new_tokens, 0)),
        limit=limit,
    )


def path_logits(model: TableLM, path: Sequence[int]) -> np.ndarray:
    """The model's raw logits ``[V]`` after a path (prompt and new tokens), without a cache.

    Example:
      >>> import jax
      >>> model = TableLM.random(jax.random.key(0), 3)
      >>> path_logits(model, [2, 0, 1]).shape
      (3,)
    """
    table = np.asarray(model.table)
    checksum = sum((t % 10 + 1) * (i % 10 + 1) for i, t in enumerate(path)) % CHECKSUMS
    before = path[-2] if len(path) > 1 else model.vocab_size
    return table[checksum, before, path[-1]]


def exact_log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities over the last axis in float64; all -inf where every token is banned.

    The reference for ``ops.logits.log_softmax``, in NumPy and in twice its precision.

    Example:
      >>> exact_log_softmax(np.array([0.0, 0.0, -np.inf])).round(4).tolist()
      [-0.6931, -0.6931, -inf]
    """
    logits = np.asarray(logits, np.float64)
    peak = np.max(logits, -1, keepdims=True)
    logits = logits - np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.sum(np.exp(logits), -1, keepdims=True))
    return logits - np.where(np.isfinite(total), total, 0.0)


def log_probs(model: TableLM, path: Sequence[int]) -> np.ndarray:
    """The log-probabilities ``[V]`` of the next token after a path: float64, in nats."""
    return exact_log_softmax(path_logits(model, path))


def enumerate_distribution(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
    normalized: bool = False,
) -> Distribution:
    """The exact distribution of one row's new tokens.

    Args:
      model: the table.
      prompt: all rows, so that settings per row keep their meaning.
      row: the index of the row.
      max_new_tokens: L.
      transform: as given to a strategy.
      stop: as given to a strategy.
      normalized: whether the transform is given log-probabilities, as in beam searches.

    Example:
      >>> import jax
      >>> model = TableLM.random(jax.random.key(0), 3)
      >>> prompt = Prompt(jnp.array([[2, 1]]), jnp.array([2]))
      >>> distribution = enumerate_distribution(model, prompt, max_new_tokens=2)
      >>> distribution.tokens.shape, round(float(distribution.prob.sum()), 6)
      ((9, 2), 1.0)
    """
    rule = row_stop(stop or Stop(), row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule, normalized)
    ended: list[Outcome] = []
    growing: list[tuple[tuple[int, ...], float, float]] = [((), 1.0, 0.0)]
    while growing:
        if len(growing[0][0]) >= rule.limit:
            ended += [(tokens, False, prob, log_prob) for tokens, prob, log_prob in growing]
            break
        raw, allowed = step([tokens for tokens, _, _ in growing])
        raw, chosen = exact_log_softmax(raw), np.exp(exact_log_softmax(allowed))
        grown = []
        for k, (tokens, prob, log_prob) in enumerate(growing):
            if not chosen[k].any():
                ended.append((tokens, False, prob, log_prob))
            for v in np.flatnonzero(chosen[k]):
                path = (*tokens, int(v))
                figures = (prob * float(chosen[k, v]), log_prob + float(raw[k, v]))
                if rule.finishes(path):
                    ended.append((path, True, *figures))
                else:
                    grown.append((path, *figures))
        growing = grown
    return outcomes(ended, max_new_tokens)


def greedy_path(
    model: TableLM,
    prompt: Prompt,
    row: int = 0,
    *,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Distribution:
    """The outcome of choosing the token with the largest probability, the lowest id among equals.

    Args and example as for ``enumerate_distribution``. The result has one outcome, K = 1.
    """
    rule = row_stop(stop or Stop(), row, max_new_tokens)
    step = stepper(model, prompt, row, max_new_tokens, transform, rule)
    tokens: list[int] = []
    log_prob, finished = 0.0, False
    while len(tokens) < rule.limit and not finished:
        raw, allowed = step([tuple(tokens)])
        if np.all(allowed == -np.inf):
            break
        tokens.append(int(np.argmax(allowed[0])))
        log_prob += float(exact_log_softmax(raw)[0, tokens[-1]])
        finished = rule.finishes(tokens)
    return outcomes([(tuple(tokens), finished, 1.0, log_prob)], max_new_tokens)


def top_sequences(distribution: Distribution, count: int) -> Distribution:
    """The ``count`` best outcomes by the model's log-probability; equals are in order of tokens."""
    order = np.lexsort((*distribution.tokens.T[::-1], -distribution.log_prob))[:count]
    return Distribution(*(field[order] for field in distribution))


_apply = jit(lambda transform, logits, prefix: transform(logits, prefix), ())


def stepper(
    model: TableLM,
    prompt: Prompt,
    row: int,
    width: int,
    transform: Transform | None,
    rule: RowStop,
    normalized: bool = False,
) -> Callable[[list[tuple[int, ...]]], tuple[np.ndarray, np.ndarray]]:
    """A function from K paths of equal length to raw and transformed logits, both ``[K, V]``.

    Args:
      model: the table.
      prompt: all rows.
      row: the index of the row.
      width: the size of the buffer of new tokens.
      transform: as given to a strategy.
      rule: the row's stop conditions.
      normalized: whether the transform is given log-probabilities, as in beam searches, instead of
        logits.
    """
    length = int(prompt.length[row])
    start = [int(t) for t in np.asarray(prompt.tokens)[row, :length]]
    rows = prompt.tokens.shape[0]

    def transformed(logits: np.ndarray, paths: list[tuple[int, ...]]) -> np.ndarray:
        """Transforms at most CHUNK paths: each is a lane of every row, and one row is read."""
        padded = np.zeros((CHUNK, logits.shape[-1]), np.float32)
        padded[: len(paths)] = logits
        tokens = np.zeros((CHUNK, max(width, 1)), np.int32)
        for k, path in enumerate(paths):
            tokens[k, : len(path)] = path
        prefix = Prefix(
            prompt=jnp.asarray(prompt.tokens, jnp.int32),
            prompt_length=jnp.asarray(prompt.length, jnp.int32),
            tokens=jnp.asarray(np.broadcast_to(tokens[:, None], (rows, CHUNK, 1, width))),
            length=jnp.full((rows, CHUNK, 1), len(paths[0]), jnp.int32),
        )
        block = jnp.asarray(np.broadcast_to(padded[:, None], (rows, CHUNK, 1, padded.shape[-1])))
        return np.asarray(_apply(transform, block, prefix))[row, : len(paths), 0]

    def step(paths: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
        raw = np.stack([path_logits(model, [*start, *path]) for path in paths])
        allowed = exact_log_softmax(raw).astype(np.float32) if normalized else raw.copy()
        if len(paths[0]) < rule.min_new_tokens:
            allowed[:, [e for e in rule.eos_ids if e < raw.shape[-1]]] = -np.inf
        if transform is not None:
            chunks = range(0, len(paths), CHUNK)
            parts = [transformed(allowed[c : c + CHUNK], paths[c : c + CHUNK]) for c in chunks]
            allowed = np.concatenate(parts)
        return raw, allowed

    return step
