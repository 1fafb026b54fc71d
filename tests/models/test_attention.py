"""Attention gives the same result whether a part is read in chunks or all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.models import attention
from decoding_jax.models.attention import Part
from decoding_jax.models.attention_choice import attend

B, W, H, G, T, D = 2, 3, 2, 2, 2, 4


def parts(slots, dtype, shared, used):
    """A prompt of five keys, and a part whose keys are not seen from ``used`` on."""
    keys = jax.random.split(jax.random.key(0), 6)
    normal = lambda key, *shape: jax.random.normal(key, shape).astype(dtype)  # noqa: E731
    held = (B, H, slots, D) if shared else (B, W, H, slots, D)
    seen = jax.random.bernoulli(keys[4], 0.5, (B, W, T, slots)) & (
        jnp.arange(slots) < used
    ).reshape(1, 1, 1, -1)
    key = normal(keys[2], *held)
    # Keys that no query sees must not change the result.
    unused = jnp.arange(slots).reshape((1,) * (key.ndim - 2) + (-1, 1)) >= used
    key = jnp.where(unused, jnp.asarray(100.0, dtype), key)
    prompt = Part(
        normal(keys[0], B, H, 5, D), normal(keys[1], B, H, 5, D), jnp.ones((1, 1, 1, 5), bool)
    )
    bias = jax.random.normal(keys[5], (1, 1, H, 1, T, slots))
    return prompt, Part(key, normal(keys[3], *held), seen, bias)


@jax.jit
def chunked(query, prompt, part, used):
    return attend(query, [prompt, part._replace(used=used)], 0.5)


@jax.jit
def whole(query, prompt, part):
    return attend(query, [prompt, part], 0.5)


@pytest.mark.parametrize(("dtype", "atol"), [(jnp.float32, 1e-6), (jnp.bfloat16, 2e-2)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("used", [0, 1, 128, 129, 300])
def test_chunks_are_the_whole(monkeypatch, dtype, atol, shared, used):
    monkeypatch.setattr(attention, "CHUNK_SIZE", 1)  # chunks of 128, of which 300 are not whole
    prompt, part = parts(300, dtype, shared, used)
    query = jax.random.normal(jax.random.key(9), (B, W, H, G, T, D)).astype(dtype)
    assert "while" in chunked.lower(query, prompt, part, jnp.int32(0)).as_text()
    want = whole(query, prompt, part).astype(jnp.float32)
    got = chunked(query, prompt, part, jnp.int32(used)).astype(jnp.float32)
    np.testing.assert_allclose(got, want, atol=atol)
    assert np.isfinite(got).all()
    # A larger `used` gives the same result, even beyond the number of slots.
    more = chunked(query, prompt, part, jnp.int32(999)).astype(jnp.float32)
    np.testing.assert_allclose(more, want, atol=atol)


@pytest.mark.exhaustive
def test_a_chunked_part_alone():
    _, part = parts(9000, jnp.float32, True, 5000)
    part = part._replace(mask=part.mask.at[..., 0].set(True))
    query = jax.random.normal(jax.random.key(9), (B, W, H, G, T, D))
    got = attend(query, [part._replace(used=jnp.int32(5000))], 1.0)
    np.testing.assert_allclose(got, attend(query, [part], 1.0), atol=1e-5)


@pytest.mark.release
def test_a_short_part_is_read_at_once():
    prompt, part = parts(100, jnp.float32, False, 7)
    query = jax.random.normal(jax.random.key(9), (B, W, H, G, T, D))
    program = jax.jit(lambda used: attend(query, [prompt, part._replace(used=used)], 0.5))
    assert "while" not in program.lower(jnp.int32(7)).as_text()
