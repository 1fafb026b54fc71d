"""Transforms one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from decoding_jax.base import Prefix, Transform
from decoding_jax.pytrees import pytree

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """Transforms applied in the order given; see ``chain``.

    Attributes:
      transforms: the transforms.
    """

    transforms: tuple[Transform, ...] = ()

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        for transform in self.transforms:
            logits = transform(logits, prefix)
        return logits


def chain(*transforms: Transform | Callable[[Array, Prefix], Array]) -> Chain:
    """Applies transforms in the order given; ``chain()`` changes nothing.

    The order matters: ``chain(top_k(40), top_p(0.9))`` takes 0.9 of what the 40 tokens hold, the
    other way round at most 40 tokens of the nucleus; a temperature before a truncation changes
    what is cut.

    Args:
      *transforms: transforms of this package, pytrees of one's own, or plain functions of
        ``(logits, prefix)``.

    Returns:
      A transform, itself a pytree: changing a number in it does not retrace.

    Raises:
      ValueError: for something that cannot be called.

    Example:
      >>> from decoding_jax import transforms
      >>> transform = transforms.chain(
      ...     transforms.temperature(0.7), transforms.top_k(40), transforms.top_p(0.9)
      ... )
      >>> [type(t).__name__ for t in transform.transforms]
      ['Temperature', 'TopK', 'TopP']
    """
    parts: list[Any] = []
    for number, transform in enumerate(transforms):
        if not callable(transform) or isinstance(transform, type) or transform is chain:
            hint = ", without its settings" if callable(transform) else ""
            name = getattr(transform, "__name__", repr(transform)) if hint else repr(transform)
            raise ValueError(
                f"chain: got {name} as transform {number}{hint}; takes functions of "
                "(logits, prefix)"
            )
        if jax.tree_util.all_leaves([transform]):
            # A plain function is no pytree, and jit takes only those.
            transform = jax.tree_util.Partial(transform)
        parts.append(transform)
    return Chain(tuple(parts))
