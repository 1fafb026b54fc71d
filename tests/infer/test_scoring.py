"""The log-probabilities of a record's tokens are the model's, and add up to that of the output."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from infer_fakes import LINES, records, records_of

import decoding_jax
from decoding_jax.infer import scoring

SAMPLE = functools.partial(decoding_jax.sample, num_samples=3, max_new_tokens=5)


def test_each_number_is_the_table_s(table):
    """Two chunks of tokens, against one call of the model for each token."""
    model, _ = table
    prompt = decoding_jax.Prompt(jnp.array([[1, 2, 0], [3, 4, 5]]), jnp.array([2, 3]))
    tokens = jax.random.randint(jax.random.key(0), (2, 2, 32), 0, 7)
    got = scoring.token_scores(model, prompt, tokens)

    output, cache = model.prefill(prompt.tokens, prompt.length, lanes=2, slots=32)
    logits = [jnp.broadcast_to(output.logits, (2, 2, 1, 7))]
    for t in range(31):
        output, cache = model.extend(cache, tokens[:, :, t : t + 1], t)
        logits.append(output.logits)
    log_probs = np.asarray(jax.nn.log_softmax(jnp.concatenate(logits, 2)))
    want = np.take_along_axis(log_probs, np.asarray(tokens)[..., None], 3)[..., 0]
    np.testing.assert_allclose(got.log_prob, want, atol=2e-6)
    entropies = -(np.exp(log_probs) * log_probs).sum(-1)
    np.testing.assert_allclose(got.entropy, np.broadcast_to(entropies, want.shape), atol=2e-6)


@pytest.mark.parametrize("with_tokens", [False, True])
def test_a_job_on_a_table(decode, with_tokens):
    settings = {"strategy": SAMPLE, "shard_size": 4, "with_tokens": with_tokens}
    lines = [*LINES[:3], "", *LINES[3:]]
    plain = records_of(decode(lines, "plain", **settings))
    both = {"with_token_log_probs": True, "with_token_entropies": True}
    files = decode(lines, "scored", **both, **settings)
    scored = records_of(files)
    assert decode(lines, "scored", **both, **settings) == files
    for record in scored:
        for output in record["outputs"]:
            numbers = output.pop("token_log_probs")
            assert all(0 < x < np.log(7) for x in output.pop("token_entropies"))
            assert sum(numbers) == pytest.approx(output["log_prob"], abs=1e-5)
            assert len(numbers) == len(output.get("tokens", numbers)) > 0
    assert scored == plain
    with pytest.raises(ValueError, match=r"not the same: with_token_log_probs\)"):
        decode(lines, "scored", with_token_entropies=True, **settings)


def test_a_job_of_an_encoder_decoder(command):
    assert command("--gin.infer.run.with_token_log_probs=True") == 0
    for record in records():
        for output in record["outputs"]:
            assert sum(output["token_log_probs"]) == pytest.approx(output["log_prob"], abs=1e-4)
            assert len(output["token_log_probs"]) <= 3
