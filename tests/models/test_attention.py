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
    draw = np.random.default_rng(0)
    normal = lambda *shape: draw.standard_normal(shape, np.float32).astype(dtype)  # noqa: E731
    held = (B, H, slots, D) if shared else (B, W, H, slots, D)
    seen = (draw.random((B, W, T, slots)) < 0.5) & (np.arange(slots) < used)
    key = normal(*held)
    key[..., used:, :] = 100  # Keys that no query sees must not change the result.
    prompt = Part(normal(B, H, 5, D), normal(B, H, 5, D), np.ones((1, 1, 1, 5), bool))
    bias = draw.standard_normal((1, 1, H, 1, T, slots), np.float32)
    return jax.device_put((prompt, Part(key, normal(*held), seen, bias)))


QUERY = np.random.default_rng(9).standard_normal((B, W, H, G, T, D), np.float32)


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
    query = QUERY.astype(dtype)
    assert "while" in chunked.lower(query, prompt, part, np.int32(0)).as_text()
    want = np.asarray(whole(query, prompt, part), np.float32)
    # A larger `used` gives the same result, even beyond the number of slots.
    for least in (used, 999):
        got = np.asarray(chunked(query, prompt, part, np.int32(least)), np.float32)
        np.testing.assert_allclose(got, want, atol=atol)
        assert np.isfinite(got).all()


@pytest.mark.exhaustive
def test_a_chunked_part_alone():
    _, part = parts(9000, jnp.float32, True, 5000)
    part = part._replace(mask=part.mask.at[..., 0].set(True))
    got = attend(QUERY, [part._replace(used=jnp.int32(5000))], 1.0)
    np.testing.assert_allclose(got, attend(QUERY, [part], 1.0), atol=1e-5)


@pytest.mark.release
def test_a_short_part_is_read_at_once():
    prompt, part = parts(100, jnp.float32, False, 7)
    program = jax.jit(lambda used: attend(QUERY, [prompt, part._replace(used=used)], 0.5))
    assert "while" not in program.lower(jnp.int32(7)).as_text()
