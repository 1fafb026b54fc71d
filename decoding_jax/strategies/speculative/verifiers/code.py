"""Code-coupled verification: target and draft decode the same arithmetic code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes
from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.block import Block, Verdict
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.verifiers.greedy import match


@pytree
@dataclasses.dataclass(frozen=True)
class Code:
    """Gives the sequences of ``arithmetic_sample`` with the same key and points.

    The samples of a row are spread as evenly as there. The draft decodes what is left of the
    lane's code by its own law, and once that code is used up the bits that the target draws at the
    same position; where the two find the same token, it stands.

    Attributes:
      points: the point set, as for ``arithmetic_sample``.
    """

    points: str | codes.Points = dataclasses.field(default="lattice", metadata={"static": True})

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        code = codes.start(self.points, random.row_keys(key, batch_size), lanes)
        return code.keys, (code.offset, code.last)

    def draw(
        self, seed: Any, memory: Any, law: Softmax, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        code = codes.Code(memory[0], memory[1], seed)
        token, code = codes.choose(code, law.logits, position, law.sums)
        return token, (code.offset, code.last)

    def verify(
        self,
        seed: Any,
        memory: Any,
        block: Block,
        law: distributions.Softmax,
        position: Array,
        clock: Array,
    ) -> Verdict:
        """See ``Verifier.verify``."""
        drafted = jnp.where(block.proposed, block.tokens, -1)
        drafted = jnp.pad(drafted, ((0, 0), (0, 0), (0, 1)), constant_values=-1)

        def step(t: Any, carry: Any) -> Any:
            own, memory, alive = carry
            here = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, 2, keepdims=False), law)
            token, new = self.draw(seed, memory, here, position + t, clock)
            # The code goes on from a token only where the drafted path still is the target's.
            keep = alive[..., None]
            memory = tuple(jnp.where(keep, n, m) for n, m in zip(new, memory, strict=True))
            own = lax.dynamic_update_index_in_dim(own, token, t, 2)
            alive &= token == lax.dynamic_index_in_dim(drafted, t, 2, keepdims=False)
            return own, memory, alive

        alive = jnp.ones(position.shape, bool)
        carry = jnp.zeros_like(drafted), memory, alive
        own, memory, _ = lax.fori_loop(0, law.logits.shape[2], step, carry)
        return Verdict(own, match(block, own), memory)
