"""Token verification of drafts that are drawn by arithmetic code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import codes
from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.block import Block, Verdict, with_own
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.verifiers import token


@pytree
@dataclasses.dataclass(frozen=True)
class CodedToken:
    """Token verification whose drafts, over a row's samples, are spread as evenly as a lattice.

    Each sample follows the target exactly and accepts as many tokens as ``Token`` does. The
    samples are not those of ``arithmetic_sample``: what is rejected is replaced independently, so
    part of the even spread is lost, the more the less is accepted.

    Attributes:
      points: the point set, as for ``arithmetic_sample``.
    """

    points: str | codes.Points = dataclasses.field(default="lattice", metadata={"static": True})

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        keys, rest = random.split(random.row_keys(key, batch_size))
        code = codes.start(self.points, keys, lanes)
        _, chances, own = token.streams(rest, batch_size, lanes)
        return (code.keys, chances, own), (code.offset, code.last)

    def draw(
        self, seed: Any, memory: Any, law: Softmax, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        code = codes.Code(memory[0], memory[1], seed[0])
        chosen, code = codes.choose(code, law.logits, position, law.sums)
        return chosen, (code.offset, code.last)

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
        both = token.compare(block, law)
        accepted = token.judge(seed, block, both, clock)
        rejected = accepted < block.drafted
        if block.law is not None:
            memory = at_last_draw(memory, block, accepted)
        # A rejected token has used its code up: what stands in its place has bits of its own.
        here = law.at(accepted)
        spread, further = self.draw(seed, memory, here, position + accepted, clock)
        own = jnp.where(rejected, token.draw_own(seed, block, both, accepted, clock), spread)
        memory = jax.tree.map(lambda m, n: jnp.where(rejected[..., None], m, n), memory, further)
        return Verdict(with_own(block, accepted, own), accepted, memory)


def at_last_draw(memory: Any, block: Block, accepted: Array) -> Any:
    """The memory as of the last draw that was looked at: of the rejected token, or of the last."""
    index = jnp.minimum(accepted, block.drafted - 1)

    def choose(before: Array, trail: Array) -> Array:
        after = distributions.at(jnp.moveaxis(trail, 0, 2), index)
        return jnp.where((index < 0)[..., None], before, after)

    return jax.tree.map(choose, memory, block.trail)
