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
PROMPT = Prompt(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1]))


@pytest.mark.parametrize("name", ["sample", "speculative_sample"])
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
    after_prompt, cache = MODEL.prefill(*PROMPT, lanes=2, slots=LENGTH)
    after_tokens, _ = MODEL.extend(cache, output.tokens, 0)
    first = jnp.broadcast_to(after_prompt.logits, (2, 2, 1, 4))
    logits = np.asarray(jnp.concatenate([first, after_tokens.logits[:, :, :-1]], 2), np.float64)
    gained = np.take_along_axis(logits, np.asarray(output.tokens)[..., None], -1)[..., 0]
    expected = (gained - np.logaddexp.reduce(logits, -1)).sum(-1)
    assert (expected < -100_000).all()
    np.testing.assert_allclose(output.log_prob, expected, rtol=0, atol=0.017)
