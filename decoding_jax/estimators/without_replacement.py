"""Expectations from sequences drawn without replacement."""

from __future__ import annotations

import jax.numpy as jnp

from decoding_jax.base import Array


def log_weights(sampling_log_prob: Array, threshold: Array) -> Array:
    """Log importance weights of sequences drawn by stochastic beam search.

    Kool et al. 2019, section 4.2: given the threshold, a sequence of probability p is drawn with
    probability q = 1 - exp(-exp(log p - threshold)), and its weight is p / q. If every sequence was
    drawn, the threshold is -inf and the weight is p.

    Args:
      sampling_log_prob: float32 ``[B, N]``, in nats; -inf where there is no sequence.
      threshold: float32 ``[B]``, the (N + 1)-th perturbed log-probability.

    Returns:
      float32 ``[B, N]``, in nats; NaN where the log-probability or the threshold is NaN.

    Example:
      >>> log_weights(jnp.log(jnp.array([[0.5, 0.25]])), jnp.array([-jnp.inf])).round(3)
      Array([[-0.693, -1.386]], dtype=float32)
    """
    exists = sampling_log_prob != -jnp.inf
    above = jnp.where(exists, sampling_log_prob, 0.0) - threshold[:, None]
    log_q = jnp.log(-jnp.expm1(-jnp.exp(above)))
    # Far below the threshold q equals exp(above) to the last bit, but its logarithm would be -inf.
    log_q = jnp.where(above < -15.0, above, log_q)
    return jnp.where(exists, sampling_log_prob - log_q, -jnp.inf)


def estimate(
    values: Array, sampling_log_prob: Array, threshold: Array, *, normalize: bool = False
) -> Array:
    """Estimates an expectation from sequences that were drawn without replacement.

    The expectation is under the distribution that the sequences were drawn from.

    Kool et al. 2019, equations 14 (unbiased) and 15 (normalised: biased but consistent, with lower
    variance if the mean of the values is far from 0).

    Args:
      values: float32 ``[B, N]``, the value of each sequence.
      sampling_log_prob: float32 ``[B, N]``, from the ``info`` of ``stochastic_beam_search``.
      threshold: float32 ``[B]``, from the same ``info``.
      normalize: whether weights are divided by their sum.

    Returns:
      float32 ``[B]``. It is NaN for a row in which a sequence ended at NaN logits.

    Example:
      >>> log_probs, all_drawn = jnp.log(jnp.array([[0.5, 0.5]])), jnp.array([-jnp.inf])
      >>> estimate(jnp.array([[1.0, 3.0]]), log_probs, all_drawn).tolist()
      [2.0]
    """
    weights = jnp.exp(log_weights(sampling_log_prob, threshold))
    total = jnp.where(weights == 0, 0.0, weights * values).sum(-1)
    return total / weights.sum(-1) if normalize else total
