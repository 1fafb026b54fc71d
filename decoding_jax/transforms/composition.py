"""The composition of transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from decoding_jax.base import Prefix, Transform
from decoding_jax.pytrees import pytree
from decoding_jax.transforms.carried import states_after

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """Applies transforms in the order given; made by ``chain``.

    Attributes:
      transforms: the transforms, in the order in which they apply.
    """

    transforms: tuple[Transform, ...] = ()

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        # Transforms that read no text may be given anything in its place.
        carries = getattr(prefix, "carried", None) is not None
        for index, transform in enumerate(self.transforms):
            logits = transform(logits, prefix.part(index) if carries else prefix)
        return logits

    def states_after(self, prefix: Prefix) -> tuple[Any, ...] | None:
        """The states of the transforms after each path; None where none of them has any."""
        return states_after(self.transforms, prefix)


def chain(*transforms: Transform | Callable[[Array, Prefix], Array]) -> Chain:
    """Applies transforms in the order given; ``chain()`` changes nothing.

    The order matters: ``chain(top_k(40), top_p(0.9))`` keeps 0.9 of the mass of the 40 tokens,
    whereas ``chain(top_p(0.9), top_k(40))`` keeps at most 40 tokens of the nucleus. A temperature
    before a truncation changes which tokens are kept.

    Args:
      *transforms: transforms of this package, your own pytrees, or plain functions of
        ``(logits, prefix)``.

    Returns:
      A transform that is a pytree: changing a number in it does not retrace.

    Raises:
      ValueError: for an argument that is not callable, or for a transform without its settings.

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
                f"chain: expected functions of (logits, prefix), got {name} as transform "
                f"{number}{hint}"
            )
        if jax.tree_util.all_leaves([transform]):
            # jit takes only pytrees, and a plain function is not one.
            transform = jax.tree_util.Partial(transform)
        parts.append(transform)
    return Chain(tuple(parts))


def in_each_part(transform: Any, change: Callable[[Any], Any]) -> Any:
    """A transform with another one in the place of each of its parts.

    Args:
      transform: any transform, or None.
      change: returns what takes the place of a transform that is no chain, or of None.
    """
    if isinstance(transform, Chain):
        return Chain(tuple(in_each_part(part, change) for part in transform.transforms))
    return change(transform)
