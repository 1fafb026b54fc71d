"""The expansion of a hypothesis: its children, filtered by gamma.

The loop over the vocabulary in Algorithm 1 (Xu et al. 2022): a token is a child if its probability
is at least gamma.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from decoding_jax.base import Array, Prefix, Stop, Transform
from decoding_jax.loop import model_calls, stopping
from decoding_jax.loop.search_trace import ABSENT, CUT, FINISHED, NAN, OPEN
from decoding_jax.loop.sequences import write
from decoding_jax.ops import exact, gpu
from decoding_jax.ops.logits import bounded, largest, normaliser
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.best_first.frontier import Nodes
from decoding_jax.strategies.best_first.priority import Score

_ROUNDING = 1e-5  # relative; far above the rounding errors of float32 sums and products


def max_children(gamma: ArrayLike) -> int | None:
    """The largest number of tokens that can each have a probability of at least ``gamma``.

    Args:
      gamma: a scalar or ``[B]``.

    Returns:
      About ``1 / gamma`` for the smallest gamma, and at least 1. None if there is no known bound:
      for a gamma of 0 or a traced gamma.

    Example:
      >>> max_children(0.05), max_children([0.6, 0.3]), max_children(0.0)
      (20, 3, None)
    """
    if isinstance(gamma, jax.core.Tracer):
        return None
    least = float(np.min(np.asarray(gamma, np.float32)))
    return max(1, int((1 + _ROUNDING) / least)) if least > 0 else None


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The rule by which hypotheses continue.

    Attributes:
      places: the number of places for the children of a node; None for the whole vocabulary.
      gamma: float32, a scalar or ``[B]``: the smallest probability of a child. The most likely
        token is a child even if its probability is smaller.
      score: gives the scores of children.
      transform: applied to the logits. The probabilities that are compared with gamma are those
        of the transformed logits, renormalised.
      stop: when a sequence ends.
    """

    places: int | None
    gamma: ArrayLike
    score: Score
    transform: Transform | None
    stop: Stop

    def num_children(self, vocab_size: int) -> int:
        """The number of places that are reserved for the children of a node."""
        return vocab_size if self.places is None else min(self.places, vocab_size)

    def __call__(
        self, logits: Array, nodes: Nodes, slot: Array, path: Prefix, t: Array
    ) -> tuple[Nodes, Array, Array]:
        """The children of n nodes, with b = ``num_children(V)`` places for each.

        Args:
          logits: ``[B, 1, n, V]``, after each node.
          nodes: ``[B, n]``; nodes that are not open have no children.
          slot: int32 ``[B, n]``, the nodes' slots in the tree.
          path: the nodes' tokens, int32 ``[B, 1, n, L]``, and their lengths.
          t: int32 ``[B]``, the step, which is the children's time.

        Returns:
          The children, ``[B, n * b]``, in the order of their parents and of their token ids; bool
          of that shape, true for the most likely child of each node; and int32 ``[B, n]``, the kind
          that nodes get which end here: CUT for open nodes after which no token is allowed, NAN
          for those after which the model's logits are NaN, and ABSENT for all others.
        """
        allowed = model_calls.allowed_logits(logits, path, self.stop, self.transform)[:, 0]
        raw = bounded(logits)[:, 0]
        raw_peak, raw_total = normaliser(raw, largest(raw))
        is_nan = jnp.isnan(raw_peak)
        is_open = (nodes.kind == OPEN)[..., None]
        unsigned = jnp.where(allowed == 0, 0.0, allowed)  # top-k orders -0.0 below 0.0
        value, token = top_k(unsigned, self.num_children(allowed.shape[-1]))
        peak, total = self._normaliser(raw_peak, raw_total, allowed, nodes)
        most_likely = jnp.broadcast_to(
            jnp.arange(value.shape[-1], dtype=jnp.int32) == 0, value.shape
        )
        gamma = jnp.asarray(self.gamma, jnp.float32).reshape(-1, 1, 1)
        admitted = exact.exp(value - peak) >= gamma * total
        is_child = is_open & ~is_nan & (value > -jnp.inf) & (admitted | most_likely)
        token, is_child, most_likely = lax.sort((token, is_child, most_likely), num_keys=1)

        last = jnp.take_along_axis(raw, token, axis=-1) - raw_peak
        last = last - exact.log(jnp.maximum(raw_total, 1.0))
        log_prob = nodes.log_prob[..., None] + last
        length = jnp.broadcast_to(nodes.length[..., None] + 1, token.shape)
        children = Nodes(
            parent=jnp.broadcast_to(slot[..., None], token.shape),
            token=token,
            length=length,
            log_prob=log_prob,
            score=self.score(log_prob, last, length),
            time=jnp.broadcast_to(t[:, None, None], token.shape),
            kind=jnp.where(is_child, self._kind(token, length, path.tokens[:, 0]), ABSENT),
        )
        flat = (token.shape[0], -1)
        children = Nodes(*(field.reshape(flat) for field in children))
        dead_end = jnp.where(value[..., :1] == -jnp.inf, CUT, ABSENT)
        ended = jnp.where(is_open, jnp.where(is_nan, NAN, dead_end), ABSENT)
        return children, (is_child & most_likely).reshape(flat), ended[..., 0]

    def _normaliser(
        self, peak: Array, total: Array, allowed: Array, nodes: Nodes
    ) -> tuple[Array, Array]:
        """The normaliser of the allowed logits; the model's is reused where the two are equal."""
        if self.transform is not None:
            return normaliser(allowed)
        early = (nodes.length < stopping.minimum(self.stop)[:, None]).any()
        return gpu.cond(early, lambda: normaliser(allowed), lambda: (peak, total))

    def _kind(self, token: Array, length: Array, path: Array) -> Array:
        """OPEN, CUT or FINISHED for children ``[B, n, b]`` of nodes with ``path [B, n, L]``."""
        batch, limit = token.shape[0], path.shape[-1]
        flat = (batch, token.shape[1] * token.shape[2])
        path = jnp.broadcast_to(path[:, :, None], (*token.shape, limit))
        whole, shape = write(path, token, length - 1).reshape(*flat, limit), token.shape
        token, length = token.reshape(flat), length.reshape(flat)
        ended = length >= stopping.minimum(self.stop)[:, None]
        ended &= stopping.ends_with_text(self.stop, whole, length)
        ended |= stopping.is_end_token(self.stop, token)
        full = length >= stopping.limits(self.stop, batch, limit)[:, None]
        kind = jnp.where(ended, FINISHED, jnp.where(full, CUT, OPEN))
        return kind.reshape(shape)
