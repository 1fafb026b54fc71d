"""Stochastic beam search: K sequences drawn without replacement in one search."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, Prompt
from decoding_jax.loop import as_function, stopping
from decoding_jax.loop.search_trace import SearchTrace
from decoding_jax.loop.sequences import over_axes, write
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.logits import are_nan, log_softmax
from decoding_jax.ops.top_k import gumbel, top_k, top_k_gumbel
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.beam.competition import NAN_SCORE, Pool
from decoding_jax.strategies.beam.loop import BeamStrategy, State


class StochasticBeamInfo(NamedTuple):
    """The log-probabilities that importance weights need (see ``estimators.without_replacement``).

    Attributes:
      model_calls: int32, the prefill and every ``extend``.
      sampling_log_prob: float32 ``[B, N]``, in nats: the log-probability of each sequence under the
        transformed model, from which sequences are drawn; -inf for unused places, and NaN where
        ``log_prob`` is.
      threshold: float32 ``[B]``: the (N + 1)-th largest perturbed log-probability, which is that of
        the first sequence left out; -inf if there is none, and NaN if ``log_prob`` is NaN for that
        sequence or for one that was drawn.
    """

    model_calls: Array
    sampling_log_prob: Array
    threshold: Array
    trace: SearchTrace | None = None


class Drawn(NamedTuple):
    """The K + 1 nodes of the tree with the largest perturbed log-probabilities so far, in order.

    A node is a sequence, or the prefix of all sequences below it.

    Attributes:
      tokens: int32 ``[B, K + 1, L]``.
      length: int32 ``[B, K + 1]``.
      log_prob: float32 ``[B, K + 1]``, under the model.
      sampling_log_prob: float32 ``[B, K + 1]``, under the transformed model.
      perturbed_log_prob: float32 ``[B, K + 1]``: ``sampling_log_prob`` plus Gumbel noise, which is
        the largest perturbed log-probability of the sequences below the node; -inf for unused
        places, and ``NAN_SCORE`` for nodes that ended at NaN logits, whose ``log_prob`` is NaN.
      complete: bool ``[B, K + 1]``, true for whole sequences, which are not expanded.
      finished: bool ``[B, K + 1]``, true for sequences that a stop condition ended.
    """

    tokens: Array
    length: Array
    log_prob: Array
    sampling_log_prob: Array
    perturbed_log_prob: Array
    complete: Array
    finished: Array


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class StochasticBeamSearch(BeamStrategy):
    """Draws K different sequences without replacement, in the order of the draws.

    Kool et al. 2019, "Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for Sampling
    Sequences Without Replacement", algorithm 1. Independent Gumbel noise is added to the
    log-probability of every sequence, and the K sequences with the largest sums are a sample
    without replacement. They are found from the root down: the largest sum below a node is a Gumbel
    variable itself, so only the K best nodes of every length are expanded. The first sequence is an
    ordinary sample. Each of the others is drawn from the distribution without the earlier ones.

    ``estimators.without_replacement`` gives expectations from the weighted sequences. Perturbed
    log-probabilities are float32, so the relative error of the probability of a draw is about 1e-7
    times the size of the log-probability in nats: 1e-4 for texts of -1,000 nats, 0.01 for texts of
    -100,000.

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row. The output is in the order of the draws. ``score`` is the perturbed
    log-probability. Where there are fewer than K sequences, the other places have length 0 and
    score and ``log_prob`` -inf. ``info`` is a ``StochasticBeamInfo``.

    Attributes:
      beam_size: K, the number of sequences of a row. The search holds one more, for the threshold.
      num_return: N, the number of sequences to return, at most K; by default K.
      with_trace: whether ``info`` has a ``trace`` of the hypotheses, a ``SearchTrace``.
      max_new_tokens: L, the maximum number of new tokens. Sequences that reach it are complete but
        not finished.
      transform: applied to the log-probabilities after each node, and normalised again.
      stop: when a sequence ends.

    Raises:
      ValueError: for a raw key, a prompt of wrong shapes, ``beam_size`` below 1, a length that the
        model cannot hold, or a model with neither ``tree`` nor ``select``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = stochastic_beam_search(
      ...     model, prompt, jax.random.key(1), beam_size=4, max_new_tokens=6
      ... )
      >>> len({tuple(tokens) for tokens in output.tokens[0].tolist()})
      4
    """

    draws: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """One more than K, for the threshold."""
        return self.beam_size + 1

    def row_keys(self, key: Array, batch_size: int) -> Array:
        return random.row_keys(key, batch_size)

    def start(self, batch_size: int, keys: Array, max_new_tokens: int) -> Drawn:
        """The root alone, whose noise is drawn too.

        Any constant would give the same order of sequences, but not the right threshold.
        """
        shape = (batch_size, self.width)
        first = jnp.broadcast_to(jnp.arange(self.width, dtype=jnp.int32)[None] == 0, shape)
        zeros = jnp.zeros(shape, jnp.float32)
        limit = stopping.limits(self.stop, batch_size, max_new_tokens)
        root_keys = jax.vmap(jax.random.fold_in)(keys, limit)  # no step draws from these
        root = jax.vmap(lambda key: gumbel(key, (1,)))(root_keys)
        return Drawn(
            tokens=jnp.zeros((*shape, max_new_tokens), jnp.int32),
            length=jnp.zeros(shape, jnp.int32),
            log_prob=zeros,
            sampling_log_prob=zeros,
            perturbed_log_prob=jnp.where(first, root, -jnp.inf),
            complete=jnp.broadcast_to((limit < 1)[:, None], shape),
            finished=jnp.zeros(shape, bool),
        )

    def tokens(self, beam: Drawn) -> Array:
        return beam.tokens

    def compete(
        self, beam: Drawn, allowed: Array, log_probs: Array, keys: Any, step: Array
    ) -> tuple[Drawn, Array, Array]:
        """The whole sequences and the children of the other nodes compete by perturbed scores."""
        # A node without an allowed continuation is a whole sequence itself.
        is_dead_end = allowed.max(-1) == -jnp.inf
        is_expanded = ~beam.complete & ~is_dead_end
        perturbed = beam.perturbed_log_prob
        is_nan = are_nan(log_probs) & ~beam.complete & (perturbed > -jnp.inf)
        sequences = beam._replace(
            log_prob=jnp.where(is_nan, jnp.nan, beam.log_prob),
            perturbed_log_prob=jnp.where(
                is_nan, NAN_SCORE, jnp.where(is_expanded, -jnp.inf, perturbed)
            ),
            complete=beam.complete | is_dead_end,
        )
        children, token, parent = self.children(beam, allowed, log_probs, is_expanded, keys, step)

        # Continue: the best of the whole sequences and the children together.
        pairs = zip(sequences, children, strict=True)
        joined = Drawn(*(jnp.concatenate(pair, axis=1) for pair in pairs))
        _, best = top_k(joined.perturbed_log_prob, self.width)
        # Whole sequences are not expanded again, so their token and parent do not matter.
        child = jnp.maximum(best - self.width, 0)
        return (
            Drawn(*(gather_items(part, best) for part in joined)),
            gather_items(token, child),
            gather_items(parent, child),
        )

    def children(
        self,
        beam: Drawn,
        allowed: Array,
        log_probs: Array,
        is_expanded: Array,
        keys: Any,
        step: Array,
    ) -> tuple[Drawn, Array, Array]:
        """The children with the largest noise, given the largest below each parent.

        Returns:
          The children, their last tokens and their parents, both int32 ``[B, K + 1]``.
        """
        batch, width, vocab = allowed.shape
        sampling_log_prob = beam.sampling_log_prob[..., None] + log_softmax(allowed)
        expanded = jnp.where(is_expanded, beam.perturbed_log_prob, -jnp.inf)
        step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(step, keys.shape))
        perturbed, index = top_k_gumbel(step_keys, sampling_log_prob, width, expanded)
        parent, token = index // vocab, index % vocab
        max_new_tokens = beam.tokens.shape[-1]
        tokens = write(gather_items(beam.tokens, parent), token, step)
        length = jnp.broadcast_to(over_axes(step, 2) + 1, parent.shape)
        ended = stopping.ends(self.stop, token, tokens, length)
        limit = stopping.limits(self.stop, batch, max_new_tokens)
        gained = gather_items(log_probs.reshape(batch, width * vocab), index)
        children = Drawn(
            tokens=tokens,
            length=length,
            log_prob=gather_items(beam.log_prob, parent) + gained,
            sampling_log_prob=gather_items(sampling_log_prob.reshape(batch, width * vocab), index),
            perturbed_log_prob=perturbed,
            complete=ended | (length >= limit[:, None]),
            finished=ended,
        )
        return children, token, parent

    def is_open(self, beam: Drawn) -> Array:
        return (~beam.complete & (beam.perturbed_log_prob > -jnp.inf)).any(-1)

    def result(self, beam: Drawn, step: Array) -> Pool:
        return Pool(beam.tokens, beam.length, beam.log_prob, beam.perturbed_log_prob, beam.finished)

    def hypotheses(self, beam: Drawn, step: Array) -> Pool:
        return self.result(beam, step)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``; with the log-probabilities that weights need."""
        beam, output = state.beam, super().finalize(prompt, state)
        sampling_log_prob = sampling_log_prob_of(beam)
        is_nan = jnp.isnan(sampling_log_prob).any(-1)
        threshold = beam.perturbed_log_prob[:, self.num_outputs]
        info = StochasticBeamInfo(
            model_calls=output.info.model_calls,
            sampling_log_prob=sampling_log_prob[:, : self.num_outputs],
            threshold=jnp.where(is_nan, jnp.nan, threshold),
            trace=output.info.trace,
        )
        return output._replace(info=info)


def sampling_log_prob_of(drawn: Drawn) -> Array:
    """``StochasticBeamInfo.sampling_log_prob`` of all K + 1 nodes, float32 ``[B, K + 1]``."""
    sampling_log_prob = jnp.where(jnp.isnan(drawn.log_prob), jnp.nan, drawn.sampling_log_prob)
    return jnp.where(drawn.perturbed_log_prob > -jnp.inf, sampling_log_prob, -jnp.inf)


stochastic_beam_search = as_function(StochasticBeamSearch)
