"""Token verification: each drafted token is accepted with probability min(1, p / q).

Drafts are drawn independently, or by an arithmetic code that spreads them over the samples.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes, fields
from decoding_jax.base import Array
from decoding_jax.ops import exact, gpu, random
from decoding_jax.ops.gather import gather_last, gather_position
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import (
    AcceptedPath,
    Draft,
    Drafts,
    count_leading,
    with_final_token,
)
from decoding_jax.strategies.speculative.verifiers.base import Verification


class TokenKeys(NamedTuple):
    """Typed keys ``[B, W]`` of every lane, for three independent purposes.

    Attributes:
      draws: to draw tokens.
      acceptance: to accept or reject drafted tokens.
      final: to draw the token after the accepted ones.
    """

    draws: Array
    acceptance: Array
    final: Array


@pytree
@dataclasses.dataclass(frozen=True)
class TokenVerifier:
    """Accepts drafted tokens one by one; samples follow the target exactly, whatever the draft.

    Leviathan, Kalman and Matias 2022, "Fast Inference from Transformers via Speculative Decoding",
    Algorithm 1; Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative
    Sampling", Algorithm 2. With the target's probability p and the draft's q, a drafted token is
    accepted with probability min(1, p / q). The first rejected token is replaced by one drawn in
    proportion to max(p - q, 0). On average, a token is accepted with probability sum(min(p, q)),
    which no coupling of p and q exceeds.
    """

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return make_keys(key, batch_size, lanes), ()

    def draw(
        self, keys: TokenKeys, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        bits = random.bits_at(keys.draws, counter)
        return codes.draw(distribution.logits, bits, distribution.sums), state

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
        accepted = count_accepted(keys, draft, target, counter)
        final = draw_final(keys, draft, target, accepted, counter)
        return Verification(with_final_token(draft, accepted, final), accepted, state)

    def verify_tree(
        self, keys: TokenKeys, drafts: Drafts, length: Array, target: Array, counter: Array
    ) -> AcceptedPath:
        """See ``TreeVerifier.verify_tree``.

        Miao et al. 2023, "SpecInfer", Algorithm 2. At every level, the drafts that agree with all
        accepted tokens are tried one after another against the target's distribution; after each
        rejection, p is replaced by ``max(p - q, 0)``, normalised.
        """
        size, num_drafts = drafts.tokens.shape[2:]
        uniforms = acceptance_uniforms(keys, counter, size * num_drafts)

        def try_level(i: Array | int, carry: Any) -> Any:
            path, agreeing, leftover = carry
            active = (path.accepted == i) & (i < length)
            tokens = lax.dynamic_index_in_dim(drafts.tokens, i, 2, keepdims=False)
            logits = lax.dynamic_index_in_dim(drafts.logits, i, 2, keepdims=False)
            node = lax.dynamic_index_in_dim(path.nodes, i, 2, keepdims=False)
            # All drafts that agree so far have the same path, and therefore the same distribution.
            representative = lax.argmax(agreeing, agreeing.ndim - 1, jnp.int32)
            q = distributions.softmax(gather_position(logits, representative)).probs()
            p = distributions.softmax(gather_position(target, node)).probs()
            accepted, chosen = jnp.zeros(active.shape, bool), jnp.zeros_like(node)
            for c in range(num_drafts):
                uniform = lax.dynamic_index_in_dim(uniforms, i * num_drafts + c, 2, keepdims=False)
                tried = agreeing[..., c] & ~accepted
                accept = tried & (
                    uniform * gather_last(q, tokens[..., c]) < gather_last(p, tokens[..., c])
                )
                accepted, chosen = accepted | accept, jnp.where(accept, c, chosen)
                residual = distributions.residual(p, q)
                residual = residual / exact.sum_last(residual)[..., None]
                p = jnp.where((tried & ~accept)[..., None], residual, p)
            continues, token = active & accepted, gather_last(tokens, chosen)
            update = lax.dynamic_update_index_in_dim
            following = 1 + i * drafts.width + chosen
            path = AcceptedPath(
                update(path.tokens, jnp.where(continues, token, 0), i, 2),
                path.accepted + continues.astype(jnp.int32),
                update(path.nodes, jnp.where(continues, following, i + 1), i + 1, 2),
            )
            agreeing = agreeing & (tokens == token[..., None])
            return path, agreeing, jnp.where((active & ~accepted)[..., None], p, leftover)

        shape = length.shape
        index = jnp.broadcast_to(
            jnp.arange(size + 1, dtype=jnp.int32)[None, None], (*shape, size + 1)
        )
        path = AcceptedPath(jnp.zeros_like(index), jnp.zeros_like(length), index)
        carry = path, drafts.verified, jnp.zeros_like(target[:, :, 0])
        path, _, leftover = lax.fori_loop(0, length.max(), try_level, carry)
        last = gather_last(path.nodes, path.accepted)
        p = distributions.softmax(gather_position(target, last)).probs()
        weights = jnp.where((path.accepted < length)[..., None], leftover, p)
        final = codes.draw_weighted(weights, random.bits_at(keys.final, counter))
        tokens = jnp.where(index == path.accepted[..., None], final[..., None], path.tokens)
        return path._replace(tokens=tokens)


def make_keys(key: Array, batch_size: int, lanes: int) -> TokenKeys:
    """Makes the keys of every lane from a typed key or typed keys ``[B]``."""
    draws, rest = random.split(random.row_keys(key, batch_size))
    acceptance, final = random.split(rest)
    return TokenKeys(*(random.lane_keys(keys, lanes) for keys in (draws, acceptance, final)))


def acceptance_uniforms(keys: TokenKeys, counter: Array, count: int) -> Array:
    """Uniform numbers in [0, 1) for ``count`` decisions of a lane, float32 ``[B, W, count]``."""
    return distributions.uniform(acceptance_bits(keys, counter, count))


def acceptance_bits(keys: TokenKeys, counter: Array, count: int) -> Array:
    """64 random bits for each of ``count`` decisions of a lane, uint32 ``[B, W, count, 2]``."""
    counters = counter[..., None] + jnp.arange(count, dtype=jnp.int32)[None, None]
    return jax.vmap(lambda c: random.bits_at(keys.acceptance, c), -1, 2)(counters)


def draft_probs(draft: Draft, target: Softmax) -> tuple[Array, Array]:
    """p and q of every drafted token, float32 ``[B, W, K]``.

    q is 1 for a drafter that proposes tokens with certainty.
    """
    # The tokens are padded to K + 1, since a slice of the target's distribution would be a copy.
    padded = jnp.pad(draft.tokens, ((0, 0), (0, 0), (0, 1)))
    p = target.prob_of(padded)[:, :, :-1]
    if draft.distribution is None:
        return p, jnp.ones_like(p)
    return p, draft.distribution.prob_of(draft.tokens)


def count_accepted(keys: TokenKeys, draft: Draft, target: Softmax, counter: Array) -> Array:
    """The number of drafted tokens before the first rejected one, int32 ``[B, W]``."""
    p, q = draft_probs(draft, target)
    # r * q < p is the same as r < min(1, p / q), since r < 1.
    accept = acceptance_uniforms(keys, counter, p.shape[-1]) * q < p
    return count_leading(draft.valid & accept)


def draw_final(
    keys: TokenKeys,
    draft: Draft,
    target: Softmax,
    accepted: Array,
    counter: Array,
    scale: Array | float = 1.0,
) -> Array:
    """Draws the token after the accepted ones.

    The token is drawn in proportion to ``max(scale * p - q, 0)`` if a drafted token was rejected,
    and from p if all were accepted.

    Args:
      keys: the verifier's keys.
      draft: K drafted tokens of every lane.
      target: the target's distribution, of ``[B, W, K + 1, V]``.
      accepted: int32 ``[B, W]``, the number of accepted tokens.
      counter: int32 ``[B, W]``, the block's.
      scale: float32, a factor of p, 1 or ``[B, W, 1]``.

    Returns:
      int32 ``[B, W]``.
    """
    rejected = accepted < draft.length

    def target_probs() -> Array:
        return target.gather_position(accepted).probs()

    def residual() -> Array:
        p = target_probs()
        if draft.distribution is None:
            q = distributions.one_hot(gather_position(draft.tokens, accepted), p.shape[-1])
        else:
            q = draft.distribution.gather_position(accepted).probs()
        is_residual = rejected[..., None]
        scales = jnp.where(is_residual, jnp.asarray(scale, jnp.float32), 1.0)
        return distributions.residual(p, jnp.where(is_residual, q, 0.0), scales)

    # The branch also materialises the weights, which XLA would otherwise compute for each use.
    weights = gpu.cond(rejected.any(), residual, target_probs)
    return codes.draw_weighted(weights, random.bits_at(keys.final, counter))


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

    points: str | codes.Points = fields.field(codes.as_points, static=True, default="lattice")

    def __post_init__(self) -> None:
        fields.check(self)

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        code_keys, rest = random.split(random.row_keys(key, batch_size))
        code = codes.start(self.points, code_keys, lanes)
        keys = make_keys(rest, batch_size, lanes)._replace(draws=code.keys)
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
        accepted = count_accepted(keys, draft, target, counter)
        rejected = accepted < draft.length
        if draft.distribution is not None:
            state = state_after_last_draw(state, draft, accepted)
        # A rejected token has used up its code, so its replacement is drawn from fresh bits. Where
        # all tokens were accepted, the next one is decoded from the code.
        decoded, state_after = self.draw(
            keys, state, target.gather_position(accepted), position + accepted, counter
        )
        replacement = draw_final(keys, draft, target, accepted, counter)
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
