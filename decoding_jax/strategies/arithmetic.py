"""Arithmetic sampling: samples that are exact one by one and evenly spread together."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from decoding_jax import codes, fields
from decoding_jax.base import Array
from decoding_jax.loop import as_function
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.token_by_token import TokenByToken


def _check_points(name: str, points: Any) -> Any:
    if not isinstance(points, str) and not callable(points):
        raise fields.error(name, "a name such as 'lattice', or a function", points)
    return points


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class ArithmeticSample(TokenByToken):
    """Draws N samples for every row, from codes that are spread evenly over the unit interval.

    Vilnis et al. 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models".
    Each sample by itself follows the transformed model exactly. With the lattice, the number of
    samples that begin with a prefix of probability p is N p, rounded up or down, so averages over
    the samples vary less than averages over independent ones. A code is a 64-bit integer. It is
    carried exactly for as long as another sample may have the same prefix; after that, every token
    draws fresh bits. Codes therefore never run out (see ``codes.arithmetic``).

    The key is as for ``sample``. The output is in the order of the points, and its ``score`` is
    ``log_prob``. A sequence whose every continuation is banned ends unfinished.

    Attributes:
      num_samples: N, the number of samples of a row.
      points: ``lattice`` (the paper's), ``stratified``, ``antithetic``, ``iid`` (plain sampling),
        ``radical_inverse``, or a function of your own (``codes.Points``).
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the choice.
      stop: when a sequence ends.
      with_sample_log_prob: whether the output has ``sample_log_prob``, the log-probability of each
        token under the distribution that it was drawn from.

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

    num_samples: int = fields.count()
    points: str | codes.Points = fields.field(_check_points, static=True, default="lattice")
    with_sample_log_prob: bool = fields.switch(default=False)

    draws: ClassVar[bool] = True

    @property
    def lanes(self) -> int:
        return self.num_samples

    @property
    def records_sample_log_prob(self) -> bool:
        return self.with_sample_log_prob

    def start(self, key: Array, batch_size: int) -> codes.Code:
        return codes.start(self.points, random.row_keys(key, batch_size), self.num_samples)

    def choose(self, chooser: codes.Code, logits: Array, step: Array) -> tuple[Array, codes.Code]:
        return codes.choose(chooser, logits, step)


arithmetic_sample = as_function(ArithmeticSample)
