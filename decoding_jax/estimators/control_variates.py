"""Means of samples with the log-probability's surprises as a control variate.

A token's surprise is its log-probability less the mean of that over the distribution that it is
drawn from, which is minus the entropy. Whatever the tokens before, it is 0 on average, so the sum
over a text has the known mean 0. A score that is better where a text is more probable than expected
goes along with it: the mean score less c times the mean surprise has the same expectation for any
fixed c, and varies less for a good one (Owen 2013, "Monte Carlo theory, methods and examples",
section 8.9). The samples may depend on each other, as those of ``arithmetic_sample`` do, as long as
each by itself follows the model.
"""

from __future__ import annotations

import jax.numpy as jnp

from decoding_jax.base import Array


def surprise(log_prob: Array, entropy: Array, length: Array) -> Array:
    """The sum of a text's surprises, whose mean over the samples of a model is 0.

    Args:
      log_prob: float32 ``[..., L]``, of each token under the distribution that it was drawn from.
        For samples without a transform that is ``log_prob`` of ``Completion.scores``.
      entropy: float32 ``[..., L]``, of that distribution.
      length: int32 ``[...]``, the number of tokens; later entries count for nothing.

    Returns:
      float32 ``[...]``, in nats.

    Example:
      >>> half = jnp.log(jnp.array([0.5, 0.5, 0.9]))
      >>> round(float(surprise(half, jnp.array([0.5, 0.8, 0.0]), jnp.array(2))), 4)
      -0.0863
    """
    place = jnp.arange(log_prob.shape[-1], dtype=jnp.int32)
    place = place.reshape((1,) * (log_prob.ndim - 1) + place.shape)
    inside = place < jnp.asarray(length)[..., None]
    return jnp.where(inside, log_prob + entropy, 0.0).sum(-1)


def controlled_means(values: Array, variate: Array) -> Array:
    """The mean of each input's samples, corrected by a control variate of mean 0.

    The coefficient of an input is that of the regression of values on the variate, both less
    their means over the samples of an input, in all other inputs. The inputs' samples are
    independent, so no coefficient depends on what it multiplies, and the means are unbiased.

    Args:
      values: float32 ``[..., n, N]``, of N samples of each of n inputs, n and N at least 2. The
        inputs may be one, decoded n times with keys of its own.
      variate: float32 ``[..., n, N]``, such as the ``surprise``.

    Returns:
      float32 ``[..., n]``.

    Raises:
      ValueError: for shapes other than these.

    Example:
      >>> variate = jnp.array([[1.0, 0.0], [-1.0, 1.0], [2.0, 0.0]])
      >>> controlled_means(5.0 + 2.0 * variate, variate).tolist()
      [5.0, 5.0, 5.0]
    """
    values, variate = (jnp.asarray(x, jnp.float32) for x in (values, variate))
    if values.ndim < 2 or min(values.shape[-2:]) < 2 or values.shape != variate.shape:
        raise ValueError(
            "values: expected [..., n, N], n and N at least 2, and a variate of that shape, got "
            f"{list(values.shape)} and {list(variate.shape)}"
        )
    mean, drift = values.mean(-1), variate.mean(-1)
    centred = variate - drift[..., None]
    products = (centred * (values - mean[..., None])).sum(-1)
    squares = jnp.square(centred).sum(-1)
    others, known = (x.sum(-1, keepdims=True) - x for x in (products, squares))
    return mean - drift * jnp.where(known > 0, others / jnp.where(known > 0, known, 1.0), 0.0)
