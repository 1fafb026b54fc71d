"""T5X's own decoding tests, run with this library's functions instead of T5X's."""

import inspect
import unittest
import warnings

import jax
import pytest

from decoding_jax.t5x import decode_fns

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.decoding", reason="T5X is not installed", exc_type=ImportError)
    decoding_test = pytest.importorskip(
        "t5x.decoding_test", reason="T5X comes without its tests", exc_type=ImportError
    )

REPLACES_INTERNALS = "puts a mock in the place of a private function, or of random.categorical"
NOT_APPLICABLE = {
    "test_temperature_sample_prefix_ending_with_eos_early_stop": REPLACES_INTERNALS,
    "test_temperature_sample_log_prob": REPLACES_INTERNALS,
    "test_temperature_sample_num_decodes": REPLACES_INTERNALS,
    "test_temperature_sample_num_decodes_with_initial_index": REPLACES_INTERNALS,
    "test_topp_log_probs": REPLACES_INTERNALS,
}


def one_sample(
    inputs, cache, tokens_to_logits, eos_id, prng_key, num_decodes=1, temperature=1.0, topk=20,
    topp=0.0, **others,
):  # fmt: skip
    """T5X's private function that many tests call, implemented by this library's public one."""
    decodes, scores = decode_fns.temperature_sample(
        inputs, cache, tokens_to_logits, eos_id, prng_key, 1, temperature, topk, topp, **others
    )
    return decodes[:, 0], scores[:, 0]


def names():
    cases = unittest.defaultTestLoader.loadTestsFromTestCase(decoding_test.DecodeTest)
    return [case._testMethodName for case in cases]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", names())
def test_t5x_tests_pass(name, monkeypatch):
    if name in NOT_APPLICABLE:
        pytest.skip(NOT_APPLICABLE[name])
    decoding = decoding_test.decoding
    monkeypatch.setattr(decoding, "temperature_sample", decode_fns.temperature_sample)
    monkeypatch.setattr(decoding, "_temperature_sample_single_trial", one_sample)
    monkeypatch.setattr(decoding, "beam_search", decode_fns.beam_search)
    result = unittest.TestResult()
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        decoding_test.DecodeTest(name).run(result)
    problems = [text for _, text in result.failures + result.errors]
    assert not problems, problems[0]


@pytest.mark.parametrize("name", ["temperature_sample", "beam_search"])
def test_arguments_by_position_are_those_of_t5x(name):
    positional = [
        parameter.name
        for parameter in inspect.signature(getattr(decode_fns, name)).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert positional == list(inspect.signature(getattr(decoding_test.decoding, name)).parameters)
