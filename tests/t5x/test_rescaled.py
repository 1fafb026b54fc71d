"""A model with a built-in transform satisfies the model contract: ragged rows, trees, moves."""

import jax

from decoding_jax import transforms
from decoding_jax.t5x.rescaled import Rescaled
from decoding_jax.testing import TableLM
from decoding_jax.testing.conformance import chain, tree
from decoding_jax.testing.conformance.trial import make_trial


def test_conformance():
    """The transform depends on the order of the tokens in each node's path."""
    rule = transforms.chain(
        transforms.no_repeat_ngram(2), transforms.frequency_penalty(0.5, include_prompt=True)
    )
    model = Rescaled(TableLM.random(jax.random.key(3), 5), rule)
    assert (model.ragged, model.tree, model.vocab_size) == (True, True, 5)
    trial = make_trial(model, tolerance=1e-6)
    for check in (chain.check_ragged, tree.check_tree, tree.check_keep):
        check(trial)
