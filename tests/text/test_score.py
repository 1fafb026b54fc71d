"""``score``: log-probabilities and greedy flags of given continuations."""

import importlib

import jax
import numpy as np
import pytest
from networks import drawn
from text_fakes import TABLE, VOCABULARY, Digits
from words import Words

import decoding_jax
from decoding_jax.models import T5, Llama, LlamaConfig, T5Config

score_module = importlib.import_module("decoding_jax.text.score")
POSITIONS = 40
LLAMA = drawn(Llama, LlamaConfig(VOCABULARY, 8, 1, 1, 8, 8, 1, max_positions=POSITIONS))


@jax.jit
def after(model, tokens, length):
    """The log-probabilities after each of the rows, by a prefill and no call more."""
    output, _ = model.prefill(tokens, length, lanes=1, slots=1)
    return jax.nn.log_softmax(output.logits[:, 0, 0])


def check(model, prompt, continuation, found):
    """Compares a score with the distributions of a prefill of each prefix."""
    sequence = np.zeros(POSITIONS, np.int32)
    text = [*prompt, *continuation][:POSITIONS]
    sequence[: len(text)] = text
    length = np.minimum(1 + np.arange(POSITIONS, dtype=np.int32), len(text))
    every = np.asarray(after(model, np.tile(sequence, (POSITIONS, 1)), length))
    log_probs = every[len(prompt) - 1 :][: len(continuation)]
    want = log_probs[np.arange(len(continuation)), continuation]
    np.testing.assert_allclose(found.log_probs, want, atol=1e-5)
    np.testing.assert_array_equal(found.greedy, log_probs.argmax(-1) == continuation)
    assert found.tokens == continuation
    assert found.log_prob == pytest.approx(want.sum(), abs=1e-4)
    assert found.is_greedy == found.greedy.all()


def pairs(count):
    """Prompts, some with several continuations, among them texts that fill all positions."""
    random = np.random.default_rng(0)
    prompts, continuations = [], []
    for i in range(count):
        prompt = random.integers(0, VOCABULARY, random.integers(1, 30)).tolist()
        room = POSITIONS + 1 - len(prompt)
        for length in (room, 1, 3)[: 1 + i % 3] if i % 2 else random.integers(1, 5, 2).tolist():
            prompts.append(prompt)
            continuations.append(random.integers(0, VOCABULARY, length).tolist())
    return prompts, continuations


@pytest.mark.parametrize("model", [LLAMA, TABLE], ids=["network", "table"])
def test_each_number_is_that_of_a_prefill(model):
    """Texts read as one, continuations that share a prompt, and texts without room for padding."""
    prompts, continuations = pairs(4 if model is TABLE else 12)
    if model is TABLE:
        continuations = [tokens[:9] for tokens in continuations]
    found = decoding_jax.score(model, Words(), prompts, continuations, batch_size=4)
    for i in range(0, len(found), 3):
        check(model, prompts[i], continuations[i], found[i])


def test_few_programs_serve_texts_of_all_lengths():
    programs = [score_module._AS_ONE, score_module._BY_CHUNKS]
    for count in (12, 16):
        prompts, continuations = pairs(count)
        decoding_jax.score(LLAMA, Words(), prompts, continuations, batch_size=4)
    assert sum(program.cache_size() for program in programs) <= 6 + 1  # One is the table's.


def test_texts_of_similar_length_are_read_together():
    """Sixteen texts of 36 to 73 tokens and as many of up to 147, read 16 at a time."""
    lengths = [*range(37, 75, 2), *range(75, 147, 7), 120, 147]
    given = [((1,) * (length - 3), (2, 3, 4, 5)) for length in lengths]
    planned = list(score_module._planned(TABLE, given, 16, as_one=True))
    assert [(len(rows.rows), rows.batch_size, rows.width) for rows in planned] == [
        (16, 16, 192),
        (16, 16, 96),
    ]


def test_equal_pairs_are_read_once(monkeypatch):
    rows, read = [], score_module._Rows.scores
    monkeypatch.setattr(
        score_module._Rows, "scores", lambda s, m: rows.extend(s.rows) or read(s, m)
    )
    given = [[1, 2, 3]] * 4, [[4], [5, 1], [4], [5, 1]]
    one, two, *others = decoding_jax.score(LLAMA, Words(), *given, batch_size=4)
    assert rows == [((1, 2, 3), [(4,), (5, 1)])]
    assert others == [one, two]


class Twins(Digits):
    """Two equal digits are one token, 6."""

    def encode(self, text):
        return super().encode(text.replace("11", "6"))

    pieces = encode


def test_a_continuation_has_the_tokens_of_the_whole_text():
    """The last digit of a prompt is a part of its continuation where both are one token."""
    texts = decoding_jax.score(TABLE, Twins(), ["21", "2"], ["13", "3"])
    ids = decoding_jax.score(TABLE, Twins(), [[2], "2"], [[6, 3], [3]])
    assert [one.tokens for one in texts] == [[6, 3], [3]]
    assert [one.log_prob for one in texts] == [one.log_prob for one in ids]


@pytest.mark.exhaustive
def test_an_output_of_an_encoder_decoder():
    """What greedy decoding gives is greedy, and has its log-probability."""
    shape = {"vocab_size": 12, "emb_dim": 8, "num_heads": 1, "head_dim": 8, "mlp_dim": 8}
    model = drawn(T5, T5Config(**shape, num_encoder_layers=1, num_decoder_layers=1))
    texts = ["3 4 5 1", "7 1"]
    rows = decoding_jax.generate(model, Words(1), texts, max_new_tokens=4, stop=decoding_jax.Stop())
    best = [row[0].tokens for row in rows]
    other = [(best[0][0] + 1) % 12, *best[0][1:]]
    found = decoding_jax.score(model, Words(1), [*texts, texts[0]], [*best, other])
    assert [one.is_greedy for one in found] == [True, True, False]
    for one, row in zip(found, rows, strict=False):
        assert one.log_prob == pytest.approx(row[0].log_prob, abs=1e-5)
    again = decoding_jax.score(model, Words(1), texts[:1], [other])
    np.testing.assert_allclose(again[0].log_probs, found[2].log_probs, atol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "continuations", "said"),
    [
        ("12", ["3"], "prompts: expected a list of strings, or of lists of token ids, got '12'"),
        (["1"], ["3", "4"], "continuations: expected 1, one for each of the prompts, got 2"),
        (["1"], [""], "continuations: expected a continuation with a token, got '' at index 0"),
        (["", "1"], ["1", "1"], "prompts: expected a prompt with a token, got '' at index 0"),
        ([[1]], [[0.5]], r"continuations: expected strings, or lists of token ids, got \[0.5\]"),
        ([[1]], [[7]], "ids from 0 to 6, got id 7 for text 0"),
        (["1" * 40], ["12"], "model's 40 positions, got 2 tokens after a prompt of 40 at index 0"),
    ],
)
def test_mistakes(prompts, continuations, said):
    with pytest.raises(ValueError, match=said):
        decoding_jax.score(LLAMA, Digits(), prompts, continuations)
