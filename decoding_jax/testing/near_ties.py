"""The first differences between two decodes of one model, and the margins of those choices.

In float32, matrix products of different shapes round differently, by about 1e-5 in a logit. Two
correct programs can therefore choose different tokens, but only where the choice was nearly
undecided. To tell that from a fault, a third program computes the logits along the text up to the
first difference, and from them the margin of the choice. If every program's logits are within e of
these, then

- in *greedy* decoding, the token of each program is within 2e of the largest logit;
- in decoding *by code*, the probability of any event after t tokens is within t e / 2. The lane's
  point is within that distance of the interval of each program's token, on the line of codes while
  the code is carried, and on the line of the fresh bits after that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import codes
from decoding_jax.base import DecodeOutput, LanguageModel, Prefix, Prompt, Transform
from decoding_jax.ops import random, uint64
from decoding_jax.ops.logits import clean


class Difference(NamedTuple):
    """The first token in which two decodes of a lane differ.

    Attributes:
      row: the index of the row.
      lane: the index of the lane.
      position: the index of the new token.
      tokens: the token of each decode; -1 for a text that has ended.
      margin: the error in the choice that would make both decodes correct, in logits for greedy
        decoding and in probability for decoding by code. It is infinite if a text has ended.
    """

    row: int
    lane: int
    position: int
    tokens: tuple[int, int]
    margin: float


def greedy_differences(
    model: LanguageModel, prompt: Prompt, one: DecodeOutput, other: DecodeOutput
) -> list[Difference]:
    """Finds the lanes in which two greedy decodes without transforms differ.

    Args:
      model: the model of both.
      prompt: the prompts of both.
      one: a decode with tokens ``[B, W, L]``.
      other: another of the same shape.

    Example:
      >>> from decoding_jax import strategies
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> best = strategies.greedy(model, prompt, max_new_tokens=3)
      >>> greedy_differences(model, prompt, best, best)
      []
    """
    found = []
    for (row, lane, position, tokens), logits in _first_differences(model, prompt, one, other):
        margin = float("inf")
        if min(tokens) >= 0:
            margin = float(logits[position].max() - logits[position][list(tokens)].min())
        found.append(Difference(row, lane, position, tokens, margin))
    return found


def code_differences(
    model: LanguageModel,
    prompt: Prompt,
    key: Any,
    one: DecodeOutput,
    other: DecodeOutput,
    points: str | codes.Points = "lattice",
    transform: Transform | None = None,
) -> list[Difference]:
    """Finds the lanes in which two arithmetic samplings differ, by one code in the order of ids.

    Args:
      model: the model of both.
      prompt: the prompts of both.
      key: the key of both, as for ``arithmetic_sample``.
      one: a decode with tokens ``[B, N, L]``.
      other: another of the same shape.
      points: the points of both.
      transform: the transform of both. Margins bound errors in the transformed logits.
    """
    batch, lanes, length = one.tokens.shape
    code = codes.start(points, random.row_keys(key, batch), lanes)
    bits = jax.vmap(lambda t: random.bits_at(code.keys, t), out_axes=2)(
        jnp.arange(length, dtype=jnp.int32)
    )
    point, fresh = (uint64.to_ints(x).astype(np.float64) / 2.0**64 for x in (code.offset, bits))
    found = []
    for (row, lane, position, tokens), logits in _first_differences(
        model, prompt, one, other, transform
    ):
        margin = float("inf")
        if min(tokens) >= 0:
            path = np.asarray(one.tokens[row, lane, :position])
            margin = _code_margin(
                logits, path, tokens, point[row, lane], fresh[row, lane, position], lanes
            )
        found.append(Difference(row, lane, position, tokens, margin))
    return found


def _code_margin(
    logits: np.ndarray,
    path: np.ndarray,
    tokens: tuple[int, int],
    point: float,
    fresh: float,
    lanes: int,
) -> float:
    """The distance of the lane's point from the farther of two tokens' intervals.

    Args:
      logits: float64 ``[L, V]``.
      path: the tokens before.
      tokens: the two.
      point: the lane's, in [0, 1).
      fresh: the bits of this position, in [0, 1).
      lanes: N.
    """
    start, width, doubt = 0.0, 1.0, float("inf")
    for step_logits, token in zip(logits, path, strict=False):
        # A prefix of probability 1 / N may keep its code in one program and not in the other.
        doubt = min(doubt, abs(width - 1 / lanes))
        if width * lanes <= 1:
            break
        low, high = _interval(step_logits, token)
        start, width = start + width * low, width * (high - low)
    doubt = min(doubt, abs(width - 1 / lanes))
    if width * lanes <= 1:
        point, start, width = fresh, 0.0, 1.0
    outside = 0.0
    for token in tokens:
        low, high = (start + width * edge for edge in _interval(logits[len(path)], token))
        outside = max(outside, low - point, point - high)
    return min(outside, doubt)


def _interval(logits: np.ndarray, token: int) -> tuple[float, float]:
    """A token's interval in [0, 1), in the order of the vocabulary."""
    weights = np.exp(logits - logits.max())
    low = weights[:token].sum() / weights.sum()
    return float(low), float(low + weights[token] / weights.sum())


def _first_differences(
    model: LanguageModel,
    prompt: Prompt,
    one: DecodeOutput,
    other: DecodeOutput,
    transform: Transform | None = None,
) -> list[tuple[tuple[int, int, int, tuple[int, int]], np.ndarray]]:
    """Every lane's first difference, with the logits float64 ``[L, V]`` along the first text."""
    texts = [_text(output) for output in (one, other)]
    differ = texts[0] != texts[1]
    lanes = [np.flatnonzero(row) for row in differ.any(-1)]
    max_lanes = max(map(len, lanes), default=0)
    if not max_lanes:
        return []
    # Only lanes that differ, padded to the largest number that a row has.
    picked = np.stack(
        [np.resize(np.append(row, 0)[: max(len(row), 1)], max_lanes) for row in lanes]
    )
    tokens = np.take_along_axis(texts[0], picked[..., None], axis=1)
    logits = _logits_along(model, prompt, jnp.asarray(np.maximum(tokens, 0)), transform)
    found = []
    for row, members in enumerate(lanes):
        for place, lane in enumerate(members):
            position = int(np.argmax(differ[row, lane]))
            pair = tuple(int(text[row, lane, position]) for text in texts)
            where = (row, int(lane), position, pair)
            found.append((where, np.asarray(logits[row, place], np.float64)))
    return found  # type: ignore[return-value]


def _text(output: DecodeOutput) -> np.ndarray:
    """int ``[B, W, L]``: the tokens, -1 after the end."""
    tokens, length = np.asarray(output.tokens), np.asarray(output.length)
    return np.where(np.arange(tokens.shape[-1]) < length[..., None], tokens, -1)


@jax.jit
def _logits_along(model: Any, prompt: Prompt, tokens: Any, transform: Transform | None) -> Any:
    """The logits that each of ``tokens [B, M, L]`` was chosen from: ``[B, M, L, V]``."""
    first, cache = model.prefill(*prompt, lanes=tokens.shape[1], slots=tokens.shape[2])
    following, _ = model.extend(cache, tokens, 0)
    shape = (*tokens.shape[:2], 1, following.logits.shape[-1])
    first = jnp.broadcast_to(first.logits, shape)
    logits = jnp.concatenate([first, following.logits[:, :, :-1]], axis=2)
    if transform is None:
        return logits
    length = jnp.broadcast_to(
        jnp.arange(tokens.shape[2], dtype=jnp.int32)[None, None], tokens.shape
    )
    paths = jnp.broadcast_to(tokens[:, :, None], (*tokens.shape, tokens.shape[2]))
    return transform(clean(logits), Prefix(*prompt, paths, length))
