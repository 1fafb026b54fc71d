"""T5X's temperature, top-k and top-p as transforms."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import transforms
from decoding_jax.base import Array, Transform

# T5X takes temperatures up to this one for 0.
_GREEDY_UP_TO = 1e-4


def static_number(value: Any) -> float | None:
    """A plain number, or None for what is traced or an array."""
    if isinstance(value, (int, float, np.number)) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        return float(value)
    return None


@dataclasses.dataclass(frozen=True)
class KeepForced:
    """A transform that leaves alone what has no alternative: a forced token is no choice."""

    transform: Transform

    def __call__(self, logits: Array, prefix: Any) -> Array:
        settled = (logits > -jnp.inf).sum(-1, keepdims=True) == 1
        return jnp.where(settled, logits, self.transform(logits, prefix))


def is_greedy(temperature: Any, topk: Any) -> bool:
    """Whether plain numbers leave one token at every step."""
    heat, best = static_number(temperature), static_number(topk)
    return (heat is not None and heat <= _GREEDY_UP_TO) or best == 1


def sampling_rule(
    transform: Transform | None, temperature: Any, topk: Any, topp: Any
) -> transforms.Chain:
    """T5X's three settings as transforms, behind one of the user's own."""
    chosen: list[Any] = [] if transform is None else [KeepForced(transform)]
    heat, best, mass = (static_number(x) for x in (temperature, topk, topp))
    if is_greedy(temperature, topk):
        return transforms.chain(*chosen, transforms.temperature(0.0))
    if heat != 1:
        heat_of = jnp.asarray(temperature, jnp.float32)
        heat_of = jnp.where(heat_of > _GREEDY_UP_TO, heat_of, 0.0)
        chosen.append(transforms.temperature(heat_of))
    if best is None:
        chosen.append(transforms.top_k(jnp.where(topk > 0, topk, jnp.iinfo(jnp.int32).max)))
    elif best > 0:
        chosen.append(transforms.top_k(int(best)))
    if mass is None:
        chosen.append(transforms.top_p(jnp.where(topp > 0, topp, 1.0)))
    elif mass > 0:
        chosen.append(transforms.top_p(mass))
    return transforms.chain(*chosen)
