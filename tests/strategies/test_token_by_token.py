"""The behaviour that greedy, sample and arithmetic_sample share.

Their distributions are in test_distributions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax import Prompt, Stop, codes, transforms
from decoding_jax.ops import random
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution

KEY = jax.random.key(1)
MODEL = TableLM.random(jax.random.key(0), 5)
PROMPT = Prompt(np.array([[1, 2, 3], [4, 0, 0]], np.int32), np.array([3, 1], np.int32))
SETTINGS = {
    "greedy": {},
    "sample": {"num_samples": 4},
    "arithmetic_sample": {"num_samples": 4},
}


def run(name, *, prompt=PROMPT, key=KEY, model=MODEL, **settings):
    args = () if name == "greedy" else (key,)
    settings = {"max_new_tokens": 4, **SETTINGS[name], **settings}
    return jax.device_get(getattr(decoding_jax, name)(model, prompt, *args, **settings))


every = pytest.mark.parametrize("name", sorted(SETTINGS))
representative = pytest.mark.parametrize(
    "name",
    tiers.values("greedy", exhaustive=["arithmetic_sample"], release=["sample"]),
)


@pytest.mark.exhaustive
@representative
def test_no_step_is_spent_once_all_is_done(name):
    only = np.arange(5) == 2
    forced = transforms.allowed_tokens(only)
    assert run(name, transform=forced, stop=Stop(eos_ids=(2,))).info.model_calls == 1
    assert run(name, transform=forced).info.model_calls == 4


@every
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"prompt": Prompt(PROMPT.tokens[0], PROMPT.length)},
            r"prompt: expected tokens \[B, P\] with P of 1 or more, and",
        ),
        (
            {"prompt": Prompt(PROMPT.tokens[:, :0], PROMPT.length)},
            r"prompt: expected tokens \[B, P\] with P of 1 or more, and",
        ),
        (
            {"prompt": Prompt(PROMPT.tokens.astype(jnp.float32), PROMPT.length)},
            r"prompt\.tokens: expected int32, as in Prompt\(tokens \[B, P\],",
        ),
        ({"key": jnp.zeros(2, jnp.uint32)}, "key: expected a typed key"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, "key: expected one key, or 2 keys"),
    ],
)
def test_bad_arguments_get_one_line(name, change, words):
    if name == "greedy" and change.keys() & {"num_samples", "key"}:
        pytest.skip("greedy draws nothing")
    with pytest.raises(ValueError, match=words) as caught:
        run(name, **change)
    assert "\n" not in str(caught.value)


@representative
def test_a_full_context_allows_one_more_token(name):
    small = TableLM.random(jax.random.key(0), 5, max_positions=4)
    assert run(name, model=small, max_new_tokens=2).tokens.shape[-1] == 2
    with pytest.raises(
        ValueError, match="max_new_tokens: expected at most 2 after a prompt of 3, got"
    ):
        run(name, model=small, max_new_tokens=3)


def test_unknown_points_are_named():
    with pytest.raises(ValueError, match="points"):
        run("arithmetic_sample", points="grid")


def test_sampling_draws_no_vocabulary_of_random_numbers():
    """A draw uses two random words for each sequence, whatever the size of the vocabulary."""
    vocab = 4099
    keys = random.lane_keys(random.row_keys(jax.random.key(1), 2), 3)
    jaxpr = jax.make_jaxpr(lambda logits, t: codes.draw(logits, random.bits_at(keys, t)))(
        jnp.zeros((2, 3, vocab)), 0
    )
    text = str(jaxpr)
    assert "random_bits" not in text
    assert "random_fold_in" in text


@pytest.mark.parametrize("impl", tiers.values(exhaustive=["rbg"], release=["unsafe_rbg"]))
def test_samples_by_keys_of_other_kinds_have_the_distribution(impl):
    """Other kinds include T5X's hardware keys. Chi-square, 4,096 samples, level 1e-3 a case."""
    prompt = Prompt(PROMPT.tokens[:1], PROMPT.length[:1])
    distribution = enumerate_distribution(MODEL, prompt, max_new_tokens=3)
    texts = {tuple(text): k for k, text in enumerate(distribution.tokens.tolist())}
    key = jax.random.key(1, impl=impl)
    draft = TableLM.random(jax.random.key(2), 5)
    settings = {"num_samples": 4096, "max_new_tokens": 3}
    for output in (
        decoding_jax.sample(MODEL, prompt, key, **settings),
        decoding_jax.speculative_sample(MODEL, draft, prompt, key, num_draft_tokens=2, **settings),
    ):
        index = [texts[tuple(text)] for text in output.tokens[0].tolist()]
        counts = np.bincount(index, minlength=len(distribution.prob))
        assert chi_square(counts, distribution.prob).p_value > 1e-3
