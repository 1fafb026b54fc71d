"""The number of tokens to draft: a fixed K, or one chosen by how many were accepted.

``emitted_tokens`` and ``speed_up`` are what theory predicts for a K.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol, SupportsIndex

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.pytrees import pytree


class DraftLength(Protocol):
    """Chooses K for every lane and block by the number of tokens accepted in earlier blocks.

    Attributes:
      max_draft_tokens: the largest K, an int. A call of the target always takes
        ``max_draft_tokens + 1`` tokens; the drafter is called as many times as the lane with the
        largest K needs.
    """

    @property
    def max_draft_tokens(self) -> Any: ...

    def init(self, batch_size: int, lanes: int) -> Any:
        """The state before the first block: arrays ``[B, W, ...]``."""
        ...

    def count(self, state: Any) -> Array:
        """K of the next block, int32 ``[B, W]``, from 0 to ``max_draft_tokens``."""
        ...

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """The state after ``accepted`` of ``proposed`` tokens were accepted, both ``[B, W]``."""
        ...


@pytree
@dataclasses.dataclass(frozen=True)
class Fixed:
    """A fixed K.

    Attributes:
      max_draft_tokens: K, 1 or more.
    """

    max_draft_tokens: int = fields.count()

    def __post_init__(self) -> None:
        fields.check(self)

    def init(self, batch_size: int, lanes: int) -> Any:
        """See ``DraftLength.init``."""
        return jnp.full((batch_size, lanes), self.max_draft_tokens, jnp.int32)

    def count(self, state: Any) -> Array:
        """See ``DraftLength.count``."""
        return state

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """See ``DraftLength.update``."""
        return state


@pytree
@dataclasses.dataclass(frozen=True)
class Heuristic:
    """K grows by 2 after a fully accepted block, else shrinks by 1: the rule of ``transformers``.

    Attributes:
      max_draft_tokens: the largest K, 1 or more. With None, ``speculative_sample`` computes a bound
        that K does not exceed within ``max_new_tokens`` (see ``max_reached``), so K is not limited.
        If drafts may end before K tokens, as with ``min_confidence`` or ``PromptLookup``, K can
        grow faster, and is clipped at that bound.
      first: the K of the first block, 0 or more.

    Example:
      >>> Heuristic(max_draft_tokens=None, first=5).bounded(64).max_draft_tokens
      14
    """

    max_draft_tokens: Any = fields.field(
        lambda name, value: None if value is None else fields.as_count(name, value),
        expected="an int of 1 or more, or None",
        static=True,
        default=20,
    )
    first: int = fields.count(0, default=5)

    def __post_init__(self) -> None:
        fields.check(self)

    def init(self, batch_size: int, lanes: int) -> Any:
        """See ``DraftLength.init``."""
        assert self.max_draft_tokens is not None
        return jnp.full((batch_size, lanes), min(self.first, self.max_draft_tokens), jnp.int32)

    def count(self, state: Any) -> Array:
        """See ``DraftLength.count``."""
        return state

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """See ``DraftLength.update``."""
        draft_length = jnp.where(accepted == proposed, state + 2, state - 1)
        return jnp.clip(draft_length, 1, self.max_draft_tokens)

    def bounded(self, max_new_tokens: int) -> Heuristic:
        """The same rule with a largest K, which texts of ``max_new_tokens`` never exceed."""
        if self.max_draft_tokens is not None:
            return self
        return dataclasses.replace(self, max_draft_tokens=max_reached(self.first, max_new_tokens))


def max_reached(first: int, max_new_tokens: int) -> int:
    """An upper bound of the tokens that a block drafts, if K grows by 2 or shrinks by 1.

    While K grows from k to k + 2, the text grows by k + 1 tokens. So K^2 / 4 grows no faster than
    the text, and K is at most the square root of ``first^2 + 4 (length - 1)``. A block also drafts
    no more tokens than the text has room for.

    Args:
      first: the K of the first block, which begins after one token.
      max_new_tokens: the maximum number of new tokens.

    Example:
      >>> [max_reached(first, 64) for first in (1, 5, 20, 100)]
      [13, 14, 23, 62]
    """
    before = range(1, max_new_tokens)
    rooms = (min(math.isqrt(first**2 + 4 * (n - 1)), max_new_tokens - n - 1) for n in before)
    return max(1, *rooms, 1)


@pytree
@dataclasses.dataclass(frozen=True)
class Measured:
    """The K with the highest speed-up at the acceptance rate measured so far.

    Leviathan et al. 2022, equation 1 and theorem 3.8: a block with K drafted tokens emits
    ``(1 - a^(K + 1)) / (1 - a)`` tokens in the time of ``K c + 1`` calls of the target. If no K is
    faster than plain decoding, K is 1, so that the rate is still measured.

    Attributes:
      max_draft_tokens: the largest K, 1 or more.
      cost_ratio: c, the time of a drafted token, relative to a call of the target.
      guess: the assumed acceptance rate, which is weighted as four measured tokens.
    """

    max_draft_tokens: int = fields.count(default=8)
    cost_ratio: float = fields.static_number("a number of 0 or more", lambda x: x >= 0, default=0.2)
    guess: float = fields.static_number("a rate from 0 to 1", lambda x: 0 <= x <= 1, default=0.7)

    def __post_init__(self) -> None:
        fields.check(self)

    def init(self, batch_size: int, lanes: int) -> Any:
        """See ``DraftLength.init``: counts of accepted and verified tokens, ``[B, W, 2]``."""
        prior = jnp.array([4 * self.guess, 4.0], jnp.float32)
        return jnp.broadcast_to(prior, (batch_size, lanes, 2))

    def count(self, state: Any) -> Array:
        """See ``DraftLength.count``."""
        rate = (state[..., 0] / state[..., 1])[..., None]
        sizes = jnp.arange(1, self.max_draft_tokens + 1, dtype=jnp.float32)[None, None]
        gain = emitted_tokens(rate, sizes) / (sizes * self.cost_ratio + 1)
        return 1 + lax.argmax(gain, gain.ndim - 1, jnp.int32)

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """See ``DraftLength.update``."""
        verified = jnp.minimum(accepted + 1, proposed)
        return state + jnp.stack([accepted, verified], -1).astype(jnp.float32)


def check_draft_tokens(name: str, value: Any) -> int | DraftLength:
    """Checks that a setting is an int of 1 or more, or an object that chooses K.

    Raises:
      ValueError: for anything else.
    """
    if hasattr(value, "max_draft_tokens") and not isinstance(value, type):
        return value
    if isinstance(value, SupportsIndex):
        return fields.as_count(name, value)
    raise fields.error(name, "an int of 1 or more, Heuristic or Measured", value)


def as_draft_length(num_draft_tokens: int | DraftLength, max_new_tokens: int) -> DraftLength:
    """Converts an int to ``Fixed``, and sets the largest K of a ``Heuristic`` that has none.

    Args:
      num_draft_tokens: K, or an object that chooses it. Other objects are returned unchanged.
      max_new_tokens: the maximum number of new tokens.
    """
    if isinstance(num_draft_tokens, int):
        return Fixed(num_draft_tokens)
    if isinstance(num_draft_tokens, Heuristic):
        return num_draft_tokens.bounded(max_new_tokens)
    return num_draft_tokens


def emitted_tokens(acceptance: ArrayLike, num_draft_tokens: ArrayLike) -> Array:
    """The expected tokens of a block.

    They are ``1 + a + ... + a^K``: Leviathan et al. 2022, equation 1.

    Args:
      acceptance: a, the probability that a drafted token is accepted if all before it are.
      num_draft_tokens: K.

    Example:
      >>> emitted_tokens(0.5, 2).item(), emitted_tokens(1.0, 3).item()
      (1.75, 4.0)
    """
    a, size = jnp.asarray(acceptance, jnp.float32), jnp.asarray(num_draft_tokens, jnp.float32)
    a_below_1 = jnp.where(a < 1, a, 0.0)  # Avoids a division by 0.
    return jnp.where(a < 1, (1 - a_below_1 ** (size + 1)) / (1 - a_below_1), size + 1)


def speed_up(
    emitted: ArrayLike,
    num_draft_tokens: ArrayLike,
    cost_ratio: ArrayLike,
    block_cost: ArrayLike = 1.0,
) -> Array:
    """The time of plain decoding divided by that of speculation, ``R / (K c + v)``.

    Args:
      emitted: R, the number of tokens for each row and loop iteration. For one row it is
        ``emitted_tokens``; with v = 1, this is the formula of Leviathan et al. 2022, theorem 3.8.
        For a batch, which runs until its last row is done, it is ``Info.tokens_per_iteration``.
      num_draft_tokens: K.
      cost_ratio: c, the time of a drafted token, relative to a token of plain decoding.
      block_cost: v, the time of a call of the target with K + 1 tokens, relative to one token.

    Example:
      >>> round(speed_up(emitted_tokens(0.8, 4), 4, 0.05).item(), 3)
      2.801
    """
    size = jnp.asarray(num_draft_tokens, jnp.float32)
    return jnp.asarray(emitted, jnp.float32) / (size * cost_ratio + block_cost)
