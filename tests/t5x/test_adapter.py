"""The adapter satisfies the model contract: logits of paths, rewinds, ragged rows, lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from fake_network import FakeNetwork
from flax.core import freeze

from decoding_jax import transforms
from decoding_jax.base import LanguageModel, SupportsSelect
from decoding_jax.loop import model_calls
from decoding_jax.t5x import T5XAdapter
from decoding_jax.t5x.rescaled import Rescaled
from decoding_jax.testing import TableLM, conformance
from decoding_jax.testing.conformance import LANES, SLOTS, Trial, extend

EOS = jnp.array([1])
INPUTS = np.zeros((3, 12), np.int32)
INPUTS[0, 1:4], INPUTS[2, 1] = (5, 3, 2), 4
INDEX = np.array([3, 0, 1], np.int32)

CHECKS = {
    # Layers scanned, prompts in the cache: what is checked there.
    (False, False): [conformance.check_blocks, conformance.check_rewind, conformance.check_select],
    (True, False): [conformance.check_rewind, conformance.check_select],
    (False, True): [conformance.check_ragged, conformance.check_select],
    (True, True): [
        conformance.check_blocks,
        conformance.check_rewind,
        conformance.check_rows_alone,
        conformance.check_junk,
        conformance.check_select,
        conformance.check_ragged,
        conformance.check_out_of_range,
    ],
}


def adapter(network, prefilled, rows=slice(None)):
    """All rows behind prompts of their own, or all at the start."""
    if not prefilled:
        inputs = np.zeros_like(INPUTS)[rows]
        cache, index = network.empty(len(inputs)), None
    else:
        inputs, index = INPUTS[rows], jnp.asarray(INDEX[rows])
        cache = network.prefilled(inputs, INDEX[rows])
    return T5XAdapter(cache, jnp.asarray(inputs), index, EOS, network, LANES, network.offset)


def trial_of(network, prefilled):
    """Paths after the adapter's prompts, and their logits by a network without a cache."""
    tokens = np.random.default_rng(1).integers(7, size=(3, LANES, SLOTS), dtype=np.int32)
    model = adapter(network, prefilled)
    prompt = tuple(np.asarray(x) for x in model.start_prompt())
    reference = np.zeros((3, LANES, SLOTS, 7), np.float32)
    for b, w in np.ndindex(3, LANES):
        text = np.concatenate([prompt[0][b, : prompt[1][b]], tokens[b, w]])
        reference[b, w] = network.path_logits(text)[prompt[1][b] :]
    alone = {row: adapter(network, prefilled, slice(row, row + 1)) for row in range(2)}.__getitem__
    return Trial(model, prompt, tokens, reference, 1e-5, alone)


@pytest.mark.parametrize(("scanned", "prefilled"), tiers.combinations(CHECKS, [(True, True)]))
def test_conformance(scanned, prefilled):
    trial = trial_of(FakeNetwork(scanned=scanned), prefilled)
    assert isinstance(trial.model, LanguageModel)
    assert isinstance(trial.model, SupportsSelect)
    assert (trial.model.ragged, trial.model.tree) == (prefilled, False)
    assert trial.model.vocab_size == 7
    for check in CHECKS[scanned, prefilled]:
        check(trial)


@pytest.mark.exhaustive
def test_unsupported_calls_raise_errors_of_one_line():
    model = adapter(FakeNetwork(), False)
    prompt = model.start_prompt()
    with pytest.raises(ValueError, match=r"lanes: expected num_decodes, which is 2, .*, got 3"):
        model.prefill(*prompt, lanes=3, slots=4)
    _, cache = model.prefill(*prompt, lanes=LANES, slots=4)
    block = jnp.zeros((3, LANES, 1), jnp.int32)
    with pytest.raises(ValueError, match=r"start: expected a scalar, .* NativeEncoderDecoderModel"):
        model.extend(cache, block, jnp.zeros((3, LANES), jnp.int32))
    with pytest.raises(ValueError, match=r"visible: expected None, .* NativeEncoderDecoderModel"):
        model.extend(cache, block, 0, jnp.zeros((3, LANES, 1, 4), bool))


def test_the_network_sees_the_cache_in_the_mapping_it_came_in():
    network, seen = FakeNetwork(), []

    def tokens_to_logits(state):
        seen.append(type(state.cache).__name__)
        return network(state)

    for cache in (network.empty(3), freeze(network.empty(3))):
        model = T5XAdapter(cache, jnp.asarray(INPUTS), None, EOS, tokens_to_logits, 1)
        jax.eval_shape(lambda m=model: m.prefill(*m.start_prompt(), lanes=1, slots=4))
    assert seen == ["dict", "FrozenDict"]


def test_biases_are_never_expanded_and_unknown_leaves_are():
    seen = {}

    def tokens_to_logits(state):
        seen.update(jax.tree.map(jnp.shape, state.cache))
        return jnp.zeros((6, 4)), state.cache

    cache = {"cached_bias": np.ones((1, 5)), "cur_iter": np.zeros((3, 1)), "mark": np.zeros(())}
    model = T5XAdapter(cache, jnp.asarray(INPUTS), None, EOS, tokens_to_logits, LANES)
    jax.eval_shape(lambda: model.prefill(*model.start_prompt(), lanes=LANES, slots=4))
    assert seen == {"cached_bias": (1, 5), "cur_iter": (6, 1), "mark": ()}


@pytest.mark.exhaustive
def test_forced_tokens_ban_all_others_and_a_forced_end_token_does_not_end_a_row():
    network = FakeNetwork()
    inputs = np.zeros((2, 12), np.int32)
    inputs[0, 1:4] = (5, 1, 3)
    model = T5XAdapter(network.empty(2), jnp.asarray(inputs), None, EOS, network, LANES)
    output, cache = model.prefill(*model.start_prompt(), lanes=LANES, slots=4)
    logits = [np.asarray(output.logits)[:, 0, 0]]
    fed = np.array([5, 0, 3, 6])
    for slot in range(3):
        block = jnp.broadcast_to(fed[slot], (2, LANES, 1)).astype(jnp.int32)
        output, cache = extend(model, cache, block, slot)
        logits.append(np.asarray(output.logits)[:, 0, 0])
    forced = np.stack(logits)[:, 0]
    for step, token in enumerate((5, 0, 3)):  # The strategy is shown 0 instead of the end token, 1.
        assert forced[step, token] == 0
        assert (np.delete(forced[step], token) == -np.inf).all()
    free = network.path_logits(np.array([0, 5, 1, 3]))[-1]
    np.testing.assert_allclose(forced[3], free, atol=1e-5)
    other = network.path_logits(np.array([0, 5, 0, 3]))
    np.testing.assert_allclose(np.stack(logits)[:, 1], other, atol=1e-5)


@pytest.mark.exhaustive
def test_a_model_with_a_transform_built_in_conforms():
    """Ragged rows, trees and moves; the transform depends on the order of a path's tokens."""
    rule = transforms.chain(
        transforms.no_repeat_ngram(2), transforms.frequency_penalty(0.5, include_prompt=True)
    )
    model = Rescaled(TableLM.random(jax.random.key(3), 5), rule)
    assert (model.ragged, model.tree, model.vocab_size) == (True, True, 5)
    trial = conformance.make_trial(model, tolerance=1e-6)
    for check in (conformance.check_ragged, conformance.check_tree, conformance.check_keep):
        check(trial)


def test_a_model_with_a_transform_built_in_gives_the_keys_of_its_model():
    model = Rescaled(TableLM.random(jax.random.key(3), 5), transforms.temperature(0.5))

    def check():
        _, cache = model.prefill(jnp.ones((1, 2), jnp.int32), jnp.array([2]), lanes=1, slots=2)
        keys, length = model_calls.shared_keys(model, cache, jnp.ones((1, 1), jnp.int32))
        assert keys is cache.inner
        assert length.shape == (1, 1)

    jax.eval_shape(check)
