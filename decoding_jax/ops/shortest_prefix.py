"""The shortest prefix of an order of the vocabulary that holds a given mass, without sorting.

The nucleus is such a prefix of the order by probability, and so are the k most probable tokens, if
each token has mass 1. Masses are integers, so every sum is exact, and the result does not depend on
how a sum is split, batched or sharded.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.ops import gpu, vocab
from decoding_jax.ops.gather import gather_last

Array = jax.Array

# Tied tokens are first counted by blocks of this size, then one by one within a block.
_BLOCK = 512
# Cuts at equal distances converge fast on typical logits. Cuts at equal numbers of floats converge
# on any logits, and are used after this many steps.
_STEPS_BY_VALUE = 8
# Each round of a loop of unknown length waits on a GPU until the host has read its condition. There
# a bracket is cut in eight at equal numbers of floats, as often as the widest needs: of n floats,
# n / 8 + 7 are left at most, and one of up to eight.
_STEPS_ON_GPU = 12


def shortest_prefix(
    order: Array,
    masses: tuple[Array, ...],
    target: tuple[Array, ...],
    *,
    hint: Array | None = None,
) -> Array:
    """Mask of the shortest prefix of an order of the vocabulary whose mass reaches ``target``.

    Tokens are added in descending ``order``, equal ones by lowest id first. Each step cuts a
    bracket around the last kept token in four, by one pass of masked sums, until the bracket holds
    one token or only equal ones. That takes about ten steps for typical logits, and at most 25. A
    GPU always takes 12 steps, and cuts in eight.

    Args:
      order: float32 ``[..., V]``, no NaN.
      masses: one int32 ``[..., V]``, or the two limbs of ``integer_masses``; 0 and above, with
        sums below ``2**31``.
      target: int32 ``[...]``, one for each limb. A target above the total keeps every token whose
        mass is positive.
      hint: float32 ``[...]``, a likely lower bound of the ``order`` of the last kept token. A good
        hint saves steps; a wrong one does not change the result.

    Returns:
      bool ``[..., V]``.

    Example:
      >>> order = jnp.array([1.0, 3.0, 2.0, 2.0])
      >>> shortest_prefix(order, (jnp.array([1, 1, 1, 1]),), (jnp.array(2),))
      Array([False,  True,  True, False], dtype=bool)
    """
    order = jnp.where(order == 0, 0.0, order)  # -0.0 would have another key
    bits = vocab.low_bits(order.shape[-1])
    total = vocab.sums(*masses)
    enough = _reaches(total, target, bits)
    target = tuple(
        jnp.where(enough, t, whole)
        for t, whole in zip(target, vocab.carry(total, bits), strict=True)
    )
    key = _key(order)

    low, high, number = _bracket(order, key, masses, target, hint, bits)
    everything = jnp.full_like(low, order.shape[-1])
    last = gpu.cond(
        jnp.any(number > 1),
        lambda: jnp.where(number > 1, _last_tied(key, low, masses, target, bits), everything),
        lambda: everything,
    )
    low, high, last = low[..., None], high[..., None], last[..., None]
    return (key >= high) | ((key >= low) & (vocab.token_ids(order) <= last))


def _bracket(
    order: Array,
    key: Array,
    masses: tuple[Array, ...],
    target: tuple[Array, ...],
    hint: Array | None,
    bits: int,
) -> tuple[Array, Array, Array]:
    """The bracket around the last token's key: its least key, the key above it, its tokens.

    The number of tokens is above 1 only where all of them have the least key.
    """

    def from_keys(*least: Array) -> list[tuple[Array, ...]]:
        """For each key, the mass and the number of the tokens at or above it."""
        above = [key >= k[..., None] for k in least]
        parts = [(*(jnp.where(a, m, 0) for m in masses), a.astype(jnp.int32)) for a in above]
        flat = vocab.sums(*(p for part in parts for p in part))
        width = len(masses) + 1
        return [flat[i : i + width] for i in range(0, len(flat), width)]

    def wide(state: tuple) -> Array:
        _, low, high, at_low, at_high = state
        return jnp.any((at_low[-1] - at_high[-1] > 1) & (high - low != 1))

    def narrow(state: tuple, pieces: int = 4) -> tuple:
        step, low, high, at_low, at_high = state
        cuts = _cuts(low, high, step < _STEPS_BY_VALUE, pieces)
        for cut, at_cut in zip(cuts, from_keys(*cuts), strict=True):
            reached = _reaches(at_cut[:-1], target, bits)
            low, *at_low = _select(reached, (cut, *at_cut), (low, *at_low))
            high, *at_high = _select(~reached & (cut < high), (cut, *at_cut), (high, *at_high))
        return step + 1, low, high, tuple(at_low), tuple(at_high)

    # Invariant: the tokens at or above `low` reach the target, those at or above `high` do not.
    high = _key(jnp.max(order, axis=-1)) + 1
    smallest = jnp.min(jnp.where(order > -jnp.inf, order, jnp.inf), axis=-1)
    low = jnp.minimum(_key(smallest), high - 1)
    guess = low if hint is None else jnp.clip(_key(hint), low, high - 1)
    at_low, at_guess = from_keys(low, guess)
    good = _reaches(at_guess[:-1], target, bits)
    low, *at_best = _select(good, (guess, *at_guess), (low, *at_low))
    nothing = tuple(jnp.zeros_like(low) for _ in at_low)
    state = (jnp.zeros((), jnp.int32), low, high, tuple(at_best), nothing)

    by_number = (jnp.full_like(state[0], _STEPS_BY_VALUE), *state[1:])
    _, low, high, at_low, at_high = gpu.either(
        lambda: lax.fori_loop(0, _STEPS_ON_GPU, lambda _, state: narrow(state, 8), by_number),
        lambda: lax.while_loop(wide, narrow, state),
    )
    return low, high, at_low[-1] - at_high[-1]


def _cuts(low: Array, high: Array, by_value: Array, pieces: int) -> list[Array]:
    """Keys that cut a bracket in pieces, all inside it unless it has only one key left."""
    lowest, highest = _value(low), _value(high - 1)
    # The shift is unsigned because the whole range of keys does not fit an int32.
    shift = pieces.bit_length() - 1
    size = jnp.maximum(lax.shift_right_logical(high - low, jnp.full_like(low, shift)), 1)
    cuts = []
    for i in range(1, pieces):
        value = lowest + (highest - lowest) * (i / pieces)
        cut = jnp.where(by_value, _key(value), low + size * i)
        cuts.append(jnp.minimum(jnp.maximum(cut, low + 1), high - 1))
    return cuts


def _select(condition: Array, yes: tuple[Array, ...], no: tuple[Array, ...]) -> list[Array]:
    return [jnp.where(condition, y, n) for y, n in zip(yes, no, strict=True)]


def _first_reaching(
    parts: tuple[Array, ...], before: tuple[Array, ...], target: tuple[Array, ...], bits: int
) -> tuple[Array, tuple[Array, ...]]:
    """Finds the first part at which ``before`` plus the running sum reaches the target.

    Returns the index of that part (the number of parts if there is none) and the mass before it.
    """
    ends = tuple(
        lax.cumsum(p, axis=p.ndim - 1) + b[..., None] for p, b in zip(parts, before, strict=True)
    )
    below = ~_reaches(ends, tuple(t[..., None] for t in target), bits)
    index = jnp.sum(below, axis=-1, dtype=jnp.int32)
    clipped = jnp.minimum(index, below.shape[-1] - 1)
    starts = tuple(e - p for e, p in zip(ends, parts, strict=True))
    return index, tuple(gather_last(start, clipped) for start in starts)


def _last_tied(
    key: Array, least: Array, masses: tuple[Array, ...], target: tuple[Array, ...], bits: int
) -> Array:
    """The last id that is kept among the tokens of key ``least``, which are added by id."""
    padding = -key.shape[-1] % _BLOCK

    def blocks(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
        return x.reshape(*x.shape[:-1], -1, _BLOCK)

    above = vocab.sums(*(jnp.where(key > least[..., None], m, 0) for m in masses))
    tied = tuple(blocks(jnp.where(key == least[..., None], m, 0)) for m in masses)

    block, before = _first_reaching(vocab.sums(*tied), above, target, bits)
    clipped = jnp.minimum(block, tied[0].shape[-2] - 1)[..., None, None]
    within = tuple(jnp.take_along_axis(t, clipped, axis=-2)[..., 0, :] for t in tied)
    return block * _BLOCK + _first_reaching(within, before, target, bits)[0]


def _key(x: Array) -> Array:
    """An int32 whose order is that of the float32."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _value(key: Array) -> Array:
    """The float32 whose key is given."""
    return lax.bitcast_convert_type(jnp.where(key < 0, key ^ 0x7FFFFFFF, key), jnp.float32)


def _reaches(limbs: tuple[Array, ...], target: tuple[Array, ...], bits: int) -> Array:
    """Returns whether a mass is at least ``target``, whose low limb has no overflow."""
    limbs = vocab.carry(limbs, bits)
    if len(limbs) == 1:
        return limbs[0] >= target[0]
    return (limbs[0] > target[0]) | ((limbs[0] == target[0]) & (limbs[1] >= target[1]))
