"""Stochastic beam search: K sequences drawn without replacement, in one search."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, Prompt, Stop, Transform
from decoding_jax.loop import Static, Steps, sampler, stopping
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.gumbel import gumbel, top_k_gumbel
from decoding_jax.ops.logits import log_softmax
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.beam.competition import Pool
from decoding_jax.strategies.beam.loop import Search, beam_steps, check_beams


class StochasticBeamInfo(NamedTuple):
    """What importance weights need (see ``estimators.without_replacement``).

    Attributes:
      model_calls: int32, the prefill and every ``extend``.
      sampling_log_prob: float32 ``[B, N]``, in nats: each sequence under the transformed model, the distribution that
        sequences are drawn from; -inf where there is none.
      threshold: float32 ``[B]``: the perturbed log-probability of the first sequence left out, the
        (N + 1)-th; -inf if there is none.
    """

    model_calls: Array
    sampling_log_prob: Array
    threshold: Array


class Drawn(NamedTuple):
    """The K + 1 nodes of the tree with the largest perturbed log-probabilities so far, in order.

    Attributes:
      tokens: int32 ``[B, K + 1, L]``.
      length: int32 ``[B, K + 1]``.
      log_prob: float32 ``[B, K + 1]``, under the model.
      sampling_log_prob: float32 ``[B, K + 1]``, under the transformed model.
      key: float32 ``[B, K + 1]``: ``sampling_log_prob`` with Gumbel noise, that of the best sequence below
        the node; -inf where there is none.
      complete: bool ``[B, K + 1]``: a whole sequence, which only waits from now on.
      finished: bool ``[B, K + 1]``, by a stop condition.
    """

    tokens: Array
    length: Array
    log_prob: Array
    sampling_log_prob: Array
    key: Array
    complete: Array
    finished: Array


@sampler
def stochastic_beam_search(
    *,
    beam_size: Static[int],
    max_new_tokens: Static[int],
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Draws K different sequences, without replacement, in the order of the draws.

    Kool et al. 2019, "Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for Sampling
    Sequences Without Replacement", algorithm 1. Every sequence's log-probability gets independent
    Gumbel noise; the K with the largest sums are a sample without replacement, and they are found
    from above: the largest sum below a node is Gumbel itself, so only the K best nodes of every
    length need children. The first sequence is an ordinary sample; the others are drawn from what
    the ones before have left.

    Expectations come from the weighted sequences: see ``estimators.without_replacement``. Perturbed
    log-probabilities are float32, so the probability of a draw is right to about 1e-7 times the
    size of the log-probability in nats: 1e-4 for texts of -1,000 nats, 0.01 for texts of -100,000.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      key: a typed key, folded with each row's index; or typed keys ``[B]``, one a row.
      beam_size: K, sequences a row. The search holds one more, for the threshold.
      max_new_tokens: L, the most new tokens. What reaches it is a whole sequence, not finished.
      transform: applied to the logits of every node, and normalised.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput`` with N = K in the order of the draws; ``score`` is the perturbed
      log-probability. Where there are fewer than K sequences, the rest have length 0 and score
      and ``log_prob`` -inf. ``info`` is a ``StochasticBeamInfo``.

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
    num_return = check_beams(beam_size, None)
    width = beam_size + 1  # one more, whose key is the threshold
    stop = Stop() if stop is None else stop

    def start(batch_size: int, keys: Array) -> Drawn:
        shape = (batch_size, width)
        first = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32)[None] == 0, shape)
        zeros = jnp.zeros(shape, jnp.float32)
        # The root's noise is drawn too: with any number in its place the order would be right, but
        # not the threshold.
        limit = stopping.limits(stop, batch_size, max_new_tokens)
        at_limit = jax.vmap(jax.random.fold_in)(keys, limit)  # no step draws there
        root = jax.vmap(lambda key: gumbel(key, (1,)))(at_limit)
        return Drawn(
            tokens=jnp.zeros((*shape, max_new_tokens), jnp.int32),
            length=jnp.zeros(shape, jnp.int32),
            log_prob=zeros,
            sampling_log_prob=zeros,
            key=jnp.where(first, root, -jnp.inf),
            complete=jnp.broadcast_to((limit < 1)[:, None], shape),
            finished=jnp.zeros(shape, bool),
        )

    def grow(
        beam: Drawn, allowed: Array, log_probs: Array, keys: Array, step: Array
    ) -> tuple[Drawn, Array, Array]:
        batch, vocab = allowed.shape[0], allowed.shape[-1]
        distribution = beam.sampling_log_prob[..., None] + log_softmax(allowed)
        stuck = allowed.max(-1) == -jnp.inf
        running = ~beam.complete
        # A node without a continuation is a whole sequence itself.
        waiting = beam._replace(
            key=jnp.where(running & ~stuck, -jnp.inf, beam.key), complete=beam.complete | stuck
        )
        expanded = jnp.where(running & ~stuck, beam.key, -jnp.inf)
        key, index = top_k_gumbel(_at(keys, step), distribution, width, expanded)
        parent, token = index // vocab, index % vocab

        of = lambda table: gather_items(table.reshape(batch, width * vocab), index)  # noqa: E731
        here = jnp.arange(max_new_tokens, dtype=jnp.int32)[None, None] == step
        tokens = jnp.where(here, token[..., None], gather_items(beam.tokens, parent))
        length = jnp.broadcast_to(step + 1, parent.shape)
        ended = stopping.ends(stop, token, tokens, length)
        limit = stopping.limits(stop, batch, max_new_tokens)
        children = Drawn(
            tokens=tokens,
            length=length,
            log_prob=gather_items(beam.log_prob, parent) + of(log_probs),
            sampling_log_prob=of(distribution),
            key=key,
            complete=ended | (length >= limit[:, None]),
            finished=ended,
        )
        both = (jnp.concatenate(pair, 1) for pair in zip(waiting, children, strict=True))
        joined = Drawn(*both)
        _, at = top_k(joined.key, width)
        new = Drawn(*(gather_items(part, at) for part in joined))
        child = jnp.maximum(at - width, 0)
        return new, gather_items(token, child), gather_items(parent, child)

    def is_open(beam: Drawn) -> Array:
        return (~beam.complete & (beam.key > -jnp.inf)).any(-1)

    def result(beam: Drawn, step: Array) -> Pool:
        return Pool(beam.tokens, beam.length, beam.log_prob, beam.key, beam.finished)

    search = Search(start, lambda beam: beam.tokens, grow, is_open, result)
    made = beam_steps(
        search,
        beam_size=width,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
        init_rule=random.row_keys,
    )

    def finalize(prompt: Prompt, state: Any) -> DecodeOutput:
        beam, output = state.beam, made.finalize(prompt, state)
        distribution = jnp.where(beam.key > -jnp.inf, beam.sampling_log_prob, -jnp.inf)[
            :, :num_return
        ]
        info = StochasticBeamInfo(output.info.model_calls, distribution, beam.key[:, num_return])
        return output._replace(info=info)

    return made._replace(finalize=finalize)


def _at(keys: Array, position: Array | int) -> Array:
    """Each row's key at a position."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, position)
