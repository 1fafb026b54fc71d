"""Keys and values of a network that the queries of another one read."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models import caches, view
from decoding_jax.models.attention import Part
from decoding_jax.pytrees import pytree


class LayerKeys(NamedTuple):
    """The keys and values of one layer.

    Attributes:
      prompt: ``[B, H, P, d]``.
      slots: ``[B, W, H, S, d]``.
      prefix: None, or those of a prefix that all rows share, ``[1, H, F, d]``.
    """

    prompt: caches.KeyValue
    slots: caches.KeyValue
    prefix: caches.KeyValue | None = None


@pytree
@dataclasses.dataclass(frozen=True)
class SharedKeys:
    """What a drafter reads of the cache of its target.

    Attributes:
      local: the keys of the target's last layer with a window, or None where it has none.
      whole: those of its last layer without a window, or None.
      length: int32 ``[B]``, the number of real prompt tokens, after the prefix.
      seen: int32 ``[B, W]``, the number of new tokens whose keys are read, in the first slots.
      prefix_size: F, or 0 without a prefix.
    """

    local: LayerKeys | None
    whole: LayerKeys | None
    length: Array
    seen: Array
    prefix_size: int = fields.field(static=True, default=0)

    @property
    def position(self) -> Array:
        """The position of the token after those whose keys are read, int32 ``[B, W]``."""
        return self.prefix_size + self.length[:, None] + self.seen

    def of_kind(self, local: bool, window: Any) -> list[Part]:
        """What queries at ``position`` attend to in a layer with a window, or in one without it.

        As in ``transformers``, a query counts the window from the last token whose keys it reads,
        which is seen with those up to ``window`` tokens before it.

        Raises:
          ValueError: for a kind of layers that the target does not have.
        """
        layer = self.local if local else self.whole
        if layer is None:
            kind = "with" if local else "without"
            raise fields.error("model", f"layers {kind} a window, whose keys are read", "none")
        return self._parts(layer, window + 2 if local else None)

    def _parts(self, layer: LayerKeys, window: int | None) -> list[Part]:
        """The keys that are less than ``window`` tokens away from ``position``."""
        position = (self.length[:, None] + self.seen)[..., None]
        size = layer.slots.key.shape[-2]
        distance = self.seen[..., None, None] - jnp.arange(size, dtype=jnp.int32)[None, None, None]
        seen = distance > 0 if window is None else (distance > 0) & (distance < window)
        real = view.real_tokens(self.length, layer.prompt.key.shape[-2])
        out = [
            Part(*layer.prompt, real, position=position, window=window),
            Part(*layer.slots, seen, used=jnp.max(self.seen)),
        ]
        if layer.prefix is None:
            return out
        all_of = jnp.ones((1, 1, 1, self.prefix_size), bool)
        key, value = (x[0] for x in layer.prefix)
        part = Part(key, value, all_of, position=position + self.prefix_size, window=window)
        return [part, *out]


def of_layers(
    cache: caches.Cache,
    length: Array,
    local: int | None,
    whole: int | None,
    prefix: Any = None,
) -> SharedKeys:
    """The keys of two layers of a cache, before the last of ``length`` new tokens.

    Args:
      cache: of a network whose layers are not scanned.
      length: int32 ``[B, W]``, the number of new tokens, of which the cache lacks the last one.
      local: the index of the layer with a window, or None.
      whole: that of the layer without one, or None.
      prefix: None, or each layer's keys and values of a prefix that all rows share.
    """
    held: Any = cache.prompt, cache.slots, *(() if prefix is None else (prefix,))

    def keys(index: int | None) -> LayerKeys | None:
        return None if index is None else LayerKeys(*(x[index] for x in held))

    seen = jnp.maximum(length - 1, 0)
    size = 0 if prefix is None else caches.num_keys(prefix)
    return SharedKeys(keys(local), keys(whole), cache.length, seen, size)
