"""The detection of keyed watermarks in texts, with exact p-values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from decoding_jax import fields
from decoding_jax.ops.jit import jit
from decoding_jax.transforms.watermarks import (
    GumbelWatermark,
    TournamentWatermark,
    context_bits,
)


class Detection(NamedTuple):
    """How much texts look as if they were marked.

    Attributes:
      score: float64 ``[...]``, the sum over the tokens that count.
      num_tokens: int64 ``[...]``, n, the number of these tokens: those whose ``context`` earlier
        tokens lie in the text, and have not occurred in it before another token.
      p_value: float64 ``[...]``, the probability of this score or a larger one for a text that does
        not depend on the key; 1 where no token counts.
    """

    score: np.ndarray
    num_tokens: np.ndarray
    p_value: np.ndarray


def detect(
    tokens: ArrayLike, length: ArrayLike, watermark: GumbelWatermark | TournamentWatermark
) -> Detection:
    """Tests whether texts were marked with a watermark's key.

    No model is needed. The pseudorandom numbers of the tokens that count are recomputed. For a text
    that does not depend on the key they are independent, whatever the text:

    - Gumbel: the score is the sum of ``-log(1 - r)``, where ``r = exp(-e)`` for the exponential
      variable e of the token, as Aaronson proposed. Without a mark it follows Gamma(n, 1).
    - Tournament: the score is the number of layers, over all tokens, whose bit is 1. Without a mark
      it follows Binomial(n m, 1/2). As it is discrete, p-values are at or above uniform ones.

    Args:
      tokens: int ``[..., L]``, such as ``DecodeOutput.tokens``, without prompts.
      length: int ``[...]``, the number of tokens of each text.
      watermark: the transform. If it has a key for each row, that is the first axis of ``tokens``.

    Raises:
      ValueError: for tokens and lengths whose shapes do not fit, lengths that are not from 0 to L,
        or another watermark.

    Example:
      >>> from decoding_jax import transforms
      >>> text = np.arange(100)
      >>> found = detect(text, 100, transforms.gumbel_watermark(key=1234))
      >>> int(found.num_tokens), bool(found.p_value > 0.01)
      (96, True)
    """
    from scipy import special  # Its import takes a tenth of that of the package.

    tokens, length = np.asarray(tokens, np.int32), np.asarray(length)
    if not isinstance(watermark, (GumbelWatermark, TournamentWatermark)):
        raise fields.error("watermark", "transforms.gumbel_watermark(...) or such", watermark)
    if tokens.ndim < 1 or length.shape != tokens.shape[:-1]:
        expected = f"one length for each of the texts {list(tokens.shape[:-1])}"
        raise fields.error("length", expected, length)
    if length.size and not 0 <= length.min() <= length.max() <= tokens.shape[-1]:
        raise fields.error("length", f"numbers from 0 to L, which is {tokens.shape[-1]}", length)
    secret = np.asarray(watermark.key)
    if secret.ndim > 1 and secret.shape[:1] != length.shape[:1]:
        expected = f"one key, or one for each of the texts {list(length.shape)}"
        raise fields.error("watermark.key", expected, secret)
    h = watermark.context
    places = max(tokens.shape[-1] - h, 0)
    shape = (*length.shape, places)
    if not places:
        return Detection(np.zeros(length.shape), np.zeros(length.shape, int), np.ones(length.shape))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, h, axis=-1)[..., :-1, :]
    secret = secret.reshape(secret.shape[:-1] + (1,) * (len(shape) + 1 - secret.ndim) + (2,))
    bits = np.asarray(
        _bits(np.broadcast_to(secret, (*shape, 2)), np.ascontiguousarray(windows), tokens[..., h:])
    )
    counts = _are_first(windows) & (np.arange(h, h + places) < length[..., None])
    count = counts.sum(-1)
    if isinstance(watermark, GumbelWatermark):
        score = (-np.log(_uniform(bits)) * counts).sum(-1)
        p_value = special.gammaincc(np.maximum(count, 1), score)
    else:
        ones = (_as_int(bits)[..., None] >> np.arange(watermark.layers, dtype=np.uint64)) & 1
        score = (ones.sum(-1) * counts).sum(-1).astype(np.float64)
        p_value = special.bdtrc(score - 1, np.maximum(count * watermark.layers, 1), 0.5)
    return Detection(score, count, np.where(count > 0, p_value, 1.0))


_bits: Any = jit(context_bits, ())


def _uniform(bits: np.ndarray) -> np.ndarray:
    """The uniform numbers above 0 whose exponential variables are ``random.exponential``'s."""
    high, low = bits[..., 0].astype(np.float64), bits[..., 1].astype(np.float64)
    return high * 2.0**-32 + (low + 0.5) * 2.0**-64


def _as_int(bits: np.ndarray) -> np.ndarray:
    """64 bits as a uint64, in the order of ``transforms.watermarks.bit_at``."""
    return bits[..., 0].astype(np.uint64) | (bits[..., 1].astype(np.uint64) << np.uint64(32))


def _are_first(windows: np.ndarray) -> np.ndarray:
    """Which windows ``[..., n, h]`` equal no earlier one of their text, bool ``[..., n]``."""
    *texts, places = windows.shape[:-1]
    text = np.repeat(np.arange(int(np.prod(texts))), places)
    keys = np.column_stack([text, windows.reshape(-1, windows.shape[-1])])
    _, first = np.unique(keys, axis=0, return_index=True)  # the first of equal ones
    found = np.zeros(len(keys), bool)
    found[first] = True
    return found.reshape(windows.shape[:-1])
