"""Drafts whose tables have the target's tokens, and other padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax.base import Prompt, Stop
from decoding_jax.batches import read_drafter
from decoding_jax.strategies.speculative import ModelDrafter
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution
from decoding_jax.testing.certificate.comparisons import count_outcomes, outcome_index
from decoding_jax.text.inputs import check_drafter

SIZE, ROWS, LENGTH = 4, 4096, 3
TARGET = TableLM.random(jax.random.key(1), SIZE, sharpness=1.5)
STOP = Stop(eos_ids=(0,))
PROMPT = [1, 3]


def drafted(drafter, verifier):
    """4,096 samples of one prompt, in eight rows."""
    prompt = Prompt(np.array([PROMPT] * 8, np.int32), np.full(8, 2, np.int32))
    return decoding_jax.speculative_sample(
        TARGET,
        drafter,
        prompt,
        jax.random.key(3),
        num_samples=ROWS // 8,
        num_draft_tokens=2,
        max_new_tokens=LENGTH,
        stop=STOP,
        verifier=verifier,
    )


@pytest.mark.parametrize(
    ("size", "verifier"),
    tiers.combinations([(3, "token"), (6, "block"), (3, "block"), (6, "token")]),
)
def test_samples_follow_the_target(size, verifier):
    """A chi-square test of 4,096 samples against all texts, at a level of 1e-4; and some drafts
    are accepted. The last of the target's tokens has no row in the smaller table."""
    drafter = ModelDrafter(TableLM.random(jax.random.key(2), size), target_size=SIZE)
    output = drafted(drafter, verifier)
    tokens, length = (np.asarray(x) for x in (output.tokens, output.length))
    tokens, length = tokens.reshape(ROWS, LENGTH), length.reshape(ROWS)
    prompt = Prompt(np.array([PROMPT], np.int32), np.array([2], np.int32))
    every = enumerate_distribution(TARGET, prompt, max_new_tokens=LENGTH, stop=STOP)
    counts = count_outcomes(every, outcome_index(every, tokens, length))
    assert chi_square(counts, every.prob).p_value > 1e-4
    assert int(np.asarray(output.info.accepted).sum()) > 100


@pytest.mark.exhaustive
def test_a_larger_table_drafts_as_its_common_part_does():
    """In bits: the samples are those of a table that has these tokens alone."""
    wide = TableLM.random(jax.random.key(2), 6)
    rows = jnp.concatenate([wide.table[:, :SIZE], wide.table[:, 6:]], 1)
    narrow = TableLM(rows[:, :, :SIZE, :SIZE], wide.features[:, :SIZE])
    made = [
        drafted(drafter, "block")
        for drafter in (ModelDrafter(wide, target_size=SIZE), ModelDrafter(narrow))
    ]
    np.testing.assert_array_equal(made[0].tokens, made[1].tokens)
    np.testing.assert_array_equal(made[0].info.accepted, made[1].info.accepted)


def test_a_model_with_its_tokenizer_may_have_another_padding():
    draft = TableLM.random(jax.random.key(2), 9)
    settings = {"strategy": "speculative_sample", "max_new_tokens": 4, "num_draft_tokens": 2}
    settings |= {"verifier": "greedy", "num_samples": 1}
    [[found]] = decoding_jax.generate(
        TABLE, Digits(), ["12"], drafter=(draft, Digits()), **settings
    )
    [[want]] = decoding_jax.generate(TABLE, Digits(), ["12"], max_new_tokens=4)
    assert found.tokens == want.tokens
    with pytest.raises(ValueError, match="expected the model's vocabulary of 7, got one of 9; gen"):
        decoding_jax.generate(TABLE, Digits(), ["12"], drafter=draft, **settings)
    assert read_drafter((TABLE, Digits()), TABLE) is TABLE


def test_another_tokenizer_is_refused():
    made = [decoding_jax.text.ByteTokenizer(), decoding_jax.text.ByteTokenizer(extra_ids=4)]
    check_drafter((TABLE, made[0]), made[0])
    other = decoding_jax.text.load_tokenizer(decoding_jax.text.embedded()["translation-en-fr"])
    with pytest.raises(ValueError, match=r"drafter: expected a model with the target's tokenizer"):
        check_drafter((TABLE, other), made[0])
