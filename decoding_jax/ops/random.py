"""Random bits keyed by row, lane and position, so a row's draws do not depend on its batch."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from decoding_jax.base import Array


def row_keys(key: Array, batch_size: int) -> Array:
    """One key for each row.

    Args:
      key: a typed key (``jax.random.key``), which is folded with the row's index; or typed keys
        ``[B]``, which are used unchanged, so that a row has the same draws in any batch. Keys of
        another implementation than threefry are first converted: see ``counter_keys``.
      batch_size: B.

    Returns:
      Typed keys ``[B]``, threefry.

    Raises:
      ValueError: as ``check_keys``.

    Example:
      >>> row_keys(jax.random.key(0), 3).shape
      (3,)
    """
    check_keys(key, batch_size)
    return counter_keys(key) if key.shape else _fold_each(counter_keys(key), batch_size)


def check_keys(key: Array, batch_size: int) -> None:
    """Checks that this is a typed key, or typed keys ``[B]``.

    Raises:
      ValueError: for a raw uint32 key, or for keys of another shape.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        of_type = "none" if key is None else type(key).__name__
        got = of_type if dtype is None else f"{dtype}{list(key.shape)}"
        raise ValueError(f"key: expected a typed key such as jax.random.key(0), got {got}")
    if key.shape not in ((), (batch_size,)):
        raise ValueError(
            f"key: expected one key, or {batch_size} keys, one for each row, got keys of shape"
            f" {list(key.shape)}"
        )


def counter_keys(keys: Array) -> Array:
    """Converts typed keys of any implementation to threefry keys, each from its own words alone.

    ``bits_at`` needs a block cipher at a counter, and only threefry's ``fold_in`` is one. The
    ``fold_in`` of ``unsafe_rbg``, which T5X sets where it uses a TPU's generator, is the exclusive
    or of the key and bits of the counter. Two streams of a lane would differ by a constant, and
    under ``vmap`` those bits depend on the rest of the batch.

    Example:
      >>> counter_keys(jax.random.key(0, impl="rbg")).dtype
      key<fry>
    """
    if jax.random.key_impl(keys) == "threefry2x32":
        return keys
    words = jax.random.key_data(keys)
    converted = jax.random.wrap_key_data(words[..., :2], impl="threefry2x32")
    fold = jax.vmap(jax.random.fold_in) if keys.ndim else jax.random.fold_in
    for i in range(2, words.shape[-1]):
        converted = fold(converted, words[..., i])
    return converted


def split(keys: Array) -> tuple[Array, Array]:
    """Two independent keys for each row: typed keys ``[B]`` give two arrays ``[B]``.

    Example:
      >>> first, second = split(row_keys(jax.random.key(0), 3))
      >>> first.shape, second.shape
      ((3,), (3,))
    """
    pairs = jax.vmap(split_key)(keys)
    return pairs[:, 0], pairs[:, 1]


def split_key(key: Array) -> Array:
    """Two independent keys of one threefry key: typed keys ``[2]``.

    The result is the same under both values of ``jax_threefry_partitionable``, unlike that of
    ``jax.random.split``. Where the option is set, as it is by default, the two agree.

    Example:
      >>> key = jax.random.key(0)
      >>> bool((split_key(key) == jax.random.split(key)).all())
      True
    """
    return _fold_each(key, 2)


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Random bits of one threefry key: uint32 of any shape, at most ``2**32`` of them.

    The result is the same under both values of ``jax_threefry_partitionable`` and with 64-bit
    types, unlike that of ``jax.random.bits``. By default the two agree.

    Example:
      >>> key = jax.random.key(0)
      >>> bool((bits(key, (2, 3)) == jax.random.bits(key, (2, 3))).all())
      True
    """
    words = jax.random.key_data(_fold_each(key, math.prod(shape)))
    return (words[..., 0] ^ words[..., 1]).reshape(shape)


def _fold_each(key: Array, count: int) -> Array:
    """A key folded with 0 to ``count - 1``: typed keys ``[count]``."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count, dtype=jnp.uint32))


def lane_keys(keys: Array, lanes: int) -> Array:
    """Folds each row's key with each lane's index: typed keys ``[B]`` give ``[B, W]``.

    Example:
      >>> lane_keys(row_keys(jax.random.key(0), 2), 4).shape
      (2, 4)
    """
    return jax.vmap(lambda key: _fold_each(key, lanes))(keys)


def bits_at(keys: Array, position: Array | int) -> Array:
    """64 random bits for each lane at a position.

    This is a counter-mode generator: the lane's key is the generator's key, and the position is its
    counter. A call computes one block of the cipher for each lane, whatever the size of the
    vocabulary. The keys must not be used for anything else.

    Args:
      keys: typed keys ``[B, W]``, from ``lane_keys``.
      position: int32, a scalar or ``[B, W]``.

    Returns:
      uint32 ``[B, W, 2]``.

    Example:
      >>> keys = lane_keys(row_keys(jax.random.key(0), 2), 4)
      >>> bits_at(keys, 7).shape
      (2, 4, 2)
    """
    positions = jnp.broadcast_to(jnp.asarray(position, jnp.int32), keys.shape)
    folded = jax.vmap(jax.vmap(jax.random.fold_in))(keys, positions)
    return jax.random.key_data(folded)[..., :2]


def lane_bits(keys: Array, lanes: int, position: Array | int) -> Array:
    """64 random bits for each row, lane and position: ``bits_at`` of ``lane_keys``.

    Args:
      keys: typed keys ``[B]``, from ``row_keys``.
      lanes: W.
      position: int32, a scalar or ``[B, W]``.

    Returns:
      uint32 ``[B, W, 2]``.

    Example:
      >>> lane_bits(row_keys(jax.random.key(0), 2), 4, 7).shape
      (2, 4, 2)
    """
    return bits_at(lane_keys(keys, lanes), position)


def exponential(bits: Array) -> Array:
    """Standard exponential variables of 64 random bits each: uint32 ``[..., 2]`` give ``[...]``.

    They are float32, finite and above 0. The smallest of V such variables is about 1 / V. It is
    computed from a uniform number of 64 bits near 0, at the full precision of float32, so the two
    smallest are equal about once in 1e7 draws.

    Example:
      >>> exponential(jnp.uint32([[2**31, 0], [0, 2**31]])).round(3)
      Array([0.693, 0.   ], dtype=float32)
    """
    return -jnp.log1p(-jnp.minimum(_uniform(bits), 1 - 2.0**-24))


def log_uniform(bits: Array) -> Array:
    """The logarithm of a uniform number, of 64 random bits: uint32 ``[..., 2]`` give ``[...]``.

    Small numbers have the full resolution of the bits, which rare languages need.

    Example:
      >>> log_uniform(jnp.uint32([[2**31, 0], [0, 2**31]])).round(3)
      Array([ -0.693, -22.874], dtype=float32)
    """
    return jnp.minimum(jnp.log(_uniform(bits)), 0.0)


def _uniform(bits: Array) -> Array:
    """A uniform number above 0, and at most 1, of 64 random bits."""
    words = bits.astype(jnp.float32)
    return words[..., 0] * 2.0**-32 + (words[..., 1] + 0.5) * 2.0**-64
