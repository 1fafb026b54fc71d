"""A model with a transform in it is a model like any other: chains, ragged rows, trees, moves."""

import jax

from decoding_jax import transforms
from decoding_jax.t5x.rescaled import Rescaled
from decoding_jax.testing import TableLM, check_model


def test_conformance():
    """The transform depends on the order of each node's own path."""
    rule = transforms.chain(
        transforms.no_repeat_ngram(2), transforms.frequency_penalty(0.5, include_prompt=True)
    )
    model = TableLM.random(jax.random.key(3), 5)
    checks = check_model(Rescaled(model, rule), tolerance=1e-6)
    assert {"check_ragged", "check_tree", "check_keep", "check_out_of_range"} <= set(checks)
