"""Keyed watermarks that leave the distribution of one text unchanged: Gumbel and tournaments.

Both choose a token by pseudorandom numbers, which are a function of a secret key, of ``context``
tokens before it, and of the token. Averaged over keys, each token of a text follows the logits. If
a context has occurred in a text before, its numbers have been used, and would repeat a choice;
the token is then drawn as without a watermark, and so are the first ``context`` tokens. Thus every
token that is marked has fresh numbers, and the whole text has the distribution that it has without
a watermark. ``estimators.watermarks`` detects the marks.

Two texts with a context in common share its numbers under the same key, so they are not
independent. It is the distribution of each text by itself that is unchanged.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops import exact, random
from decoding_jax.ops.logits import clean, lowest_argmax, normaliser
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import history

Array = jax.Array

_LAYERS = "an int from 1 to 64"


class Watermark(Protocol):
    """What the detector needs: the secret ``key``, uint32 ``[2]`` or ``[B, 2]``, and h."""

    @property
    def key(self) -> Any: ...
    @property
    def context(self) -> int: ...


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class GumbelWatermark:
    """Chooses the token whose probability divided by a keyed exponential variable is largest.

    ``argmax_i p_i / e_i`` with ``e_i`` standard exponential is a draw from p, the Gumbel trick.
    Aaronson & Kirchner (2022), "Watermarking GPT outputs"; Kuditipudi, Thickstun, Hashimoto & Liang
    (2024), "Robust distortion-free watermarks for language models", arXiv:2307.15593. A marked
    token is a function of the text before it and of the key.

    All other logits of a marked token are -inf, so this is the last transform of a chain. Every
    strategy takes it: a draft and its target share the numbers, and choose the same token as often
    as they agree (``docs/watermarks.md``).

    Attributes:
      key: the secret, an int from 0 to ``2**64 - 1``, or a sequence of one for each row; kept as
        uint32 ``[2]`` or ``[B, 2]``, its high and low words.
      context: h, the number of tokens before a token that its numbers depend on, 1 or more. Static.

    Raises:
      ValueError: for a key or a context that is out of range.

    Example:
      >>> from decoding_jax import transforms
      >>> tokens, length = jnp.array([[[[1, 2]]]]), jnp.array([[[2]]])
      >>> prefix = Prefix(jnp.array([[0]]), jnp.array([1]), tokens, length)
      >>> mark = transforms.gumbel_watermark(key=4, context=2)
      >>> mark(jnp.zeros((1, 1, 1, 3)), prefix)[0, 0, 0]
      Array([-inf,   0., -inf], dtype=float32)
    """

    key: Any = fields.secret()
    context: int = fields.count(default=4)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        is_marked, bits = keyed_bits(self, logits, prefix)
        peak, _ = normaliser(logits)
        chosen = lowest_argmax(exact.exp(logits - peak) / random.exponential(bits))
        banned = is_marked[..., None] & (
            chosen[..., None] != history.positions(logits.shape[-1], 4)
        )
        return jnp.where(banned, -jnp.inf, logits)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class TournamentWatermark:
    """Raises the probability of tokens that win keyed tournaments: SynthID-Text, not distortionary.

    In each of m layers every token has a keyed bit g, and two tokens that are drawn by p compete:
    the one with the larger bit wins, or either where they are equal. The winner's distribution is
    ``p_i (1 + g_i - sum_j p_j g_j)``, the next layer's p. Dathathri et al. (2024), "Scalable
    watermarking for identifying large language model outputs", Nature 634, with two candidates in
    each match, which leaves a token's distribution unchanged, averaged over keys. Probabilities are
    computed instead of drawing ``2**m`` candidates. The strategy draws from the last layer's.

    It is the last transform of a chain.

    Attributes:
      key: as for ``gumbel_watermark``.
      layers: m, from 1 to 64, the number of layers. Static.
      context: as for ``gumbel_watermark``.

    Raises:
      ValueError: for a key, a context or a number of layers that is out of range.

    Example:
      >>> from decoding_jax import transforms
      >>> tokens, length = jnp.array([[[[1, 2]]]]), jnp.array([[[2]]])
      >>> prefix = Prefix(jnp.array([[0]]), jnp.array([1]), tokens, length)
      >>> mark = transforms.tournament_watermark(key=5, layers=1, context=2)
      >>> jnp.exp(mark(jnp.log(jnp.array([[[[0.5, 0.25, 0.25]]]])), prefix)).round(4)[0, 0, 0]
      Array([0.625 , 0.0625, 0.3125], dtype=float32)
    """

    key: Any = fields.secret()
    layers: int = fields.field(
        lambda name, value: _check_layers(name, value), expected=_LAYERS, static=True, default=30
    )
    context: int = fields.count(default=4)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        is_marked, bits = keyed_bits(self, logits, prefix)
        peak, total = normaliser(logits)
        probs = exact.exp(logits - peak) / jnp.maximum(total, 1.0)

        def layer(number: Array | int, factor: Array) -> Array:
            wins = bit_at(bits, number) == 1
            # 1 - sum_j p_j g_j, without a difference of numbers that may be nearly equal.
            losers = exact.sum_last(jnp.where(wins, 0.0, probs * factor))[..., None]
            return factor * jnp.where(wins, 1.0 + losers, losers)

        factor = jax.lax.fori_loop(0, self.layers, layer, jnp.ones_like(probs))
        return jnp.where(is_marked[..., None], logits + jnp.log(factor), logits)


def _check_layers(name: str, value: Any) -> int:
    try:
        layers = fields.as_count(name, value)
    except ValueError:
        layers = 0
    if not 1 <= layers <= 64:
        raise fields.error(name, _LAYERS, value)
    return layers


def bit_at(bits: Array, number: Array | int) -> Array:
    """Bit ``number``, from 0 to 63, of 64 bits: uint32 ``[..., 2]`` give uint32 ``[...]``.

    Example:
      >>> [int(bit_at(jnp.uint32([1, 2]), number)) for number in (0, 1, 32, 33)]
      [1, 0, 0, 1]
    """
    number = jnp.uint32(number)
    word = jnp.where(number < 32, bits[..., 0], bits[..., 1])
    return (word >> (number % 32)) & 1


def keyed_bits(watermark: Watermark, logits: Array, prefix: Prefix) -> tuple[Array, Array]:
    """Which tokens are marked, and the pseudorandom bits of every token that may be next.

    Args:
      watermark: its secret key and its context, h.
      logits: float32 ``[B, W, T, V]``.
      prefix: the texts before.

    Returns:
      bool ``[B, W, T]``: whether the text has h tokens, which it has not had before another token;
      and uint32 ``[B, W, T, V, 2]``.
    """
    h, size = watermark.context, prefix.tokens.shape[-1]
    shape = prefix.length.shape
    context, _ = history.last_tokens(prefix, h, include_prompt=False)
    start = history.positions(max(size - h, 0), 4)
    occurs = start + h < prefix.length[..., None]
    for i in range(h):
        occurs &= prefix.tokens[..., i : i + occurs.shape[-1]] == context[..., i : i + 1]
    secret = rows.table(watermark, "key", shape[0], 1, jnp.uint32)
    secret = jnp.broadcast_to(secret[:, None, None], (*shape, 2))
    tokens = jnp.broadcast_to(history.positions(logits.shape[-1], 4), (*shape, logits.shape[-1]))
    bits = context_bits(secret[..., None, :], context[..., None, :], tokens)
    return (prefix.length >= h) & ~occurs.any(-1), bits


def context_bits(secret: Array, context: Array, token: Array) -> Array:
    """The 64 pseudorandom bits of a token after a context, by the block cipher threefry.

    Args:
      secret: uint32 ``[..., 2]``.
      context: int32 ``[..., h]``.
      token: int32 ``[...]``; its last axis may be longer than that of the others, which is 1.

    Returns:
      uint32 ``[..., 2]``.
    """
    key = jax.random.wrap_key_data(secret, impl="threefry2x32")
    size = context.shape[-1]
    key = jax.lax.fori_loop(0, size, lambda i, key: _fold(key, context[..., i]), key)
    return jax.random.key_data(_fold(jnp.broadcast_to(key, token.shape), token))


def _fold(keys: Array, data: Array) -> Array:
    """Folds typed keys ``[...]`` with ``data [...]``, one by one."""
    fold = jax.random.fold_in
    for _ in range(keys.ndim):  # Nested vmaps, unlike a reshape, do not move sharded rows.
        fold = jax.vmap(fold)
    return fold(keys, data)
