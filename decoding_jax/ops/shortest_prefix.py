"""The shortest prefix of an order of the vocabulary that holds a given mass, without sorting.

The nucleus is such a prefix of the order by probability; the k most probable tokens are one with
mass 1 for each token. Masses are integers, so every sum is exact, and the result does not depend on
how a sum is split, batched or sharded.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.ops import vocab

Array = jax.Array

# Block of the vocabulary within which tied tokens are counted one by one.
_BLOCK = 512
# Cuts at equal distances converge fast on logits as they are, cuts at equal numbers of floats on
# any: they take over after this many steps.
_STEPS_BY_VALUE = 8


def shortest_prefix(
    order: Array,
    masses: tuple[Array, ...],
    target: tuple[Array, ...],
    *,
    hint: Array | None = None,
) -> Array:
    """Mask of the shortest prefix of an order of the vocabulary whose mass reaches ``target``.

    Tokens are taken largest ``order`` first, lowest id first among equals. A bracket around the
    last token kept is cut in four, by one pass of masked sums a step, until it holds one token, or
    equals only: some ten steps for logits in general position, never more than 25.

    Args:
      order: float32 ``[..., V]``, no NaN.
      masses: one int32 ``[..., V]``, or the two limbs of ``integer_masses``; 0 and above, with
        sums below ``2**31``.
      target: int32 ``[...]``, one for each limb. One above the total keeps every token that has
        a mass.
      hint: float32 ``[...]``, a likely lower bound of the ``order`` of the last token kept: a good
        one saves steps, a wrong one does no harm.

    Returns:
      bool ``[..., V]``.

    Example:
      >>> order = jnp.array([1.0, 3.0, 2.0, 2.0])
      >>> shortest_prefix(order, (jnp.array([1, 1, 1, 1]),), (jnp.array(2),))
      Array([False,  True,  True, False], dtype=bool)
    """
    order = jnp.where(order == 0, 0.0, order)  # -0.0 is another key
    bits = vocab.low_bits(order.shape[-1])
    total = vocab.sums(*masses)
    enough = _reaches(total, target, bits)
    target = tuple(
        jnp.where(enough, t, most) for t, most in zip(target, vocab.carry(total, bits), strict=True)
    )
    key = _key(order)

    low, high, number = _bracket(order, key, masses, target, hint, bits)
    everything = jnp.full_like(low, order.shape[-1])
    last = lax.cond(
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
    """The least key that may be the last token's, the key above the bracket, and its tokens.

    There is more than one token only where all of them have the least key.
    """

    def from_keys(*least: Array) -> list[tuple[Array, ...]]:
        """For each key, the mass from it on and the number of tokens."""
        above = [key >= k[..., None] for k in least]
        parts = [(*(jnp.where(a, m, 0) for m in masses), a.astype(jnp.int32)) for a in above]
        flat = vocab.sums(*(p for part in parts for p in part))
        width = len(masses) + 1
        return [flat[i : i + width] for i in range(0, len(flat), width)]

    def wide(state: tuple) -> Array:
        _, low, high, at_low, at_high = state
        return jnp.any((at_low[-1] - at_high[-1] > 1) & (high - low != 1))

    def narrow(state: tuple) -> tuple:
        step, low, high, at_low, at_high = state
        cuts = _cuts(low, high, step < _STEPS_BY_VALUE)
        for cut, at_cut in zip(cuts, from_keys(*cuts), strict=True):
            reached = _reaches(at_cut[:-1], target, bits)
            low, *at_low = _select(reached, (cut, *at_cut), (low, *at_low))
            high, *at_high = _select(~reached & (cut < high), (cut, *at_cut), (high, *at_high))
        return step + 1, low, high, tuple(at_low), tuple(at_high)

    # Invariant: keys from `low` on reach the target, keys from `high` on do not.
    high = _key(jnp.max(order, axis=-1)) + 1
    smallest = jnp.min(jnp.where(order > -jnp.inf, order, jnp.inf), axis=-1)
    low = jnp.minimum(_key(smallest), high - 1)
    guess = low if hint is None else jnp.clip(_key(hint), low, high - 1)
    at_low, at_guess = from_keys(low, guess)
    good = _reaches(at_guess[:-1], target, bits)
    low, *at_best = _select(good, (guess, *at_guess), (low, *at_low))
    nothing = tuple(jnp.zeros_like(low) for _ in at_low)
    state = (jnp.zeros((), jnp.int32), low, high, tuple(at_best), nothing)
    _, low, high, at_low, at_high = lax.while_loop(wide, narrow, state)
    return low, high, at_low[-1] - at_high[-1]


def _cuts(low: Array, high: Array, by_value: Array) -> list[Array]:
    """Three keys that cut a bracket in four, inside it unless it is down to one key."""
    least, most = _value(low), _value(high - 1)
    # A number without sign: the whole range of keys does not fit an int32.
    quarter = lax.shift_right_logical(high - low, jnp.full_like(low, 2))
    cuts = []
    for i in (1, 2, 3):
        cut = jnp.where(by_value, _key(least + (most - least) * (i / 4)), low + quarter * i)
        cuts.append(jnp.minimum(jnp.maximum(cut, low + 1), high - 1))
    return cuts


def _select(condition: Array, yes: tuple[Array, ...], no: tuple[Array, ...]) -> list[Array]:
    return [jnp.where(condition, y, n) for y, n in zip(yes, no, strict=True)]


def _first_reaching(
    parts: tuple[Array, ...], before: tuple[Array, ...], target: tuple[Array, ...], bits: int
) -> tuple[Array, tuple[Array, ...]]:
    """The first part at which their running sum, on top of ``before``, reaches the target.

    Returns its index (the number of parts if there is none) and the mass before it.
    """
    ends = tuple(
        lax.cumsum(p, axis=p.ndim - 1) + b[..., None] for p, b in zip(parts, before, strict=True)
    )
    short = ~_reaches(ends, tuple(t[..., None] for t in target), bits)
    index = jnp.sum(short, axis=-1, dtype=jnp.int32)
    at = jnp.minimum(index, short.shape[-1] - 1)[..., None]
    starts = tuple(e - p for e, p in zip(ends, parts, strict=True))
    return index, tuple(jnp.take_along_axis(s, at, axis=-1)[..., 0] for s in starts)


def _last_tied(
    key: Array, least: Array, masses: tuple[Array, ...], target: tuple[Array, ...], bits: int
) -> Array:
    """The id at which tokens of key ``least``, taken in turn, make up what is missing."""
    extra = -key.shape[-1] % _BLOCK

    def blocks(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, extra)])
        return x.reshape(*x.shape[:-1], -1, _BLOCK)

    above = vocab.sums(*(jnp.where(key > least[..., None], m, 0) for m in masses))
    tied = tuple(blocks(jnp.where(key == least[..., None], m, 0)) for m in masses)

    block, before = _first_reaching(vocab.sums(*tied), above, target, bits)
    at = jnp.minimum(block, tied[0].shape[-2] - 1)[..., None, None]
    within = tuple(jnp.take_along_axis(t, at, axis=-2)[..., 0, :] for t in tied)
    return block * _BLOCK + _first_reaching(within, before, target, bits)[0]


def _key(x: Array) -> Array:
    """An int32 that orders as the float32 does."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _value(key: Array) -> Array:
    """The float32 of a key."""
    return lax.bitcast_convert_type(jnp.where(key < 0, key ^ 0x7FFFFFFF, key), jnp.float32)


def _reaches(limbs: tuple[Array, ...], target: tuple[Array, ...], bits: int) -> Array:
    """Whether a mass is at least ``target``, whose own limbs are carried."""
    limbs = vocab.carry(limbs, bits)
    if len(limbs) == 1:
        return limbs[0] >= target[0]
    return (limbs[0] > target[0]) | ((limbs[0] == target[0]) & (limbs[1] >= target[1]))
