"""Constraints and budgets from strings."""

import jax
import numpy as np
import pytest
from networks import drawn
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import infer, text, transforms
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


class Pieces(Digits):
    """Says what the tokens of a string are."""

    def pieces(self, text):
        return self.encode(text)


TEXTS = ["1 2 3", "4", "5 3 1 2", "2 2"]
MARKS = {"start": "3", "end": "1 2", "then": "6"}
IDS = {"start": (3,), "end": (1, 2), "then": (6,)}


def test_the_marks_of_thinking_may_be_strings():
    """Which give what token ids give."""
    settings = {"strategy": "sample", "key": jax.random.key(0), "max_new_tokens": 8}

    def decoded(tokenizer, marks):
        budget = transforms.thinking_budget(**marks, max_tokens=1)
        made = {"transform": transforms.chain(transforms.temperature(2.0), budget)}
        rows = decoding_jax.generate(TABLE, tokenizer, TEXTS, **settings, **made)
        return [row[0].tokens for row in rows]

    tokens = decoded(Digits(), IDS)
    assert decoded(Pieces(), MARKS) == tokens
    assert any("612" in "".join(map(str, row)) for row in tokens)
    with pytest.raises(ValueError, match="transform: expected token ids, with a Digits without"):
        decoded(Digits(), MARKS)
    with pytest.raises(ValueError, match=r"thinking_budget.end: expected token ids .* of 32 tok"):
        decoded(Pieces(), {**MARKS, "end": "1" * 32})


@pytest.mark.exhaustive
def test_a_job_takes_strings_too():
    found = []
    for tokenizer, marks in ((Pieces(), MARKS), (Digits(), IDS)):
        budget = transforms.thinking_budget(**marks, max_tokens=1)
        strategy = decoding_jax.Sample(num_samples=2, max_new_tokens=8, transform=budget)
        report = []
        items = [infer.Item(text) for text in TEXTS]
        settings = {"batch_size": 2, "max_input_length": 8, "with_tokens": True}
        infer.run((TABLE, tokenizer), items, strategy, report=report.append, **settings)
        found.append([[o["tokens"] for o in record["outputs"]] for record in report])
    assert found[0] == found[1]
