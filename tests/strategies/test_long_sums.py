"""Log-probabilities of very improbable texts: sums are compensated for float32 rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt, transforms
from decoding_jax.testing import TableLM

LENGTH = 160
MODEL = TableLM.random(jax.random.key(5), 4, sharpness=1500.0)
PROMPT = Prompt(np.array([[1, 2], [3, 0]], np.int32), np.array([2, 1], np.int32))


@jax.jit
def logits_of(tokens):
    """The model's logits for each of these tokens."""
    after_prompt, cache = MODEL.prefill(*PROMPT, lanes=2, slots=LENGTH)
    after_tokens, _ = MODEL.extend(cache, tokens, 0)
    first = jnp.broadcast_to(after_prompt.logits, (2, 2, 1, 4))
    return jnp.concatenate([first, after_tokens.logits[:, :, :-1]], 2)


@pytest.mark.release
@pytest.mark.parametrize(
    "name", ["sample", pytest.param("speculative_sample", marks=pytest.mark.exhaustive)]
)
def test_the_log_prob_of_a_long_text_is_its_sum_to_one_step(name):
    """160 tokens of about -1,400 nats each. Float32 numbers near -230,000 are 0.016 apart."""
    speculates = name == "speculative_sample"
    draft = (TableLM.random(jax.random.key(6), 4),) if speculates else ()
    output = getattr(decoding_jax, name)(
        MODEL,
        *draft,
        PROMPT,
        jax.random.key(0),
        num_samples=2,
        max_new_tokens=LENGTH,
        transform=transforms.temperature(1e9),
        **({"num_draft_tokens": 3} if speculates else {}),
    )
    logits = np.asarray(logits_of(output.tokens), np.float64)
    gained = np.take_along_axis(logits, np.asarray(output.tokens)[..., None], -1)[..., 0]
    expected = (gained - np.logaddexp.reduce(logits, -1)).sum(-1)
    assert (expected < -100_000).all()
    np.testing.assert_allclose(output.log_prob, expected, rtol=0, atol=0.017)
