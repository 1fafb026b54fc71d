"""What comes after a hypothesis: its likeliest continuations, as nodes of a search."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import model_calls, stopping
from decoding_jax.ops import exact
from decoding_jax.ops.logits import clean, normaliser
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.best_first.frontier import ABSENT, CUT, FINISHED, OPEN, Nodes
from decoding_jax.strategies.best_first.priority import Score


@dataclasses.dataclass(frozen=True)
class Expansion:
    """How hypotheses continue.

    Attributes:
      branching: the most children of a node.
      gamma: float32, a scalar or ``[B]``: the least probability of a child. The likeliest one is
        a child even so.
      max_new_tokens: L.
      score: of the children.
      transform: applied to the logits; children are chosen by what comes out, renormalised.
      stop: when a sequence ends.
    """

    branching: int
    gamma: Array | float
    max_new_tokens: int
    score: Score
    transform: Transform | None
    stop: Stop

    def __call__(
        self, logits: Array, prompt: Prompt, fed: Nodes, slot: Array, path: Array, step: Array
    ) -> tuple[Nodes, Array, Array]:
        """The children of n nodes, b = min(branching, V) for each, by id within a parent.

        Args:
          logits: ``[B, 1, n, V]``, after each node.
          prompt: of the rows.
          fed: the nodes, ``[B, n]``; those that are not open have no children.
          slot: int32 ``[B, n]``, where they are in the tree.
          path: int32 ``[B, n, L]``, their tokens.
          step: int32 ``[B]``, at which their children are born.

        Returns:
          The children, ``[B, n * b]``; bool of that shape, which of them is its parent's
          likeliest; and bool ``[B, n]``, after which open nodes nothing at all is allowed.
        """
        raw, allowed = self._allowed(logits, prompt, fed, path)
        raw_peak, raw_total = normaliser(raw)
        is_open = (fed.kind == OPEN)[..., None]
        unsigned = jnp.where(allowed == 0, 0.0, allowed)  # a top-k puts -0.0 below 0.0
        value, token = top_k(unsigned, min(self.branching, allowed.shape[-1]))
        peak, total = self._of_allowed(raw_peak, raw_total, allowed, fed)
        likeliest = jnp.broadcast_to(jnp.arange(value.shape[-1]) == 0, value.shape)
        enough = exact.exp(value - peak) >= jnp.reshape(self.gamma, (-1, 1, 1)) * total
        kept = is_open & (value > -jnp.inf) & (enough | likeliest)
        token, kept, likeliest = lax.sort((token, kept, likeliest), num_keys=1)

        last = jnp.take_along_axis(raw, token, axis=-1) - raw_peak
        last = last - exact.log(jnp.maximum(raw_total, 1.0))
        log_prob = fed.log_prob[..., None] + last
        length = jnp.broadcast_to(fed.length[..., None] + 1, token.shape)
        children = Nodes(
            parent=jnp.broadcast_to(slot[..., None], token.shape),
            token=token,
            length=length,
            log_prob=log_prob,
            score=self.score(log_prob, last, length),
            born=jnp.broadcast_to(step[:, None, None], token.shape),
            kind=jnp.where(kept, self._kind(token, length, path), ABSENT),
        )
        flat = (token.shape[0], -1)
        children = Nodes(*(field.reshape(flat) for field in children))
        stuck = is_open & (value[..., :1] == -jnp.inf)
        return children, (kept & likeliest).reshape(flat), stuck[..., 0]

    def _allowed(
        self, logits: Array, prompt: Prompt, fed: Nodes, path: Array
    ) -> tuple[Array, Array]:
        """The model's logits and those that children are chosen by, both ``[B, n, V]``."""
        logits, length = clean(logits), fed.length[:, None]
        allowed = stopping.ban_end_tokens(self.stop, logits, length)
        if self.transform is not None:
            prefix = Prefix(*prompt, path[:, None], length)
            allowed = clean(model_calls.transformed(self.transform, allowed, prefix))
        return logits[:, 0], allowed[:, 0]

    def _of_allowed(
        self, peak: Array, total: Array, allowed: Array, fed: Nodes
    ) -> tuple[Array, Array]:
        """The normaliser of what is allowed, given the model's own, which it may be."""
        if self.transform is not None:
            return normaliser(allowed)
        early = (fed.length < stopping.minimum(self.stop)[:, None]).any()
        same = lambda allowed: (peak, total)  # noqa: E731
        return lax.cond(early, normaliser, same, allowed)

    def _kind(self, token: Array, length: Array, path: Array) -> Array:
        """OPEN, CUT or FINISHED, of children ``[B, n, b]`` of ``path [B, n, L]``."""
        batch, limit = token.shape[0], self.max_new_tokens
        flat = (batch, token.shape[1] * token.shape[2])
        here = jnp.arange(limit)[None, None, None] == length[..., None] - 1
        whole = jnp.where(here, token[..., None], path[:, :, None]).reshape(*flat, limit)
        token, length = token.reshape(flat), length.reshape(flat)
        ended = length >= stopping.minimum(self.stop)[:, None]
        ended &= stopping.ends_with_sequence(self.stop, whole, length)
        ended |= stopping.is_end_token(self.stop, token)
        full = length >= stopping.limits(self.stop, batch, limit)[:, None]
        kind = jnp.where(ended, FINISHED, jnp.where(full, CUT, OPEN))
        return kind.reshape(here.shape[:-1])
