"""Positions of tokens: rotary ones, and relative position biases.

Rotary positions are those of Su et al. 2021, "RoFormer", with scalings that extend the context;
relative position biases those of Raffel et al. 2020, section 2.1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.attention import Bias


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """A scaling of the rotary frequencies to contexts longer than those of the training.

    Attributes:
      kind: ``linear`` divides all frequencies by ``factor`` (Chen et al. 2023, "Extending Context
        Window of Large Language Models via Positional Interpolation"). ``llama3`` divides the
        low frequencies, keeps the high ones, and interpolates in between (Llama 3.1). ``yarn`` does
        so too, interpolates by the index of a frequency, and scales the attention's logits (Peng et
        al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models"). ``longrope``
        divides each frequency by a number of its own, and scales the logits (Ding et al. 2024,
        "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens"). ``dynamic`` leaves
        them as they are in texts of the length of the training, which are all that such a network
        takes here: in longer ones, they would change with the length of a text.
      factor: the factor that frequencies are divided by, 1 or more.
      low_frequency_factor: in ``llama3``, a frequency is low if its wavelength in positions exceeds
        ``original_max_positions / low_frequency_factor``.
      high_frequency_factor: in ``llama3``, a frequency is high if its wavelength in positions is
        below ``original_max_positions / high_frequency_factor``.
      original_max_positions: the length of the context in training.
      beta_fast: in ``yarn``, a frequency is high if it makes more turns than this in
        ``original_max_positions``.
      beta_slow: in ``yarn``, a frequency is low if it makes fewer turns than this.
      truncate: in ``yarn``, whether the indices of these two frequencies are rounded, the first
        down and the second up.
      attention_factor: in ``yarn`` and ``longrope``, the factor of rotated queries and keys, or
        None for that of the paper: ``0.1 log(factor) + 1``, or the root of 1 + log(factor) /
        log(original_max_positions).
      short_factors: in ``longrope``, what the frequencies are divided by in texts of up to
        ``original_max_positions``.
      long_factors: in ``longrope``, those of longer texts.
      long_texts: in ``longrope``, whether the factors are those of longer texts, see
        ``models.for_long_texts``.
      query_growth: in ``yarn``, how much queries grow with each new multiple of
        ``original_max_positions`` (Llama 4; Ministral 3); see ``query_factor``.

    Raises:
      ValueError: for an unknown kind, or factors that are not positive or in increasing order.

    Example:
      >>> round(RopeScaling("yarn", 4.0, original_max_positions=32_768).rotated_factor, 4)
      1.1386
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    query_growth: float = 0.0
    long_texts: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected {', '.join(map(repr, KINDS))}, got {self.kind!r}")
        if self.factor < 1:
            raise ValueError(f"factor: expected 1 and above, got {self.factor}")
        ordered = ("low_frequency_factor", "high_frequency_factor"), ("beta_slow", "beta_fast")
        for low, high in ordered:
            if not 0 < getattr(self, low) < getattr(self, high):
                raise ValueError(
                    f"{high}: expected more than {low} = {getattr(self, low)}, both above 0, got"
                    f" {getattr(self, high)}"
                )
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise ValueError(
                f"attention_factor: expected None, or numbers above 0, got {self.attention_factor}"
            )

    @property
    def rotated_factor(self) -> float:
        """The factor of rotated queries and keys, 1 except for ``yarn`` and ``longrope``."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "yarn":
            return yarn_factor(self.factor)
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_positions))

    @property
    def extended_positions(self) -> int:
        """In ``longrope``, the length of the longest text with the long factors."""
        return round(self.original_max_positions * self.factor)

    def query_factor(self, position: Array) -> Array:
        """``1 + query_growth log(1 + floor(position / original_max_positions))``, in float32."""
        passed = (position // self.original_max_positions).astype(jnp.float32)
        return 1 + self.query_growth * jnp.log1p(passed)


KINDS = ("dynamic", "linear", "llama3", "longrope", "yarn")


def yarn_factor(factor: float, weight: float = 1.0) -> float:
    """``0.1 weight log(factor) + 1``, the factor of queries and keys for a longer context.

    It is the square root of the paper's factor of the logits.
    """
    return 0.1 * weight * math.log(factor) + 1.0


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Radians per position for each pair of dimensions of a head, float32 ``[head_dim / 2]``.

    Example:
      >>> frequencies(4, 10_000.0)
      array([1.  , 0.01], dtype=float32)
    """
    radians = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is None or scaling.kind == "dynamic":
        return radians.astype(np.float32)
    if scaling.kind == "longrope":
        name = "long_factors" if scaling.long_texts else "short_factors"
        factors = np.array(getattr(scaling, name))
        if factors.size != radians.size:
            raise ValueError(
                f"{name}: expected {radians.size} numbers, half as many as dimensions of a head are"
                f" rotated, got {factors.size}"
            )
        return (radians / factors).astype(np.float32)
    keep: np.ndarray | float = 0.0
    if scaling.kind == "llama3":
        waves = scaling.original_max_positions * radians / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        keep = np.clip((waves - low) / (high - low), 0, 1)
    elif scaling.kind == "yarn":
        keep = _kept_by_yarn(head_dim, theta, scaling)
    return (keep * radians + (1 - keep) * radians / scaling.factor).astype(np.float32)


def _kept_by_yarn(head_dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """The fraction of each frequency that is kept: 1 up to an index, and 0 from a later one on."""

    def index_of(turns: float) -> float:
        """The index of the frequency with this number of turns in the original context."""
        longest = scaling.original_max_positions / (2 * math.pi * turns)
        return head_dim * math.log(longest) / (2 * math.log(theta))

    first, last = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    return 1 - np.clip((np.arange(head_dim // 2) - first) / max(last - first, 1e-3), 0, 1)


def rotation(
    position: Array, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[Array, Array]:
    """The cosines and sines of the angles of positions, times the scaling's factor if it has one.

    Args:
      position: int32 ``[..., T]``.
      head_dim: d, the number of dimensions of a head that are rotated.
      theta: the base of the frequencies.
      scaling: the scaling of the frequencies, or None.

    Returns:
      Two float32 arrays ``[..., T, d / 2]``.
    """
    factor = 1.0 if scaling is None else scaling.rotated_factor
    return rotation_at(position, frequencies(head_dim, theta, scaling), factor)


def rotation_at(position: Array, radians: np.ndarray, factor: float = 1.0) -> tuple[Array, Array]:
    """As ``rotation``, with the frequencies themselves, float32 ``[d / 2]``."""
    radians = radians.reshape((1,) * position.ndim + (-1,))
    angle = position.astype(jnp.float32)[..., None] * radians
    if factor == 1.0:
        return jnp.cos(angle), jnp.sin(angle)
    return factor * jnp.cos(angle), factor * jnp.sin(angle)


def rotate(x: Array, cosine: Array, sine: Array, interleaved: bool = False) -> Array:
    """Rotates the pairs of dimensions i and i + d / 2, where d may be less than x's last axis.

    Args:
      x: ``[B, W, ..., T, D]``, of which the first d dimensions are rotated.
      cosine: ``[B, W, T, d / 2]``, from ``rotation``.
      sine: ``[B, W, T, d / 2]``, from ``rotation``.
      interleaved: whether the pairs are the dimensions 2 i and 2 i + 1 instead, as in the paper.

    Returns:
      The rotated ``x``, of its shape and dtype.
    """
    axes = tuple(range(2, x.ndim - 2))
    cosine, sine = jnp.expand_dims(cosine, axes), jnp.expand_dims(sine, axes)
    half = cosine.shape[-1]
    first, second, rest = jnp.split(x.astype(jnp.float32), [half, 2 * half], axis=-1)
    if interleaved:
        turned = x.astype(jnp.float32)[..., : 2 * half]
        first, second = turned[..., 0::2], turned[..., 1::2]
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    if interleaved:
        rotated = [jnp.stack(rotated, axis=-1).reshape(turned.shape)]
    return jnp.concatenate([*rotated, rest] if rest.size else rotated, axis=-1).astype(x.dtype)


def linear_slopes(num_heads: int) -> np.ndarray:
    """What each head's scores lose for a position of distance, float32 ``[num_heads]``.

    These are the slopes of ALiBi: a geometric sequence for a power of two of heads, and for others
    that of the next lower power, with every other slope of the next higher one (Press, Smith &
    Lewis 2022, "Train Short, Test Long: Attention with Linear Biases").

    Example:
      >>> linear_slopes(4)
      array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    lower = 1 << (num_heads.bit_length() - 1)
    exponents = [8 * (i + 1) / lower for i in range(lower)]
    exponents += [4 * (2 * i + 1) / lower for i in range(num_heads - lower)]
    return np.exp2(-np.array(exponents)).astype(np.float32)


def relative_buckets(num_buckets: int, max_distance: int, *, bidirectional: bool) -> np.ndarray:
    """The bucket of every distance from ``-max_distance`` to ``max_distance``.

    A distance is the query's position minus the key's. Each small distance has its own bucket, and
    larger ones share buckets whose width grows logarithmically (Raffel et al. 2020, section 2.1).

    Returns:
      int32 ``[2 * max_distance + 1]``.
    """
    distance = np.arange(-max_distance, max_distance + 1)
    offset = np.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        offset = np.where(distance < 0, num_buckets, 0)
        far = np.abs(distance)
    else:
        far = np.maximum(distance, 0)
    exact = num_buckets // 2
    ratio = np.log(np.maximum(far, 1) / exact) / math.log(max_distance / exact)
    # The small term keeps ratios that are whole numbers from being rounded down.
    large = exact + np.floor(ratio * (num_buckets - exact) + 1e-6).astype(np.int64)
    bucket = np.where(far < exact, far, np.minimum(large, num_buckets - 1))
    return (bucket + offset).astype(np.int32)


class RelativePositionBiases(nn.Module):
    """Learned biases ``[H, num_buckets]``, one for each head and bucket of distances."""

    num_heads: int
    num_buckets: int
    max_distance: int
    bidirectional: bool

    def setup(self) -> None:
        self.rel_embedding = self.param(
            "rel_embedding",
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
            (self.num_heads, self.num_buckets),
            jnp.float32,
        )

    def by_distance(self) -> Callable[..., Array]:
        """The function that ``__call__`` is, to be called outside the module too, as a ``Bias``."""
        buckets = relative_buckets(
            self.num_buckets, self.max_distance, bidirectional=self.bidirectional
        )
        return functools.partial(_at, self.rel_embedding.astype(jnp.float32)[:, buckets])

    def __call__(self, distance: Array) -> Array:
        """The biases ``[b, w, H, 1, T, K]`` of query-minus-key distances ``[b, w, T, K]``."""
        return self.by_distance()(distance)

    def of_keys(self, position: Array, num_keys: int) -> Bias:
        """The biases of queries at ``position [b, w, T]`` and keys at 0 to ``num_keys - 1``.

        Few are computed at once, for all layers that share them; many, by block.
        """
        if self.num_heads * position.size * num_keys > WHOLE:
            return self.by_distance()
        return self(position[..., None] - jnp.arange(num_keys, dtype=jnp.int32)[None, None, None])


WHOLE = 2**22
"""The largest number of biases that are held whole."""


def _at(biases: Array, distance: Array, key: Array | None = None) -> Array:
    """The biases ``[b, w, H, 1, T, K]`` of ``distance [b, w, T, K]``, at any position of the key.

    Args:
      biases: float32 ``[H, 2 * max_distance + 1]``, by distance from ``-max_distance``.
      distance: int32, of any size.
    """
    farthest = biases.shape[1] // 2
    index = jnp.clip(distance, -farthest, farthest) + farthest
    return jnp.moveaxis(biases[:, index], 0, 2)[:, :, :, None]
