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
      local_keys: the keys of the target's last local layer, which has the window, or None where it
        has none.
      global_keys: those of its last global layer, or None.
      length: int32 ``[B]``, the number of real prompt tokens, after the prefix.
      seen: int32 ``[B, W]``, the number of new tokens whose keys are read, in the first slots.
      prefix_size: F, or 0 without a prefix.
    """

    local_keys: LayerKeys | None
    global_keys: LayerKeys | None
    length: Array
    seen: Array
    prefix_size: int = fields.field(static=True, default=0)

    @property
    def position(self) -> Array:
        """The position of the token after those whose keys are read, int32 ``[B, W]``."""
        return self.prefix_size + self.length[:, None] + self.seen

    def of_kind(self, local: bool, window: Any) -> list[Part]:
        """What queries at ``position`` attend to in a local layer, or in a global one.

        As in ``transformers``, the window of a local layer counts from the last token whose keys
        are read, which is seen with those up to ``window`` tokens before it.

        Raises:
          ValueError: for a kind of layers that the target does not have.
        """
        layer = self.local_keys if local else self.global_keys
        if layer is None:
            kind = "local" if local else "global"
            raise fields.error("model", f"{kind} layers, whose keys are read", "none")
        # The query is one position after the last of the ``window + 1`` keys that it sees.
        farther = window + 2 if local else None
        parts = view.cached_parts(layer.prompt, layer.slots, self._view(layer), window=farther)
        if layer.prefix is None:
            return parts
        position = self.position[..., None]
        return [view.prefix_part(layer.prefix, position, window=farther), *parts]

    def _view(self, layer: LayerKeys) -> view.View:
        """The view of the token at ``position``, which is not in the cache itself."""
        slot = jnp.arange(layer.slots.key.shape[-2], dtype=jnp.int32)[None, None, None]
        distance = self.seen[..., None, None] - slot
        return view.View(
            position=(self.length[:, None] + self.seen)[..., None],
            prompt_mask=view.real_tokens(self.length, layer.prompt.key.shape[-2]),
            slot_mask=distance > 0,
            slot_distance=distance,
            self_mask=None,
            used=jnp.max(self.seen),
        )


def of_layers(
    cache: caches.Cache,
    length: Array,
    local_layer: int | None,
    global_layer: int | None,
    prefix: Any = None,
) -> SharedKeys:
    """The keys of two layers of a cache, before the last of ``length`` new tokens.

    Args:
      cache: of a network whose layers are not scanned.
      length: int32 ``[B, W]``, the number of new tokens, of which the cache lacks the last one.
      local_layer: the index of the local layer, or None.
      global_layer: that of the global layer, or None.
      prefix: None, or each layer's keys and values of a prefix that all rows share.
    """
    held: Any = cache.prompt, cache.slots, *(() if prefix is None else (prefix,))

    def keys(index: int | None) -> LayerKeys | None:
        return None if index is None else LayerKeys(*(x[index] for x in held))

    seen = jnp.maximum(length - 1, 0)
    size = caches.num_keys(prefix)
    return SharedKeys(keys(local_layer), keys(global_layer), cache.length, seen, size)
