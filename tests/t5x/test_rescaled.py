"""A model with a built-in transform satisfies the model contract: ragged rows, trees, moves."""

import jax

from decoding_jax import transforms
from decoding_jax.t5x.rescaled import Rescaled
from decoding_jax.testing import TableLM, conformance


def test_conformance():
    """The transform depends on the order of the tokens in each node's path."""
    rule = transforms.chain(
        transforms.no_repeat_ngram(2), transforms.frequency_penalty(0.5, include_prompt=True)
    )
    model = Rescaled(TableLM.random(jax.random.key(3), 5), rule)
    assert (model.ragged, model.tree, model.vocab_size) == (True, True, 5)
    trial = conformance.make_trial(model, tolerance=1e-6)
    for check in (conformance.check_ragged, conformance.check_tree, conformance.check_keep):
        check(trial)
