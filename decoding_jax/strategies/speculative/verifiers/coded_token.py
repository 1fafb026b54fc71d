"""Token verification of drafts that are drawn by arithmetic code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import codes, fields
from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_position
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import Draft, with_final_token
from decoding_jax.strategies.speculative.verifiers import token
from decoding_jax.strategies.speculative.verifiers.base import Verification
from decoding_jax.strategies.speculative.verifiers.token import TokenKeys


@pytree
@dataclasses.dataclass(frozen=True)
class CodedTokenVerifier:
    """Token verification whose drafts are spread evenly over a row's samples, as on a lattice.

    Each sample follows the target exactly, and tokens are accepted as often as by
    ``TokenVerifier``. The samples are not those of ``arithmetic_sample``: rejected tokens are
    replaced independently, so part of the even spread is lost. The fewer tokens are accepted, the
    more of it is lost.

    Attributes:
      points: the point set, as for ``arithmetic_sample``.
    """

    points: str | codes.Points = fields.field(static=True, default="lattice")

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        code_keys, rest = random.split(random.row_keys(key, batch_size))
        code = codes.start(self.points, code_keys, lanes)
        keys = token.make_keys(rest, batch_size, lanes)._replace(draws=code.keys)
        return keys, (code.offset, code.last)

    def draw(
        self, keys: TokenKeys, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        code = codes.Code(state[0], state[1], keys.draws)
        chosen, code = codes.choose(code, distribution.logits, position, distribution.sums)
        return chosen, (code.offset, code.last)

    def verify(
        self,
        keys: TokenKeys,
        state: Any,
        draft: Draft,
        target: Softmax,
        position: Array,
        counter: Array,
    ) -> Verification:
        """See ``Verifier.verify``."""
        accepted = token.count_accepted(keys, draft, target, counter)
        rejected = accepted < draft.length
        if draft.distribution is not None:
            state = state_after_last_draw(state, draft, accepted)
        # A rejected token has used up its code, so its replacement is drawn from fresh bits. Where
        # all tokens were accepted, the next one is decoded from the code.
        decoded, state_after = self.draw(
            keys, state, target.gather_position(accepted), position + accepted, counter
        )
        replacement = token.draw_final(keys, draft, target, accepted, counter)
        final = jnp.where(rejected, replacement, decoded)
        state = jax.tree.map(
            lambda before, after: jnp.where(rejected[..., None], before, after), state, state_after
        )
        return Verification(with_final_token(draft, accepted, final), accepted, state)


def state_after_last_draw(state: Any, draft: Draft, accepted: Array) -> Any:
    """The state after the draw of the first rejected token, or of the last token if none was."""
    index = jnp.minimum(accepted, draft.length - 1)

    def choose(before: Array, states: Array) -> Array:
        after = gather_position(jnp.moveaxis(states, 0, 2), index)
        return jnp.where((index < 0)[..., None], before, after)

    return jax.tree.map(choose, state, draft.states)
