"""A table model, exact distributions, and checks for your own models and strategies."""

from decoding_jax.testing.certificate.cases import all_cases, pairwise_cases
from decoding_jax.testing.certificate.comparisons import Fit, chi_square, same_bits
from decoding_jax.testing.certificate.enumeration import (
    Distribution,
    enumerate_distribution,
    greedy_path,
    log_probs,
    path_logits,
    top_sequences,
)
from decoding_jax.testing.conformance import check_model
from decoding_jax.testing.table_lm import TableLM

__all__ = [
    "Distribution",
    "Fit",
    "TableLM",
    "all_cases",
    "check_model",
    "chi_square",
    "enumerate_distribution",
    "greedy_path",
    "log_probs",
    "pairwise_cases",
    "path_logits",
    "same_bits",
    "top_sequences",
]
