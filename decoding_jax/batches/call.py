"""A call: what is decoded, and how. It is made once, of whatever a caller gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.batches.encode import bind_drafter
from decoding_jax.loop.forms import Function, as_strategy
from decoding_jax.loop.strategy import Strategy
from decoding_jax.models.checkpoint import DrafterDirectory
from decoding_jax.registry import DEFAULTS
from decoding_jax.strategies.speculative import ModelDrafter


class Limits(NamedTuple):
    """How long texts may become.

    Attributes:
      named: the largest number of new tokens that the caller has named, or None.
      default: the largest number otherwise.
      max_time: None, or the seconds after which no further tokens are decoded.
    """

    named: int | None = None
    default: int = DEFAULTS["max_new_tokens"]
    max_time: float | None = None


_NO_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Call:
    """What is decoded, and how.

    Attributes:
      model: an encoder-decoder, or a language model.
      strategy: the strategy with its settings, of which any may have one value for each input. Its
        drafter is bound to an input without a meaning.
      key: a typed key, which is folded with the index of each input; or typed keys, one for each
        input; or None for a strategy that draws nothing.
      drafter: the drafter, which is bound to the inputs of each batch; or None.
      limits: how long texts may become, besides the conditions of the strategy.
    """

    model: Any
    strategy: Strategy | Function
    key: Array | None = None
    drafter: Any = None
    limits: Limits = _NO_LIMITS


def parse(
    model: Any,
    strategy: Any,
    settings: Mapping[str, Any],
    *,
    key: Array | None = None,
    drafter: Any = None,
    **options: Any,
) -> Call:
    """Makes a call of a model and a strategy in any of its forms.

    Args:
      model, key: as in ``Call``.
      strategy, settings, **options: as for ``loop.forms.as_strategy``.
      drafter: a drafter; a model; a pair of a model and its tokenizer; a directory; or None, for
        that of an object, or a strategy without one.

    Raises:
      ValueError: as ``as_strategy``, and for a drafter that is a name or a class.

    Example:
      >>> call = parse(None, "greedy", {"max_new_tokens": 4})
      >>> call.strategy.max_new_tokens, call.drafter
      (4, None)
    """
    drafter = read_drafter(drafter, model)
    bound = bind_drafter(drafter, model, [[0]], 1)
    made = as_strategy(strategy, settings, drafter=bound, **options)
    drafter = getattr(made, "drafter", None) if drafter is None else drafter
    return Call(model, made, key, drafter)


def read_drafter(drafter: Any, model: Any) -> Any:
    """The drafter alone, read for a model where it is a directory, and without its tokenizer.

    With its tokenizer, a model may have a table of another size, whose last rows are padding.

    Raises:
      ValueError: for a name or a class.
    """
    if isinstance(drafter, DrafterDirectory):
        drafter = drafter.read(model)
    if isinstance(drafter, (str, type)):
        expected = "a model, such as load gives, or strategies.speculative.PromptLookup()"
        raise fields.error("drafter", expected, drafter)
    if not isinstance(drafter, tuple):
        return drafter
    draft, sizes = drafter[0], [getattr(x, "vocab_size", None) for x in (drafter[0], model)]
    if hasattr(draft, "prefill") and None not in sizes and sizes[0] != sizes[1]:
        return ModelDrafter(draft, target_size=sizes[1])
    return draft
