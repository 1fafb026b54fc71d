"""Arithmetic sampling: samples that are each exact and together evenly spread."""

from __future__ import annotations

from decoding_jax import codes
from decoding_jax.base import Array, Stop, Transform
from decoding_jax.loop import Static, Steps, sampler
from decoding_jax.ops import random
from decoding_jax.strategies.token_by_token import grow


@sampler
def arithmetic_sample(
    *,
    num_samples: Static[int],
    points: Static[str | codes.Points] = "lattice",
    max_new_tokens: Static[int],
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Draws N samples of every row whose codes are spread evenly over the unit interval.

    Vilnis et al. 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models".
    Each sample by itself follows the transformed model exactly; with the lattice, any prefix of
    probability p is shared by the floor or the ceiling of N p samples, so averages over the
    samples vary less than those over independent ones. Codes are integers that are used exactly
    as long as they mean something (see ``codes.arithmetic``): they do not run dry.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      key: a typed key, folded with each row's index; or typed keys ``[B]``, one a row.
      num_samples: N.
      points: ``lattice`` (the paper's), ``stratified``, ``antithetic``, ``iid`` (plain sampling),
        ``radical_inverse``, or a function of your own (``codes.Points``).
      max_new_tokens: L, the most new tokens.
      transform: applied to the logits before the choice.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput`` in the order of the points. ``score`` is ``log_prob``. A lane whose every
      continuation is banned ends there, not finished.

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

    return grow(
        choose,
        init_codes,
        lanes=num_samples,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )
