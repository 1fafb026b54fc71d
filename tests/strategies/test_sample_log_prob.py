"""``sample_log_prob``: log-probabilities under the distribution that tokens were drawn from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from pages import PAGES

import decoding_jax
from decoding_jax import Prompt, Stop, adapters, loop, strategies, transforms
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.certificate.enumeration import exact_log_softmax, row_stop, stepper

V, LENGTH, KEY = 6, 5, jax.random.key(3)
MODEL = TableLM.random(jax.random.key(0), V, sharpness=1.5)
DRAFT = TableLM.random(jax.random.key(1), V)
PROMPT = Prompt(np.array([[1, 2], [3, 0]], np.int32), np.array([2, 1], np.int32))
STOP = Stop(eos_ids=0, min_new_tokens=np.array([2, 1]), max_new_tokens=np.array([5, 4]))
TRANSFORM = transforms.chain(
    transforms.temperature([0.7, 1.4]), transforms.presence_penalty(0.3), transforms.top_p(0.9)
)
SAMPLERS = {
    "sample": decoding_jax.sample,
    "arithmetic_sample": decoding_jax.arithmetic_sample,
    "token": functools.partial(decoding_jax.speculative_sample, num_draft_tokens=3),
    "block": functools.partial(
        decoding_jax.speculative_sample, num_draft_tokens=3, verifier="block"
    ),
    "gumbel": functools.partial(
        decoding_jax.speculative_sample, num_draft_tokens=3, verifier="gumbel"
    ),
    "tree": functools.partial(decoding_jax.speculative_sample, num_draft_tokens=2, num_drafts=2),
}


def draw(name, **settings):
    run = SAMPLERS[name]
    args = (MODEL, PROMPT, KEY)
    if isinstance(run, functools.partial):
        args = (MODEL, DRAFT, PROMPT, KEY)
    settings = {"num_samples": 16, "max_new_tokens": LENGTH, "stop": STOP, **settings}
    return jax.device_get(run(*args, **settings))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "transform"),
    tiers.combinations(
        [(name, transform) for name in SAMPLERS for transform in (TRANSFORM, None)],
        [("sample", TRANSFORM)],
        lambda case: {case[0]} & {"sample", "arithmetic_sample", "block"},
    ),
)
def test_it_is_that_of_the_transformed_distribution(name, transform):
    got = draw(name, transform=transform, with_sample_log_prob=True)
    plain = draw(name, transform=transform)
    assert plain.sample_log_prob is None
    assert same_bits(got[:5], plain[:5])
    assert got.sample_log_prob.shape == got.tokens.shape
    for row in range(2):
        rule = row_stop(STOP, row, LENGTH)
        step = stepper(MODEL, PROMPT, row, LENGTH, transform, rule)
        for n in range(16):
            tokens = got.tokens[row, n, : got.length[row, n]].tolist()
            want = np.zeros(LENGTH)
            for i, token in enumerate(tokens):
                _, allowed = step([tuple(tokens[:i])])
                want[i] = exact_log_softmax(allowed)[0, token]
            np.testing.assert_allclose(got.sample_log_prob[row, n], want, atol=1e-5)


@pytest.mark.exhaustive
def test_without_a_transform_it_is_the_models():
    settings = {"stop": Stop(eos_ids=0), "with_sample_log_prob": True}
    got = draw("sample", **settings)
    np.testing.assert_allclose(got.sample_log_prob.sum(-1), got.log_prob, atol=1e-5)


@pytest.mark.exhaustive
def test_streams_have_it_of_the_tokens_so_far():
    settings = {"num_samples": 16, "max_new_tokens": LENGTH, "stop": STOP}
    settings |= {"transform": TRANSFORM, "with_sample_log_prob": True}
    want = draw("sample", transform=TRANSFORM, with_sample_log_prob=True)
    *_, last = loop.stream(strategies.sample, MODEL, PROMPT, KEY, chunk=2, **settings)
    np.testing.assert_allclose(last.sample_log_prob, want.sample_log_prob, atol=1e-6)


def logits_of(table, tokens, length):
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
    return table[last[:, 0]]


@pytest.mark.exhaustive
def test_new_weights_do_not_compile_again():
    run = decoding_jax.sample
    before = run.cache_size()
    for seed in range(3):
        table = jax.random.normal(jax.random.key(seed), (V, V))
        model = adapters.from_logits(logits_of, V, parameters=table)
        run(
            model, PROMPT, jax.random.key(seed), num_samples=2, max_new_tokens=3,
            transform=transforms.temperature(0.5 + seed), with_sample_log_prob=True,
        )  # fmt: skip
    assert run.cache_size() == before + 1


@pytest.mark.exhaustive
def test_the_page_of_rollouts_is_among_those_that_are_run():
    assert "docs/rollouts.md" in PAGES
