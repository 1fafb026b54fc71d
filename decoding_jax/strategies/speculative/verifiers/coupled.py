"""Verifiers whose samples do not depend on the drafter: greedy, Gumbel-coupled, code-coupled.

Target and draft choose by the same rule from their own distributions: the most probable token, the
argmax of logits plus the same Gumbel noise, or the token of the same arithmetic code. A drafted
token is accepted if the target chooses it too.

A token's logit plus Gumbel noise is, up to a constant, the logarithm of its weight
``exp(logit - peak)`` divided by an exponential variable. The token with the largest of these
quotients is chosen, without taking logarithms: a logarithm would round large quotients to the same
number, and adding noise to a logit far from 0 would round the noise away.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes, fields
from decoding_jax.base import Array
from decoding_jax.ops import exact, random
from decoding_jax.ops.gather import where_lanes
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import Draft, count_leading
from decoding_jax.strategies.speculative.verifiers.base import Verification


def count_matching(draft: Draft, chosen: Array) -> Array:
    """The number of leading drafted tokens that the target chooses too, int32 ``[B, W]``.

    Args:
      draft: K drafted tokens of every lane.
      chosen: int32 ``[B, W, K + 1]``, the target's choice at each position.
    """
    return count_leading(draft.valid & (draft.tokens == chosen[:, :, :-1]))


@pytree
@dataclasses.dataclass(frozen=True)
class GreedyVerifier:
    """Decodes the sequences of ``greedy``, whatever the draft is. It needs no key."""

    needs_key: ClassVar[bool] = False

    def init(self, key: Array | None, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return (), ()

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        return lowest_argmax(distribution.logits), state

    def verify(
        self,
        keys: Any,
        state: Any,
        draft: Draft,
        target: Softmax,
        position: Array,
        counter: Array,
    ) -> Verification:
        """See ``Verifier.verify``."""
        chosen = lowest_argmax(target.logits)
        return Verification(chosen, count_matching(draft, chosen), state)


@pytree
@dataclasses.dataclass(frozen=True)
class GumbelVerifier:
    """Samples that depend only on the key and the target: no draft changes any token.

    After Daliri, Musco and Suresh 2025, "Coupling without Communication and Drafter-Invariant
    Speculative Decoding". Every lane has independent Gumbel noise for each position and token,
    which target and draft share. They choose the same token with probability at least
    (1 - d) / (1 + d), where d is the total variation distance of the two distributions. For every
    position, V random numbers of 64 bits are drawn twice. Each token's probability is that of its
    logits to 1e-6, whatever constant is added to all of them.
    """

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return random.lane_keys(random.row_keys(key, batch_size), lanes), ()

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        noise = exponentials(keys, position[..., None], distribution.logits.shape[-1])[:, :, 0]
        return choose_token(distribution, noise), state

    def verify(
        self,
        keys: Any,
        state: Any,
        draft: Draft,
        target: Softmax,
        position: Array,
        counter: Array,
    ) -> Verification:
        """See ``Verifier.verify``."""
        offset = jnp.arange(target.logits.shape[2], dtype=jnp.int32)[None, None]
        positions = position[..., None] + offset
        chosen = choose_token(target, exponentials(keys, positions, target.logits.shape[-1]))
        return Verification(chosen, count_matching(draft, chosen), state)


def choose_token(distribution: Softmax, noise: Array) -> Array:
    """The token with the largest weight divided by its noise, int32 ``[...]``.

    Args:
      distribution: of ``[..., V]``.
      noise: float32 ``[..., V]``, from ``exponentials``.
    """
    return lowest_argmax(exact.exp(distribution.logits - distribution.peak) / noise)


def exponentials(keys: Array, position: Array, size: int) -> Array:
    """A standard exponential variable for every lane, position and token.

    Args:
      keys: typed keys ``[B, W]``.
      position: int32 ``[B, W, T]``.
      size: V.

    Returns:
      float32 ``[B, W, T, V]``, finite and above 0.
    """

    def at_position(key: Array, position: Array) -> Array:
        tokens = jnp.arange(size, dtype=jnp.int32)
        token_keys = jax.vmap(jax.random.fold_in, (None, 0))(
            jax.random.fold_in(key, position), tokens
        )
        return random.exponential(jax.random.key_data(token_keys)[..., :2])

    at_positions = jax.vmap(at_position, (None, 0))
    return jax.vmap(jax.vmap(at_positions))(keys, position)


@pytree
@dataclasses.dataclass(frozen=True)
class CodeVerifier:
    """Decodes the sequences of ``arithmetic_sample`` with the same key and settings.

    The samples of a row are spread as evenly as theirs. The draft decodes the remaining code of the
    lane by the draft's distribution. Once that code is used up, target and draft decode the same
    random bits at each position, or the same next code. A drafted token is accepted if both decode
    the same token.

    Attributes:
      points, order, after: as for ``arithmetic_sample``.

    Raises:
      ValueError: for an order or a way of going on that is not one of these.
    """

    points: str | codes.Points = fields.field(codes.as_points, static=True, default="lattice")
    order: str = fields.choice(*codes.ORDERS, default="id")
    after: str = fields.choice(*codes.AFTER, default="independent")

    def __post_init__(self) -> None:
        fields.check(self)

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        code = codes.start(self.points, random.row_keys(key, batch_size), lanes, self.after)
        return code.keys, _carried(code)

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        offset, last, *used = state
        code = codes.Code(offset, last, keys, *used)
        token, code = codes.choose(
            code, distribution.logits, position, distribution.sums, self.order
        )
        return token, _carried(code)

    def verify(
        self,
        keys: Any,
        state: Any,
        draft: Draft,
        target: Softmax,
        position: Array,
        counter: Array,
    ) -> Verification:
        """See ``Verifier.verify``."""
        drafted = jnp.where(draft.valid, draft.tokens, -1)
        drafted = jnp.pad(drafted, ((0, 0), (0, 0), (0, 1)), constant_values=-1)

        def decode(t: Any, carry: Any) -> Any:
            chosen, state, matching = carry
            distribution = jax.tree.map(
                lambda x: lax.dynamic_index_in_dim(x, t, 2, keepdims=False), target
            )
            token, new = self.draw(keys, state, distribution, position + t, counter)
            # The code advances only while the drafted tokens are those that the target decodes.
            state = where_lanes(matching, new, state)
            chosen = lax.dynamic_update_index_in_dim(chosen, token, t, 2)
            matching &= token == lax.dynamic_index_in_dim(drafted, t, 2, keepdims=False)
            return chosen, state, matching

        carry = jnp.zeros_like(drafted), state, jnp.ones(position.shape, bool)
        chosen, state, _ = lax.fori_loop(0, target.logits.shape[2], decode, carry)
        return Verification(chosen, count_matching(draft, chosen), state)


def _carried(code: codes.Code) -> tuple[Array, ...]:
    """What a code's tokens change, for the verifier's state."""
    used = () if code.used is None else (code.used,)
    return code.offset, code.last, *used
