"""Arithmetic sampling: samples that are exact one by one and evenly spread together."""

from __future__ import annotations

from decoding_jax import codes
from decoding_jax.base import Array, Stop, Transform
from decoding_jax.loop import Static, Steps, sampler
from decoding_jax.ops import random
from decoding_jax.strategies.token_by_token import token_by_token


@sampler
def arithmetic_sample(
    *,
    num_samples: Static[int],
    points: Static[str | codes.Points] = "lattice",
    max_new_tokens: Static[int],
    transform: Transform | None = None,
    stop: Stop | None = None,
    with_sample_log_prob: Static[bool] = False,
) -> Steps:
    """Draws N samples for every row, from codes that are spread evenly over the unit interval.

    Vilnis et al. 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models".
    Each sample by itself follows the transformed model exactly. With the lattice, the number of
    samples that begin with a prefix of probability p is N p, rounded up or down, so averages over
    the samples vary less than averages over independent ones. A code is a 64-bit integer. It is
    carried exactly for as long as another sample may have the same prefix; after that, every token
    draws fresh bits. Codes therefore never run out (see ``codes.arithmetic``).

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      key: a typed key, which is folded with each row's index; or typed keys ``[B]``, one for each
        row.
      num_samples: N, the number of samples of a row.
      points: ``lattice`` (the paper's), ``stratified``, ``antithetic``, ``iid`` (plain sampling),
        ``radical_inverse``, or a function of your own (``codes.Points``).
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the choice.
      stop: when a sequence ends.
      with_sample_log_prob: whether the output has ``sample_log_prob``, the log-probability of each
        token under the distribution that it was drawn from.

    Returns:
      A ``DecodeOutput`` in the order of the points. ``score`` is ``log_prob``. A sequence whose
      every continuation is banned ends unfinished.

    Raises:
      ValueError: for an unknown point set, a raw key, a prompt of wrong shapes, ``num_samples``
        below 1, or a length that the model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> key = jax.random.key(1)
      >>> arithmetic_sample(model, prompt, key, num_samples=8, max_new_tokens=4).tokens.shape
      (1, 8, 4)
    """

    def init_codes(key: Array, batch_size: int) -> codes.Code:
        return codes.start(points, random.row_keys(key, batch_size), num_samples)

    def choose(code: codes.Code, logits: Array, step: Array) -> tuple[Array, codes.Code]:
        return codes.choose(code, logits, step)

    return token_by_token(
        choose,
        init_codes,
        lanes=num_samples,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
        with_sample_log_prob=with_sample_log_prob,
    )
