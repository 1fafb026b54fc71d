"""The log-probabilities of a record's tokens are the model's, and add up to that of the output."""

import functools

import numpy as np
import pytest
from infer_fakes import LINES, records, records_of

import decoding_jax

SAMPLE = functools.partial(decoding_jax.sample, num_samples=3, max_new_tokens=5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("with_tokens", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_job_on_a_table(decode, with_tokens):
    settings = {"strategy": SAMPLE, "shard_size": 4, "with_tokens": with_tokens}
    lines = [*LINES[:3], "", *LINES[3:]]
    plain = records_of(decode(lines, "plain", **settings))
    both = {"with_token_log_probs": True, "with_token_entropies": True, "with_top_tokens": 7}
    files = decode(lines, "scored", **both, **settings)
    scored = records_of(files)
    assert decode(lines, "scored", **both, **settings) == files
    for record in scored:
        for output in record["outputs"]:
            numbers = output.pop("token_log_probs")
            assert all(0 < x < np.log(7) for x in output.pop("token_entropies"))
            tops, log_probs = output.pop("top_tokens"), output.pop("top_log_probs")
            assert all(sorted(of_token) == [*range(7)] for of_token in tops)
            np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, atol=1e-5)
            for token, number, ids, found in zip(
                output.get("tokens", []), numbers, tops, log_probs, strict=False
            ):
                assert found == sorted(found, reverse=True)
                assert number == found[ids.index(token)]
            assert sum(numbers) == pytest.approx(output["log_prob"], abs=1e-5)
            assert len(numbers) == len(output.get("tokens", numbers)) > 0
    assert scored == plain
    with pytest.raises(ValueError, match=r"not the same: with_token_log_probs, with_top_tokens\)"):
        decode(lines, "scored", with_token_entropies=True, **settings)
    with pytest.raises(ValueError, match=r"with_top_tokens: expected .* from 0 to 7, got 8"):
        decode(lines, "scored", with_top_tokens=8, **settings)


def test_a_job_of_an_encoder_decoder(command):
    assert command("--gin.infer.run.with_token_log_probs=True") == 0
    for record in records():
        for output in record["outputs"]:
            assert sum(output["token_log_probs"]) == pytest.approx(output["log_prob"], abs=1e-4)
            assert len(output["token_log_probs"]) <= 3
