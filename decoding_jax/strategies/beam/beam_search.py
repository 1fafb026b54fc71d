"""Beam search, and beam sampling, whose candidates are drawn at random."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.loop import as_function
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.top_k import top_k_gumbel
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.beam.loop import RankedBeams


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(RankedBeams):
    """Keeps the K best hypotheses at every step, and returns the best of those that ended.

    Every step ranks the continuations of all hypotheses. Those of the first K that end enter a pool
    of at most K sequences, which is ranked by ``log_prob / length_penalty``. The K best that do not
    end continue. Hypotheses that reach the length limit enter the pool unfinished, as do those
    whose every continuation is banned. The pool, the length penalty and ``early_stopping`` are
    those of ``transformers``.

    Ties go to the hypothesis that ranks first, then to the lower token. Scores are float32 sums
    that are rounded at every token, so hypotheses that differ by less than the rounding (0.008 nats
    near -100,000, 0.00006 near -1,000) count as tied.

    If the model has ``tree``, the hypotheses are nodes of one tree in the cache, and no key or
    value is moved, but for wide searches on a CPU (see ``loop.shared_cache``).

    The output is best first. ``score`` is the sum of the transformed log-probabilities, divided by
    the length penalty. Where there are fewer than N sequences, the other places have length 0 and
    score and ``log_prob`` -inf.

    Attributes:
      beam_size: K, the number of hypotheses of a row.
      num_return: N, at most K; by default K.
      with_trace: whether ``info`` has a ``trace`` of the hypotheses, a ``SearchTrace``.
      max_new_tokens: L, the maximum number of new tokens.
      length_penalty: a number p, for division by length^p (0 ranks by the sum of log-probabilities,
        1 by their mean); or ``[B]``, one number for each row; or a function such as
        ``GNMTPenalty(0.6)``, which is T5X's.
      early_stopping: when a row with a full pool stops. True: at once. False: when no running
        hypothesis beats the worst of the pool at the present length. "never": when none could beat
        it at any length up to the limit, provided that no further token adds to a score. Of this
        library's transforms, a ``logit_bias`` above 0 and a presence or frequency penalty below 0
        may add to a score; a row may then stop before its best sequence has ended.
      transform: applied to the log-probabilities after each hypothesis. Its result is added to the
        score without normalising again.
      stop: when a sequence ends.

    Raises:
      ValueError: for sizes below 1, ``num_return`` above ``beam_size``, an unknown
        ``early_stopping``, a prompt of wrong shapes, a length that the model cannot hold, or a
        model with neither ``tree`` nor ``select``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt, Stop
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = beam_search(model, prompt, beam_size=4, max_new_tokens=6, stop=Stop(eos_ids=0))
      >>> output.tokens.shape
      (1, 4, 6)
    """


beam_search = as_function(BeamSearch)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSample(RankedBeams):
    """Beam search that draws its candidates instead of taking the best.

    At every step, candidates are drawn without replacement from the softmax of the scores of all
    continuations, as in ``transformers`` with ``do_sample`` and ``num_beams``. The first K that are
    drawn may end (from version 5.24 on, ``transformers`` lets the K with the best scores of all
    that are drawn end). Of all that do not end, the K with the best scores continue. The sequences
    are not samples of the model: ``stochastic_beam_search`` draws those, without replacement.

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row. The output is best first, as from ``beam_search``.

    Attributes:
      beam_size: K, the number of hypotheses of a row.
      num_return: N, at most K; by default K.
      with_trace: whether ``info`` has a ``trace`` of the hypotheses, a ``SearchTrace``.
      max_new_tokens: L, the maximum number of new tokens.
      length_penalty: as for ``beam_search``.
      early_stopping: as for ``beam_search``.
      transform: applied to the log-probabilities after each hypothesis. Its result is added to the
        score without normalising again.
      stop: when a sequence ends.

    Raises:
      ValueError: as ``beam_search``, and for a raw key.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> beam_sample(model, prompt, jax.random.key(1), beam_size=4, max_new_tokens=6).tokens.shape
      (1, 4, 6)
    """

    draws: ClassVar[bool] = True

    def row_keys(self, key: Array, batch_size: int) -> Array:
        return random.row_keys(key, batch_size)

    def choose(
        self, keys: Array | None, totals: Array, count: int, step: Array
    ) -> tuple[Array, Array]:
        assert keys is not None
        step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(step, keys.shape))
        # Only differences of scores matter, and floats are finest near 0.
        best = jnp.maximum(totals.max(-1), jnp.finfo(jnp.float32).min)
        perturbed, index = top_k_gumbel(step_keys, (totals - best[:, None])[:, None], count)
        score = gather_items(totals, index)
        return jnp.where(perturbed > -jnp.inf, score, -jnp.inf), index


beam_sample = as_function(BeamSample)
