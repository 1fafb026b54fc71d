"""Expectations and pass@k from sets of dependent samples, which are drawn independently.

The samples of one call of ``arithmetic_sample`` depend on each other, so their spread says nothing
about the error of their mean. Calls with different keys are independent, and the spread of their
means shows the error (randomised quasi-Monte Carlo: Cranley and Patterson 1976; L'Ecuyer and
Lemieux 2002). R is the number of such sets, and N the number of samples of each. Independent
samples are sets with N = 1.
"""

from __future__ import annotations

import jax.numpy as jnp

from decoding_jax.base import Array


def mean_and_error(values: Array) -> tuple[Array, Array]:
    """The mean of a function of the samples, and the standard error of that mean.

    Args:
      values: float32 ``[..., R, N]``, the value of each sample, R at least 2.

    Returns:
      The mean, float32 ``[...]``, and its standard error, float32 ``[...]``. The mean is unbiased,
      and so is the square of the error as an estimate of the mean's variance. Both are NaN if any
      value is.

    Raises:
      ValueError: for fewer than two sets.

    Example:
      >>> mean, error = mean_and_error(jnp.array([[1.0, 3.0], [2.0, 4.0]]))
      >>> mean.tolist(), error.tolist()
      (2.5, 0.5)
    """
    values = _sets("values", values).astype(jnp.float32)
    num_sets = values.shape[-2]
    if num_sets < 2:
        raise ValueError(f"values: expected 2 or more, [..., R, N], got {num_sets} set")
    means = values.mean(-1)
    spread = jnp.square(means - means.mean(-1, keepdims=True)).sum(-1) / (num_sets - 1)
    return means.mean(-1), jnp.sqrt(spread / num_sets)


def pass_at_k(correct: Array, k: int) -> Array:
    """An unbiased estimate of the probability that one of k independent samples is correct.

    That is 1 - (1 - p)^k, where p is the probability that a sample is correct. The fractions of
    wrong samples in the sets, w_1, ..., w_R, are independent and have the mean 1 - p, whatever the
    dependence within a set. Hence a product of k different ones has the mean (1 - p)^k, and the
    estimate is 1 minus the mean of all such products. With N = 1 this is the estimator of Chen et
    al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, equation 1.

    Args:
      correct: bool ``[..., R, N]``, whether each sample is correct. A sample that ended at NaN
        logits has no answer, which is not correct.
      k: from 1 to R.

    Returns:
      float32 ``[...]``.

    Raises:
      ValueError: for a k that is not from 1 to R.

    Example:
      >>> three_of_five = jnp.array([True, False, True, False, True])[:, None]
      >>> round(float(pass_at_k(three_of_five, 2)), 3)  # 1 - 1 / 10
      0.9
    """
    correct = _sets("correct", correct)
    num_sets = correct.shape[-2]
    _check_k(k, num_sets, "the number of sets")
    wrong = 1.0 - correct.astype(jnp.float32).mean(-1)
    # products[j] is the mean of all products of j different fractions among those seen so far.
    products = [jnp.ones(wrong.shape[:-1]), *[jnp.zeros(wrong.shape[:-1])] * k]
    for seen in range(1, num_sets + 1):
        for j in range(min(k, seen), 0, -1):
            with_last = wrong[..., seen - 1] * products[j - 1]
            products[j] += j / seen * (with_last - products[j])
    return 1.0 - products[k]


def pass_at_k_of_lattice(correct: Array, k: int) -> Array:
    """An estimate of the probability that one of k arithmetic samples is correct.

    It is about samples of the lattice, which are spread evenly and are correct together less often
    than independent ones. Every N/k-th point of a lattice of N is a lattice of k with a uniform
    shift, so the estimate is the fraction of these N/k lattices that have a correct sample. It is
    unbiased for k samples that carry their codes as long as N do. ``arithmetic_sample`` with
    ``num_samples=k`` draws fresh bits as soon as a sample is alone among k (``codes.arithmetic``),
    and its samples then depend on each other less. For answers that are decided by later tokens,
    its probability therefore differs, in either direction, though little on average.

    Args:
      correct: bool ``[..., N]``, whether each sample is correct, in the order in which
        ``arithmetic_sample`` returns them with ``points="lattice"``; False for one that ended at
        NaN logits.
      k: a divisor of N.

    Returns:
      float32 ``[...]``.

    Raises:
      ValueError: for a k that does not divide N.

    Example:
      >>> pass_at_k_of_lattice(jnp.array([True, False, False, False]), 2).tolist()
      0.5
    """
    correct = jnp.asarray(correct)
    count = correct.shape[-1] if correct.ndim else 0
    _check_k(k, count, "the number of samples")
    if count % k:
        raise ValueError(f"k: expected a divisor of the number of samples, {count}, got {k}")
    lattices = correct.reshape(*correct.shape[:-1], k, count // k)
    return lattices.any(-2).astype(jnp.float32).mean(-1)


def _sets(name: str, values: Array) -> Array:
    values = jnp.asarray(values)
    if values.ndim < 2 or 0 in values.shape[-2:]:
        raise ValueError(
            f"{name}: expected [..., R, N], N samples in each of R sets, got {list(values.shape)}"
        )
    return values


def _check_k(k: int, count: int, of: str) -> None:
    if not 1 <= k <= count:
        raise ValueError(f"k: expected 1 to {of}, {count}, got {k}")
