"""Beam search: the most probable sequences that K hypotheses at a time can find."""

from __future__ import annotations

from decoding_jax.base import Array, Stop, Transform
from decoding_jax.loop import Static, Steps, search
from decoding_jax.rows import PerRow
from decoding_jax.strategies.beam.competition import EarlyStopping, Rules
from decoding_jax.strategies.beam.length_penalty import LengthPenalty, as_length_penalty
from decoding_jax.strategies.beam.loop import beam_steps, check_beams, single_beam


@search
def beam_search(
    *,
    beam_size: Static[int],
    num_return: Static[int | None] = None,
    max_new_tokens: Static[int],
    length_penalty: PerRow[float | Array | LengthPenalty] = 0.0,
    early_stopping: Static[EarlyStopping] = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
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
    value is moved (see ``shared_cache``).

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      beam_size: K, the number of hypotheses of a row.
      num_return: N, at most K; by default K.
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

    Returns:
      A ``DecodeOutput``, best first. ``score`` is the sum of the transformed log-probabilities,
      divided by the length penalty. Where there are fewer than N sequences, the other places have
      length 0 and score and ``log_prob`` -inf.

    Raises:
      ValueError: for sizes below 1, ``num_return`` above ``beam_size``, an unknown
        ``early_stopping``, a prompt of wrong shapes, a length that the model cannot hold, or a
        model with neither ``tree`` nor ``select``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = beam_search(model, prompt, beam_size=4, max_new_tokens=6, stop=Stop(eos_ids=0))
      >>> output.tokens.shape
      (1, 4, 6)
    """

    num_return = check_beams(beam_size, num_return, early_stopping)
    stop = Stop() if stop is None else stop
    rules = Rules(stop, as_length_penalty(length_penalty), early_stopping)
    return beam_steps(
        single_beam(rules, beam_size, max_new_tokens),
        beam_size=beam_size,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )
