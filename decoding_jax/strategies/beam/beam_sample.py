"""Beam sampling: beam search whose candidates are drawn at random."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.loop import as_function
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.gumbel import top_k_gumbel
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.beam.loop import RankedBeams


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSample(RankedBeams):
    """Beam search that draws its candidates instead of taking the best.

    At every step, candidates are drawn without replacement from the softmax of the scores of all
    continuations, as in ``transformers`` with ``do_sample`` and ``num_beams``. The first K that are
    drawn may end. Of all that do not end, the K with the best scores continue. The sequences are
    not samples of the model: ``stochastic_beam_search`` draws those, without replacement.

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row. The output is best first, as from ``beam_search``.

    Attributes:
      beam_size: K, the number of hypotheses of a row.
      num_return: N, at most K; by default K.
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
