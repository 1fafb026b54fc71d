"""Block verification: the drafted tokens of a block are accepted or rejected together."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax import codes
from decoding_jax.base import Array
from decoding_jax.ops import exact, random
from decoding_jax.ops.gather import gather_last, gather_position
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import AcceptedPath, Draft, Drafts, with_final_token
from decoding_jax.strategies.speculative.verifiers.base import Verification
from decoding_jax.strategies.speculative.verifiers.select_path import select_path
from decoding_jax.strategies.speculative.verifiers.token import (
    TokenKeys,
    acceptance_bits,
    acceptance_uniforms,
    draft_probs,
    draw_final,
    make_keys,
)


@pytree
@dataclasses.dataclass(frozen=True)
class BlockVerifier:
    """Accepts as long a prefix of the draft as its joint distribution allows.

    Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2. Samples
    follow the target exactly. In expectation, this rule accepts at least as many tokens as token
    verification, and no other rule accepts more of a block. Let ``P_0 = 1`` and
    ``P_i = min(1, P_{i-1} p / q)`` at token i. The first i < K tokens are a candidate with
    probability ``s / (s + 1 - P_i)``, where s is the sum of ``max(P_i p - q, 0)`` over the
    vocabulary at the next position. The whole block is a candidate with probability ``P_K``. The
    longest candidate is accepted.

    Of several drafts, one path is selected and verified, with the distribution of the selected
    tokens as q; see ``select_path``.
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
        count = draft.tokens.shape[-1]
        joint = joint_ratio(*draft_probs(draft, target))
        probability = candidate_probs(draft, target, joint)
        candidate = draft.valid & (acceptance_uniforms(keys, counter, count) < probability)
        length = jnp.arange(1, count + 1, dtype=jnp.int32)[None, None]
        accepted = jnp.where(candidate, length, 0).max(-1)
        scale = jnp.where(accepted > 0, gather_position(joint, accepted - 1), 1.0)
        final = draw_final(keys, draft, target, accepted, counter, scale[..., None])
        return Verification(with_final_token(draft, accepted, final), accepted, state)

    def verify_tree(
        self, keys: TokenKeys, drafts: Drafts, length: Array, target: Array, counter: Array
    ) -> AcceptedPath:
        """See ``TreeVerifier.verify_tree``."""
        size, num_drafts = drafts.tokens.shape[2:]
        # Two words of bits for each drafted token: its own, and one to accept the path up to it.
        bits = acceptance_bits(keys, counter, size * num_drafts)
        bits = bits.reshape(*length.shape, size, num_drafts, 2)
        path = select_path(drafts, length, target, distributions.uniform(bits))
        accepting = distributions.uniform(bits[..., 0, ::-1])
        # The residual after i tokens is that of token i + 1.
        after = path.mass[..., 1:]
        candidate = accepting < prefix_probs(path.joint, after, length)
        number = jnp.arange(1, size + 1, dtype=jnp.int32)[None, None]
        accepted = jnp.where(candidate & (number <= length[..., None]), number, 0).max(-1)

        nodes = jnp.pad(path.nodes, ((0, 0), (0, 0), (1, 0)))
        p = distributions.softmax(gather_position(target, gather_last(nodes, accepted))).probs()
        draft = gather_position(path.drafts, accepted)
        logits = gather_position(gather_position(drafts.logits, accepted), draft)
        q = distributions.softmax(logits).probs()
        ceiling = gather_position(path.ceiling, accepted)[..., None]
        joint = jnp.pad(path.joint, ((0, 0), (0, 0), (1, 0)), constant_values=1.0)
        rest = distributions.residual(
            p, jnp.abs(ceiling * q), gather_last(joint, accepted)[..., None]
        )
        weights = jnp.where((accepted < length)[..., None], rest, p)
        final = codes.draw_weighted(weights, random.bits_at(keys.final, counter))

        index = jnp.arange(size + 1, dtype=jnp.int32)[None, None]
        tokens = jnp.pad(path.tokens, ((0, 0), (0, 0), (0, 1)))
        tokens = jnp.where(index == accepted[..., None], final[..., None], tokens)
        return AcceptedPath(tokens, accepted, jnp.where(index <= accepted[..., None], nodes, index))


def joint_ratio(p: Array, q: Array) -> Array:
    """``P_1 .. P_K``, float32 ``[B, W, K]``, from the drafted tokens' probabilities p and q."""
    ratio = jnp.where(q > 0, p / jnp.where(q > 0, q, 1.0), 0.0)
    joint = [jnp.minimum(ratio[..., 0], 1.0)]
    for i in range(1, p.shape[-1]):
        joint.append(jnp.minimum(joint[-1] * ratio[..., i], 1.0))
    return jnp.stack(joint, axis=-1)


def candidate_probs(draft: Draft, target: Softmax, joint: Array) -> Array:
    """The probability that the first 1 .. K tokens are a candidate, float32 ``[B, W, K]``."""
    return prefix_probs(joint, residual_mass(draft, target, joint), draft.length)


def prefix_probs(joint: Array, mass: Array, length: Array) -> Array:
    """The probability that the first 1 .. K tokens are a candidate, float32 ``[B, W, K]``.

    Args:
      joint: float32 ``[B, W, K]``, ``P_1 .. P_K``.
      mass: float32 ``[B, W, K - 1]``, the sum of the residual after 1 .. K - 1 tokens.
      length: int32 ``[B, W]``, the number of drafted tokens.
    """
    mass = jnp.pad(mass, ((0, 0), (0, 0), (0, 1)))
    # If P = 1, a prefix is a candidate with certainty, even if p = q leaves no residual.
    prefix = jnp.where(joint >= 1, 1.0, mass / jnp.maximum(mass + 1 - joint, 1e-37))
    number = jnp.arange(1, joint.shape[-1] + 1, dtype=jnp.int32)[None, None]
    return jnp.where(number == length[..., None], joint, prefix)


def residual_mass(draft: Draft, target: Softmax, joint: Array) -> Array:
    """The sum of ``max(P_i p - q, 0)`` after token i, for i < K: float32 ``[B, W, K - 1]``."""
    p_after, scale = target.positions(1, joint.shape[-1]), joint[..., :-1]
    if draft.distribution is None:
        return scale * (1 - p_after.prob_of(draft.tokens[..., 1:]))
    q = draft.distribution.positions(1, joint.shape[-1]).probs()
    return exact.sum_last(distributions.excess(scale[..., None] * p_after.probs(), q))
