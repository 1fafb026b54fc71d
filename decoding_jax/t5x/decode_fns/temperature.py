"""T5X's temperature, top-k and top-p as transforms."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import transforms
from decoding_jax.base import Array, Prefix, Transform

# T5X treats temperatures up to this value as 0.
_GREEDY_TEMPERATURE = 1e-4


def static_number(value: Any) -> float | None:
    """A plain number, or None for a traced value or an array."""
    if isinstance(value, (int, float, np.number)) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        return float(value)
    return None


@dataclasses.dataclass(frozen=True)
class KeepForced:
    """Applies a transform where more than one token is allowed, so that forced tokens are kept."""

    transform: Transform

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        allowed = (logits > -jnp.inf).sum(-1, keepdims=True, dtype=jnp.int32)
        return jnp.where(allowed == 1, logits, self.transform(logits, prefix))


def keep_forced(transform: Transform | None) -> Transform | None:
    """Wraps a transform in ``KeepForced``; returns None for None."""
    return None if transform is None else KeepForced(transform)


def is_greedy(temperature: Any, topk: Any) -> bool:
    """Whether the settings are plain numbers that allow only one token at every step."""
    number, count = static_number(temperature), static_number(topk)
    return (number is not None and number <= _GREEDY_TEMPERATURE) or count == 1


def sampling_transform(
    transform: Transform | None, temperature: Any, topk: Any, topp: Any
) -> transforms.Chain:
    """The user's transform, then T5X's temperature, top-k and top-p.

    Args:
      transform: the user's transform, or None.
      temperature: a number or float32 ``[B]``; values up to 1e-4 mean 0.
      topk: an int or int32 ``[B]``; 0 keeps all tokens.
      topp: a number or float32 ``[B]``; 0 keeps all tokens.
    """
    parts: list[Transform] = [] if transform is None else [KeepForced(transform)]
    if is_greedy(temperature, topk):
        return transforms.chain(*parts, transforms.temperature(0.0))
    if static_number(temperature) != 1:
        values = jnp.asarray(temperature, jnp.float32)
        values = jnp.where(values > _GREEDY_TEMPERATURE, values, 0.0)
        parts.append(transforms.temperature(values))
    count, mass = static_number(topk), static_number(topp)
    if count is None:
        parts.append(transforms.top_k(jnp.where(topk > 0, topk, jnp.iinfo(jnp.int32).max)))
    elif count > 0:
        parts.append(transforms.top_k(int(count)))
    if mass is None:
        parts.append(transforms.top_p(jnp.where(topp > 0, topp, 1.0)))
    elif mass > 0:
        parts.append(transforms.top_p(mass))
    return transforms.chain(*parts)
