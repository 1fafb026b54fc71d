"""Power sampling: particles that follow a power of the model's distribution."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax import fields, rows
from decoding_jax.base import Array
from decoding_jax.loop import as_function
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.particles.smc_sample import SMCSample


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerSample(SMCSample):
    """Samples whole texts by a power of their probability: ``p(x)^alpha``, normalised over texts.

    The target of Karan & Du 2025, "Reasoning with Sampling: Your Base Model is Smarter Than You
    Think", arXiv:2510.14901, by the particles of Azizi et al. 2026, "Power-SMC: Low-Latency
    Sequence-Level Power Sampling for Training-Free LLM Reasoning", arXiv:2602.10273. A temperature
    of 1 / alpha sharpens each token by itself, whatever the texts that follow. Here, a particle
    draws its token so, and is weighed by the sum of ``p^alpha`` over all tokens: a beginning counts
    for all of its continuations. N, resampling and ``info`` are those of ``smc_sample``;
    ``log_normaliser`` estimates the sum of ``p(x)^alpha`` over texts.

    Attributes:
      alpha: the power, above 0: a number or float32 ``[B]``. 1 is ``sample``.
      num_samples: N, the number of particles of a row.
      language: as for ``smc_sample``.
      potential: as for ``smc_sample``.
      proposal: as for ``smc_sample``.
      finished_only: as for ``smc_sample``.
      resampling: as for ``smc_sample``.
      ess_threshold: as for ``smc_sample``.
      weighted: as for ``smc_sample``.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the power.
      stop: when a sequence ends.

    Raises:
      ValueError: as ``smc_sample``, and for an ``alpha`` of 0 or less.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> key = jax.random.key(1)
      >>> power_sample(model, prompt, key, num_samples=8, max_new_tokens=4).tokens.shape
      (1, 8, 4)
    """

    alpha: Any = fields.number(
        "a finite number above 0", lambda x: (x > 0) & (x < jnp.inf), default=4.0
    )

    @property
    def weighs_tokens(self) -> bool:
        return True

    def tilted(self, log_probs: Array) -> Array:
        alpha = rows.per_row(self, "alpha", log_probs)
        return jnp.where(log_probs > -jnp.inf, alpha * log_probs, -jnp.inf)


power_sample = as_function(PowerSample)
