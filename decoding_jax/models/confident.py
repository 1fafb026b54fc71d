"""A model that ends its texts where it is no longer confident: early stopping of DeepConf."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, rows
from decoding_jax.base import Array, ModelOutput
from decoding_jax.loop.inputs import check_model
from decoding_jax.models import caches
from decoding_jax.models.combined import Combined, CombinedCache
from decoding_jax.ops import exact
from decoding_jax.ops.logits import clean
from decoding_jax.ops.top_k import top_k
from decoding_jax.pytrees import pytree
from decoding_jax.transforms.lengths import only


class ConfidentCache(NamedTuple):
    """The cache of a model, and its confidence in each new token.

    Attributes:
      model: the cache of the model.
      first: float32 ``[B, W]``, the confidence in the first new token of each lane.
      slots: float32 ``[B, W, S]``, the confidence in the token that follows the one in each slot.
      depth: int32 ``[B, W, S]``, the number of new tokens before the one in each slot.
    """

    model: CombinedCache
    first: Array
    slots: Array
    depth: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Confident(Combined):
    """A model that ends its texts where it is not confident, from ``confident``.

    Attributes:
      model: the model.
      end: an int, or int32 ``[B]``.
      threshold: a number, or float32 ``[B]``.
      window: an int, or int32 ``[B]``.
      num_tokens: k. Static.
    """

    model: Any
    end: Any = fields.number("a token id", lambda x: x >= 0, np.int32)
    threshold: Any = fields.number("a number", lambda x: x == x)
    window: Any = fields.number("an int of 1 or more", lambda x: x >= 1, np.int32)
    num_tokens: int = fields.count()
    continues = False  # Tokens of the prompt have no confidence.

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.vocab_size
        if self.num_tokens > size:
            expected = f"an int from 1 to {size}, the model's vocabulary"
            raise fields.error("confident.num_tokens", expected, self.num_tokens)
        if fields.is_readable(self.end) and np.max(self.end) >= size:
            largest = int(np.max(self.end))
            raise fields.error("confident.end", f"a token id below {size}", largest)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.model,)

    def combine(self, log_probs: Sequence[Array]) -> Array:
        return log_probs[0]

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, Any]:
        """See ``LanguageModel.prefill``."""
        output, held = super().prefill(
            tokens, length, lanes=lanes, slots=slots, with_hidden=with_hidden
        )
        own = self._confidence(output.logits)
        shape = (own.shape[0], lanes)
        cache = ConfidentCache(
            held,
            jnp.broadcast_to(own[..., 0], shape),
            jnp.zeros((*shape, slots), jnp.float32),
            jnp.zeros((*shape, slots), jnp.int32),
        )
        return self._ended(output, own, jnp.ones_like(own, jnp.int32)), cache

    def extend(
        self,
        cache: Any,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, Any]:
        """See ``LanguageModel.extend``."""
        output, held = super().extend(cache.model, tokens, start, visible, position)
        own = self._confidence(output.logits)
        start = jnp.asarray(start, jnp.int32)
        slot = jnp.arange(cache.slots.shape[-1], dtype=jnp.int32)[None, None, None]
        if visible is None:
            new = jnp.arange(own.shape[-1], dtype=jnp.int32)[None, None]
            first = start.reshape(start.shape or (1, 1))[..., None]
            depth = jnp.broadcast_to(first + new, own.shape)
            before = slot < depth[..., None]
        else:
            unseen = slot.shape[-1] - visible.shape[-1]
            before = jnp.pad(visible, ((0, 0), (0, 0), (0, 0), (0, unseen)))
            depth = before.sum(-1, dtype=jnp.int32)
        cache = cache._replace(
            model=held,
            slots=_written(cache.slots, own, start),
            depth=_written(cache.depth, depth, start),
        )
        earliest = depth - rows.per_row(self, "window", own, jnp.int32)
        in_window = before & (cache.depth[:, :, None] > earliest[..., None])
        total = own + jnp.where(in_window, cache.slots[:, :, None], 0).sum(-1)
        total += jnp.where(earliest < -1, cache.first[..., None], 0)
        return self._ended(output, total, depth + 2), cache

    def keep(self, cache: Any, source: Array, start: Array | int) -> Any:
        """See ``SupportsKeep.keep``."""
        at = jnp.clip(source, 0, cache.slots.shape[-1] - 1)
        start = jnp.broadcast_to(jnp.asarray(start, jnp.int32), source.shape[:2])

        def moved(values: Array) -> Array:
            return _written(values, jnp.take_along_axis(values, at, axis=-1), start)

        held = super().keep(cache.model, source, start)
        return cache._replace(model=held, slots=moved(cache.slots), depth=moved(cache.depth))

    def select(self, cache: Any, lanes: Array) -> Any:
        """See ``SupportsSelect.select``."""
        gather = jax.vmap(lambda values, index: values[index])
        held = super().select(cache.model, lanes)
        return ConfidentCache(held, *(gather(values, lanes) for values in cache[1:]))

    def _confidence(self, log_probs: Array) -> Array:
        """The confidence ``[B, W, T]`` in the tokens of log-probabilities ``[B, W, T, V]``."""
        return -exact.sum_last(top_k(clean(log_probs), self.num_tokens)[0]) / self.num_tokens

    def _ended(self, output: ModelOutput, total: Array, count: Array) -> ModelOutput:
        """The output, in which ``end`` is certain where a whole window is below the threshold.

        Args:
          output: of the model.
          total: float32 ``[B, W, T]``, the sum of the confidences of a window.
          count: int32 ``[B, W, T]``, the number of new tokens, that of the next one included.
        """
        window = rows.per_row(self, "window", total, jnp.int32)
        mean = total / window.astype(jnp.float32)
        is_low = (count >= window) & (mean < rows.per_row(self, "threshold", total))
        end = rows.per_row(self, "end", output.logits, jnp.int32)
        return output._replace(logits=only(output.logits, is_low, end))


def _written(slots: Array, new: Array, start: Array) -> Array:
    """``slots [B, W, S]`` with ``new [B, W, T]`` from ``start`` on."""
    return caches.write(slots[..., None], new[..., None], start)[..., 0]


def confident(
    model: Any, end: Any, threshold: Any, *, window: Any = 2048, num_tokens: int = 20
) -> Confident:
    """A model that ends a text as soon as it is not confident enough: DeepConf's early stopping.

    The confidence in a token, before it is drawn, is minus the mean log-probability of the k most
    probable tokens there: at least log k, which an even distribution over k tokens has, and the
    larger, the fewer of them have nearly all the probability. Where the mean of the last ``window``
    of them, that of the next token included, is below the threshold, the next token is ``end``,
    with certainty. Everywhere else, and before ``window`` tokens are reached, the distribution is
    the model's. Fu, Wang, Tian & Zhao (2025), "Deep think with confidence", arXiv:2508.15260,
    section 3.2; the token that ends a text is that of the authors' own program.

    The confidence is the model's, before the transform of a strategy. The result is a language
    model, whose ``log_prob`` of a forced token is 0. With an end token of its own, such as one that
    the model never draws, a text shows that it was ended: name it in ``Stop.eos_ids`` beside the
    model's. ``estimators.choice.majority`` elects an answer of those that remain.

    Args:
      model: a language model, bound to its inputs if it takes any.
      end: the token that ends a text: an int, or one for each row ``[B]``.
      threshold: in nats: a number, or one for each row ``[B]``. The authors take a quantile of the
        lowest running means of a few whole texts; see ``estimators.confidence``.
      window: the number of tokens of a mean, 1 and above: an int, or one for each row ``[B]``.
      num_tokens: k.

    Returns:
      A language model; ``end``, ``threshold`` and ``window`` are leaves.

    Raises:
      ValueError: for no language model, and for a number that is out of range.

    Example:
      >>> from decoding_jax.testing import TableLM
      >>> table = TableLM.random(jax.random.key(0), 5)
      >>> confident(table, end=0, threshold=1.5, window=3, num_tokens=2).vocab_size
      5
    """
    check_model(model)
    return Confident(model, end, threshold, window, num_tokens)
