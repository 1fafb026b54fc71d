"""A language through ``generate``, streams, the batch job and the shell."""

import functools

import jax
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import infer, transforms
from decoding_jax.infer.sources import Item
from decoding_jax.registry import STRATEGIES

KEY, TEXTS = jax.random.key(1), ["12", "361", "24"]
WORDS = {"12", "3", "45"}
LANGUAGE = transforms.prefix_allowed_tokens(
    transforms.Trie.from_sequences([(1, 2), (3,), (4, 5)], eos_ids=0)
)
ONE_TOKEN = decoding_jax.Stop(eos_ids=(0,), max_new_tokens=np.array([5, 1, 5], np.int32))
SETTINGS = {"num_samples": 3, "language": LANGUAGE, "max_new_tokens": 5}
each = pytest.mark.parametrize(
    "name", tiers.values(exhaustive=["conditional_sample", "smc_sample"], release=["power_sample"])
)


@each
def test_generate_has_texts_of_the_language_and_warns_where_there_is_none(name):
    with pytest.warns(UserWarning, match="texts: got no completion for text 1, of 3: no text"):
        rows = decoding_jax.generate(
            TABLE, Digits(), TEXTS, strategy=name, key=KEY, stop=ONE_TOKEN, **SETTINGS
        )
    assert [len(row) for row in rows] == [3, 0, 3]
    for row in rows:
        assert {c.text for c in row} <= WORDS
        assert all(c.finished for c in row)


@each
def test_a_job_has_them_too_and_counts_a_fault(name):
    found = []
    summary = infer.run(
        (TABLE, Digits()),
        [Item(text) for text in TEXTS],
        functools.partial(STRATEGIES[name].function, **SETTINGS),
        report=found.append,
        batch_size=2,
        max_input_length=16,
    )
    assert summary.faults == {}
    for record in found:
        assert {output["text"] for output in record["outputs"]} <= WORDS
    never = transforms.allowed_tokens((2,))
    summary = infer.run(
        (TABLE, Digits()),
        [Item(text) for text in TEXTS[:1]],
        functools.partial(STRATEGIES[name].function, **{**SETTINGS, "language": never}),
        report=found.append,
        batch_size=2,
        max_input_length=16,
    )
    assert summary.faults == {"no output": 1}
    assert found[-1]["error"] == "no output: no text of the language was reached"


@pytest.mark.exhaustive
def test_arithmetic_codes_of_a_language():
    """The samples of both, and the probability of the language; and a list that is too short."""
    settings = {**SETTINGS, "max_texts": 3}
    rows = decoding_jax.generate(
        TABLE, Digits(), TEXTS, strategy="arithmetic_sample", key=KEY, **settings
    )
    found = []
    infer.run(
        (TABLE, Digits()),
        [Item(text) for text in TEXTS],
        functools.partial(decoding_jax.arithmetic_sample, **settings),
        report=found.append,
        batch_size=2,
        max_input_length=16,
        with_info=True,
    )
    for row, record in zip(rows, found, strict=True):
        texts = [output["text"] for output in record["outputs"]]
        assert len(texts) == len(row) == 3
        assert {c.text for c in row} | set(texts) <= WORDS
        for c, output in zip(row, record["outputs"], strict=True):
            prob = output["info"]["log_language_prob"]
            assert abs(c.info.log_language_prob - prob) < 1e-5
    with pytest.warns(
        UserWarning, match="texts 0, 1 and 2, of 3: no .* than 2 texts or beginnings"
    ):
        decoding_jax.generate(
            *(TABLE, Digits(), TEXTS),
            **{"strategy": "arithmetic_sample", "key": KEY, **settings, "max_texts": 2},
        )
