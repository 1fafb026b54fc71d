"""Constraints from strings."""

import numpy as np
import pytest
from networks import drawn

import decoding_jax
from decoding_jax import text
from decoding_jax.models import T5, T5Config


def test_phrases_have_no_special_tokens():
    _, tokenizer = decoding_jax.load("translation-en-fr")
    constraints = text.constraints(tokenizer, ["la station"], [["métro", "autobus"]])
    assert tokenizer.decode(constraints.phrases[0]) == "la station"
    assert [tokenizer.decode([i for i in s if i >= 0]) for s in constraints.alternatives[0]] == [
        "métro",
        "autobus",
    ]
    assert not np.isin(constraints.phrases, tokenizer.eos_ids).any()


@pytest.mark.release
def test_a_completion_contains_its_phrases():
    model = drawn(T5, T5Config(259, 16, 2, 8, 32, 1, 1, dtype="float32"))
    tokenizer = text.ByteTokenizer()
    [[best, *_]] = decoding_jax.generate(
        model,
        tokenizer,
        ["hello"],
        strategy="constrained_beam_search",
        constraints=text.constraints(tokenizer, ["hi"], [["yes", "no"]]),
        beam_size=4,
        max_new_tokens=6,
    )
    assert "hi" in best.text
    assert "yes" in best.text or "no" in best.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("hi",), "phrases: expected a list of strings or of token sequences, got 'hi'"),
        (((), ["hi"]), "alternatives: expected a list of strings or of token sequences, got 'hi'"),
        ((["hi", ""],), "phrases: expected texts with a token, got ''"),
        ((["hi", 5],), "phrases: expected strings or token sequences, got 5"),
        ((["hi", (-1,)],), "phrases: expected sequences of token ids, .*, got .-1,."),
        (((), [[]]), "alternatives: expected"),
    ],
)
def test_bad_phrases_get_one_line(given, words):
    with pytest.raises(ValueError, match=words):
        text.constraints(text.ByteTokenizer(), *given)
