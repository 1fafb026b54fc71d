"""How many tokens to draft: always K, or as many as pay off."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Protocol, SupportsIndex

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.theory import emitted_tokens


def _static(**options: Any) -> Any:
    return dataclasses.field(metadata={"static": True}, **options)


class DraftLength(Protocol):
    """Chooses K anew for every lane and block, from what was accepted of it before.

    Attributes:
      most: the largest K. A call of the target always takes ``most + 1`` tokens; the drafter is
        called as often as the lane with the largest K needs.
    """

    @property
    def most(self) -> int: ...

    def init(self, batch_size: int, lanes: int) -> Any:
        """The state before the first block: arrays ``[B, W, ...]``."""
        ...

    def count(self, state: Any) -> Array:
        """K of the next block, int32 ``[B, W]``, from 0 to ``most``."""
        ...

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """The state after a block of ``proposed [B, W]`` tokens, ``accepted`` of which stood."""
        ...


@pytree
@dataclasses.dataclass(frozen=True)
class Fixed:
    """Always K.

    Attributes:
      most: K, 1 or more.
    """

    most: int = _static()

    def __post_init__(self) -> None:
        _check(self.most)

    def init(self, batch_size: int, lanes: int) -> Any:
        """See ``DraftLength.init``."""
        return jnp.full((batch_size, lanes), self.most, jnp.int32)

    def count(self, state: Any) -> Array:
        """See ``DraftLength.count``."""
        return state

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """See ``DraftLength.update``."""
        return state


@pytree
@dataclasses.dataclass(frozen=True)
class Heuristic:
    """Two more after a block that was accepted whole, else one less: transformers' rule.

    Attributes:
      most: the largest K, 1 or more.
      first: K of the first block, 0 or more.
    """

    most: int = _static(default=20)
    first: int = _static(default=5)

    def __post_init__(self) -> None:
        _check(self.most)
        if self.first < 0:
            raise ValueError(f"first: got {self.first}; takes 0 or more")

    def init(self, batch_size: int, lanes: int) -> Any:
        """See ``DraftLength.init``."""
        return jnp.full((batch_size, lanes), min(self.first, self.most), jnp.int32)

    def count(self, state: Any) -> Array:
        """See ``DraftLength.count``."""
        return state

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """See ``DraftLength.update``."""
        longer = jnp.where(accepted == proposed, state + 2, state - 1)
        return jnp.clip(longer, 1, self.most)


@pytree
@dataclasses.dataclass(frozen=True)
class Measured:
    """The K with the most tokens for the time, at the acceptance rate measured so far.

    Leviathan et al. 2022, equation 1 and theorem 3.8: a block of K emits ``(1 - a^(K + 1)) /
    (1 - a)`` tokens in the time of ``K c + 1`` of the target's calls. Where no K gains anything,
    1 is taken, so that the rate goes on being measured.

    Attributes:
      most: the largest K, 1 or more.
      cost_ratio: c, the time of a drafted token over that of a call of the target.
      guess: the acceptance rate before anything is measured; it counts as four tokens.
    """

    most: int = _static(default=8)
    cost_ratio: float = _static(default=0.2)
    guess: float = _static(default=0.7)

    def __post_init__(self) -> None:
        _check(self.most)
        if not self.cost_ratio >= 0:
            raise ValueError(f"cost_ratio: got {self.cost_ratio}; takes numbers of 0 and above")
        if not 0 <= self.guess <= 1:
            raise ValueError(f"guess: got {self.guess}; takes a rate from 0 to 1")

    def init(self, batch_size: int, lanes: int) -> Any:
        """See ``DraftLength.init``: tokens accepted and tokens judged, float32 ``[B, W, 2]``."""
        prior = jnp.array([4 * self.guess, 4.0], jnp.float32)
        return jnp.broadcast_to(prior, (batch_size, lanes, 2))

    def count(self, state: Any) -> Array:
        """See ``DraftLength.count``."""
        rate = (state[..., 0] / state[..., 1])[..., None]
        sizes = jnp.arange(1, self.most + 1, dtype=jnp.float32)[None, None]
        gain = emitted_tokens(rate, sizes) / (sizes * self.cost_ratio + 1)
        return 1 + lax.argmax(gain, gain.ndim - 1, jnp.int32)

    def update(self, state: Any, proposed: Array, accepted: Array) -> Any:
        """See ``DraftLength.update``."""
        judged = jnp.minimum(accepted + 1, proposed)
        return state + jnp.stack([accepted, judged], -1).astype(jnp.float32)


def _check(most: int) -> None:
    if most < 1:
        raise ValueError(f"num_draft_tokens: got {most}; takes 1 or more")


def as_draft_length(num_draft_tokens: int | DraftLength) -> DraftLength:
    """An int as ``Fixed``; others as they are.

    Raises:
      ValueError: for an int below 1, or what is neither an int nor a ``DraftLength``.
    """
    if isinstance(num_draft_tokens, SupportsIndex):
        return Fixed(operator.index(num_draft_tokens))
    if not hasattr(num_draft_tokens, "most"):
        raise ValueError(
            f"num_draft_tokens: got {num_draft_tokens!r}; takes an int or a DraftLength"
        )
    return num_draft_tokens
