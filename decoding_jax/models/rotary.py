"""Rotary positions (Su et al. 2021, "RoFormer"), with the scalings that stretch a context."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How frequencies are slowed down to reach farther than the training did.

    Attributes:
      kind: ``linear`` divides all frequencies by ``factor`` (Chen et al. 2023, "Extending Context
        Window of Large Language Models via Positional Interpolation"). ``llama3`` divides the
        slow ones, leaves the fast ones, and blends between (Llama 3.1).
      factor: of at least 1.
      low_frequency_factor: waves longer than ``original_max_positions`` over this are slow.
      high_frequency_factor: waves shorter than ``original_max_positions`` over this are fast.
      original_max_positions: the context of the training.

    Raises:
      ValueError: for an unknown kind, or factors out of order.
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise ValueError(f"kind: got {self.kind!r}; takes 'linear' or 'llama3'")
        if self.factor < 1:
            raise ValueError(f"factor: got {self.factor}; takes 1 and above")
        if not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                f"high_frequency_factor: got {self.high_frequency_factor}; takes more than"
                f" low_frequency_factor = {self.low_frequency_factor}, both above 0"
            )


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Radians per position of each pair of a head's dimensions, float32 ``[head_dim / 2]``.

    Example:
      >>> frequencies(4, 10_000.0)
      array([1.  , 0.01], dtype=float32)
    """
    turn = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is not None and scaling.kind == "linear":
        turn = turn / scaling.factor
    elif scaling is not None:
        waves = scaling.original_max_positions * turn / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        fast = np.clip((waves - low) / (high - low), 0, 1)
        turn = fast * turn + (1 - fast) * turn / scaling.factor
    return turn.astype(np.float32)


def rotation(position: Array, turn: np.ndarray) -> tuple[Array, Array]:
    """Cosine and sine of every position's angles: ``[..., T]`` to float32 ``[..., T, d / 2]``."""
    angle = position.astype(jnp.float32)[..., None] * turn.reshape((1,) * position.ndim + (-1,))
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Turns ``x [B, W, ..., T, d]`` by the angles of ``[B, W, T, d / 2]``.

    Dimension i is paired with i + d / 2.
    """
    axes = tuple(range(2, x.ndim - 2))
    cosine, sine = jnp.expand_dims(cosine, axes), jnp.expand_dims(sine, axes)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
