"""Watermarks: the distribution of one text over keys, speculation, and the detector's p-values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.estimators.watermarks import detect
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution
from decoding_jax.testing.certificate.comparisons import count_outcomes, outcome_index
from decoding_jax.transforms import watermarks

MODEL, DRAFT = (TableLM.random(jax.random.key(k), 3, sharpness=1.2) for k in (0, 1))
ROWS, LENGTH, LEVEL = 8192, 5, 1e-4
STOP = Stop(eos_ids=(0,), min_new_tokens=2)
PROMPT = Prompt(np.array([[1, 2, 2]], np.int32), np.array([2], np.int32))
WARM = transforms.temperature(1.5)
KEYS = np.random.default_rng(0).integers(0, 2**32, (ROWS, 2), dtype=np.uint32)
GUMBEL = transforms.gumbel_watermark(KEYS, context=1)
TOURNAMENT = transforms.tournament_watermark(KEYS, layers=8, context=1)


def both(logits, prefix):
    """The first half of the rows has one watermark and the second half the other."""
    is_first = jnp.arange(ROWS)[:, None, None, None] < ROWS // 2
    return jnp.where(is_first, GUMBEL(logits, prefix), TOURNAMENT(logits, prefix))


def p_values(mark, draft=None):
    """Of both halves: one text for each of ``ROWS`` secret keys, against the enumerated texts."""
    prompt = Prompt(*(np.repeat(x, ROWS, 0) for x in PROMPT))
    settings = {"transform": transforms.chain(WARM, mark), "stop": STOP, "max_new_tokens": LENGTH}
    if draft is None:
        output = decoding_jax.sample(MODEL, prompt, jax.random.key(5), **settings)
    else:
        output = decoding_jax.speculative_sample(
            MODEL, draft, prompt, jax.random.key(5), num_draft_tokens=2, **settings
        )
        assert 0.1 < output.info.acceptance_rate < 0.9
    want = enumerate_distribution(
        MODEL, PROMPT, 0, max_new_tokens=LENGTH, transform=WARM, stop=STOP
    )
    index = outcome_index(want, np.asarray(output.tokens[:, 0]), np.asarray(output.length[:, 0]))
    assert (index >= 0).all()
    halves = index.reshape(2, -1)
    return [chi_square(count_outcomes(want, half), want.prob).p_value for half in halves]


@pytest.mark.release
def test_a_text_has_the_distribution_that_it_has_without_a_mark():
    """Averaged over keys: 4,096 texts of each kind, each with its own key; chi-square, level 1e-4.

    With one token of context, most texts have repeated contexts.
    """
    assert min(p_values(both)) > LEVEL


@pytest.mark.release
def test_a_text_whose_repeated_contexts_are_marked_has_another_distribution(monkeypatch):
    """The same test sees what would be wrong without the exception for repeated contexts."""
    kept = watermarks.keyed_bits

    def always(watermark, logits, prefix):
        return prefix.length >= watermark.context, kept(watermark, logits, prefix)[1]

    monkeypatch.setattr(watermarks, "keyed_bits", always)
    assert max(p_values(lambda logits, prefix: both(logits, prefix))) < 1e-12  # traced again


@pytest.mark.release
def test_a_text_has_the_same_distribution_under_speculation():
    """As above, with a draft that differs from the model, and the verifier ``token``."""
    assert min(p_values(both, DRAFT)) > LEVEL


def test_p_values_of_unmarked_texts_are_uniform():
    """10,000 texts with repeated contexts, each tested with a key of its own; level 1e-4.

    Kolmogorov-Smirnov; p-values of tournaments, which are discrete, are at or above uniform ones.
    """
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 2**32, (10_000, 2), dtype=np.uint32)
    tokens = rng.choice(8, (10_000, 48), p=np.arange(1, 9) / 36)
    length = rng.integers(3, 49, 10_000)
    found = detect(tokens, length, transforms.gumbel_watermark(keys, context=2))
    assert (found.num_tokens < length - 2).mean() > 0.5
    assert stats.kstest(found.p_value, "uniform").pvalue > LEVEL
    found = detect(tokens, length, transforms.tournament_watermark(keys, context=2))
    for level in (0.5, 0.1, 0.01):
        rejected = int((found.p_value <= level).sum())
        assert stats.binomtest(rejected, 10_000, level, alternative="greater").pvalue > LEVEL
        assert rejected > 0.8 * level * 10_000


@pytest.mark.release
def test_marked_texts_are_detected():
    """32 texts of 64 tokens in two lanes, by their key and by another."""
    model = TableLM.random(jax.random.key(2), 16)
    prompt = Prompt(np.full((16, 1), 3, np.int32), np.full(16, 1, np.int32))
    mark = transforms.gumbel_watermark(key=2**50 + 7)
    settings = {"max_new_tokens": 64, "num_samples": 2, "transform": mark}
    output = decoding_jax.sample(model, prompt, jax.random.key(3), **settings)
    found = detect(output.tokens, output.length, mark)
    assert found.p_value.shape == (16, 2) and found.p_value.max() < 1e-4  # noqa: PT018
    other = detect(output.tokens, output.length, transforms.gumbel_watermark(key=8))
    assert other.p_value.min() > 1e-6


def test_short_texts_and_wrong_lengths():
    mark = transforms.gumbel_watermark(key=1)
    assert detect([[1, 2, 3]], [3], mark).p_value.tolist() == [1.0]
    assert detect([[1, 2, 3, 4, 5]], [4], mark).num_tokens.tolist() == [0]
    with pytest.raises(ValueError, match="length: expected one length for each of the texts"):
        detect([[1, 2, 3]], 3, mark)
    with pytest.raises(ValueError, match="length: expected numbers from 0 to L, which is 3, got"):
        detect([[1, 2, 3]], [4], mark)
    with pytest.raises(ValueError, match="key: expected one key, or one for each of"):
        detect([[1, 2, 3]] * 3, [3] * 3, transforms.gumbel_watermark(key=[1, 2]))
    with pytest.raises(ValueError, match="watermark: expected"):
        detect([[1, 2, 3]], [3], transforms.top_k(3))
