"""Code-coupled verification: target and draft decode the same arithmetic code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes, fields
from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import Draft
from decoding_jax.strategies.speculative.verifiers.base import Verification
from decoding_jax.strategies.speculative.verifiers.greedy import count_matching


@pytree
@dataclasses.dataclass(frozen=True)
class CodeVerifier:
    """Decodes the sequences of ``arithmetic_sample`` with the same key and points.

    The samples of a row are spread as evenly as theirs. The draft decodes the remaining code of the
    lane by the draft's distribution. Once that code is used up, target and draft decode the same
    random bits at each position. A drafted token is accepted if both decode the same token.

    Attributes:
      points: the point set, as for ``arithmetic_sample``.
    """

    points: str | codes.Points = fields.field(static=True, default="lattice")

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        code = codes.start(self.points, random.row_keys(key, batch_size), lanes)
        return code.keys, (code.offset, code.last)

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        code = codes.Code(state[0], state[1], keys)
        token, code = codes.choose(code, distribution.logits, position, distribution.sums)
        return token, (code.offset, code.last)

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
            where = matching[..., None]
            state = tuple(jnp.where(where, n, s) for n, s in zip(new, state, strict=True))
            chosen = lax.dynamic_update_index_in_dim(chosen, token, t, 2)
            matching &= token == lax.dynamic_index_in_dim(drafted, t, 2, keepdims=False)
            return chosen, state, matching

        carry = jnp.zeros_like(drafted), state, jnp.ones(position.shape, bool)
        chosen, state, _ = lax.fori_loop(0, target.logits.shape[2], decode, carry)
        return Verification(chosen, count_matching(draft, chosen), state)
