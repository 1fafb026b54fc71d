"""Rotary positions (Su et al. 2021, "RoFormer"), and scalings that extend the context."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """A scaling of the rotary frequencies to contexts longer than those of the training.

    Attributes:
      kind: ``linear`` divides all frequencies by ``factor`` (Chen et al. 2023, "Extending Context
        Window of Large Language Models via Positional Interpolation"). ``llama3`` divides the
        low frequencies, keeps the high ones, and interpolates in between (Llama 3.1).
      factor: the factor that frequencies are divided by, 1 or more.
      low_frequency_factor: a frequency is low if its wavelength in positions exceeds
        ``original_max_positions / low_frequency_factor``.
      high_frequency_factor: a frequency is high if its wavelength in positions is below
        ``original_max_positions / high_frequency_factor``.
      original_max_positions: the length of the context in training.

    Raises:
      ValueError: for an unknown kind, or factors that are not in increasing order.
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
    """Radians per position for each pair of dimensions of a head, float32 ``[head_dim / 2]``.

    Example:
      >>> frequencies(4, 10_000.0)
      array([1.  , 0.01], dtype=float32)
    """
    radians = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is not None and scaling.kind == "linear":
        radians = radians / scaling.factor
    elif scaling is not None:
        waves = scaling.original_max_positions * radians / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        keep = np.clip((waves - low) / (high - low), 0, 1)
        radians = keep * radians + (1 - keep) * radians / scaling.factor
    return radians.astype(np.float32)


def rotation(position: Array, radians: np.ndarray) -> tuple[Array, Array]:
    """The cosines and sines of the angles of positions.

    Args:
      position: int32 ``[..., T]``.
      radians: float32 ``[d / 2]``, from ``frequencies``.

    Returns:
      Two float32 arrays ``[..., T, d / 2]``.
    """
    angle = position.astype(jnp.float32)[..., None] * radians.reshape((1,) * position.ndim + (-1,))
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Rotates the pairs of dimensions i and i + d / 2, where d may be less than x's last axis.

    Args:
      x: ``[B, W, ..., T, D]``, of which the first d dimensions are rotated.
      cosine: ``[B, W, T, d / 2]``, from ``rotation``.
      sine: ``[B, W, T, d / 2]``, from ``rotation``.

    Returns:
      The rotated ``x``, of its shape and dtype.
    """
    axes = tuple(range(2, x.ndim - 2))
    cosine, sine = jnp.expand_dims(cosine, axes), jnp.expand_dims(sine, axes)
    half = cosine.shape[-1]
    first, second, rest = jnp.split(x.astype(jnp.float32), [half, 2 * half], axis=-1)
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate([*rotated, rest] if rest.size else rotated, axis=-1).astype(x.dtype)
