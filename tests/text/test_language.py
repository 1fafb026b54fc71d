"""A language through ``generate``, streams, the batch job and the shell."""

import functools
import re

import jax
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import infer, transforms
from decoding_jax.infer.records import decoded
from decoding_jax.infer.sources import Item
from decoding_jax.registry import STRATEGIES
from decoding_jax.strategies.token_by_token import ConditionalCodesInfo
from decoding_jax.text import completions
from decoding_jax.text.warn import warn_of_no_text

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


@pytest.mark.release
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


@pytest.mark.release
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


@pytest.mark.release
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
    settings["max_texts"] = 2
    reason = "the language has more texts, or beginnings of one length, than max_texts"
    with pytest.warns(UserWarning, match=f"texts 0, 1 and 2, of 3: {reason}"):
        decoding_jax.generate(
            TABLE, Digits(), TEXTS, strategy="arithmetic_sample", key=KEY, **settings
        )
    infer.run(
        (TABLE, Digits()),
        [Item(TEXTS[0])],
        functools.partial(decoding_jax.arithmetic_sample, **settings),
        report=found.append,
        batch_size=2,
        max_input_length=16,
    )
    assert found[-1]["error"] == f"no output: {reason}"


def test_which_of_two_reasons_left_a_text_without_completion():
    """Of three rows: one text, none that was reached, and more than could be listed."""
    complete, log_prob = np.array([True, True, False]), np.array([0, -np.inf, -np.inf], np.float32)
    length = np.int32([[1], [0], [0]])
    output = decoding_jax.DecodeOutput(
        np.int32([[[3]], [[0]], [[0]]]),
        length,
        log_prob[:, None],
        log_prob[:, None],
        length > 0,
        ConditionalCodesInfo(np.ones(3, np.int32), complete, log_prob),
    )
    rows = completions(Digits(), output, 3, info_names=["complete"])
    assert rows[0][0].info == {"complete": True}
    assert rows[1:] == [[], []]
    reasons = ["no text of the language was reached", "the language has more texts, .*, than max_t"]
    with pytest.warns(UserWarning, match="texts: got no completion") as warned:
        warn_of_no_text(rows)
    for i, reason, warning in zip((1, 2), reasons, warned, strict=True):
        line = f"texts: got no completion for text {i}, of 3: {reason}"
        assert re.match(line, str(warning.message))
        assert re.match(f"no output: {reason}", decoded(i, "", rows[i], seed=0)["error"])
