"""The limits of texts: defaults, the positions of a model, truncation, and the warning of cuts."""

import warnings

import jax
import pytest
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import CutTextWarning, Stop
from decoding_jax.adapters import from_logits
from decoding_jax.text import ByteTokenizer
from decoding_jax.text.call import TextCall
from decoding_jax.text.inputs import cut

ENDLESS = Stop(eos_ids=())
POSITIONS = 20


class WithFirst(Digits):
    """Puts 6 before every text, as Llama's tokenizer does its start token."""

    def encode(self, text):
        return [6, *super().encode(text)]


def counts(tokens, length):
    """The next token is the last one plus one, modulo 7."""
    del length
    return 9 * jax.nn.one_hot((tokens + 1) % 7, 7)


COUNTING = from_logits(counts, 7, max_positions=POSITIONS)


def lengths_of(rows):
    return [len(row[0].tokens) for row in rows]


def caught(call):
    """The result of a call, and the texts of its warnings, all of this file's lines."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        result = call()
    assert all(w.filename == __file__ and w.category is CutTextWarning for w in found)
    return result, [str(w.message) for w in found]


def test_a_default_that_cuts_is_warned_of_once():
    def call():
        for _ in range(2):
            rows = decoding_jax.generate(TABLE, Digits(), ["12", "345"], stop=ENDLESS)
        return rows

    rows, [warning] = caught(call)
    assert lengths_of(rows) == [64, 64]
    assert warning == (
        "max_new_tokens: got none, and the default of 64 cut 2 of 2 texts; a larger max_new_tokens "
        "lets them go on"
    )


@pytest.mark.exhaustive
def test_streams_and_parameters_of_transformers_warn_too():
    endless = {"eos_token_id": [], "num_beams": 1}
    warned = "max_new_tokens: got none, and the default of 20 cut 1 of 1 texts"
    for stream in (decoding_jax.stream, decoding_jax.stream_text):
        _, [warning] = caught(lambda call=stream: list(call(TABLE, Digits(), ["12"], **endless)))
        assert warning.startswith(warned)
    limits = ({"max_new_tokens": 20}, {"max_length": 22}, {"max_time": 1e9, "max_new_tokens": 20})
    for limit in limits:
        rows, found = caught(
            lambda given=limit: decoding_jax.generate(TABLE, Digits(), ["12"], **endless, **given)
        )
        assert (lengths_of(rows), found) == ([20], [])


def test_a_limit_of_stop_is_a_limit_that_was_named():
    stop = Stop(eos_ids=(), max_new_tokens=[3, 70])
    rows, found = caught(lambda: decoding_jax.generate(TABLE, Digits(), ["12", "3"], stop=stop))
    assert (lengths_of(rows), found) == ([3, 70], [])


def test_no_texts_give_no_completions_and_limits_are_as_many_as_texts():
    for settings in ({}, {"num_beams": 2}, {"max_length": 4}, {"max_new_tokens": 2}):
        assert decoding_jax.generate(TABLE, Digits(), [], **settings) == []
    assert decoding_jax.generate(TABLE, Digits(), [], stop=Stop(max_new_tokens=[1, 2])) == []
    with pytest.raises(ValueError, match=r"stop.max_new_tokens: expected .*, got values for 3"):
        decoding_jax.generate(TABLE, Digits(), ["1", "2"], stop=Stop(max_new_tokens=[1, 2, 3]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_size", [1, 4])
def test_without_a_limit_each_text_gets_what_fits(batch_size):
    """Texts that need more room share no batch with those that leave less."""
    texts = ["1" * 18, "2", "1" * 20, "3" * 18]
    rows, [warning] = caught(
        lambda: decoding_jax.generate(
            COUNTING, Digits(), texts, stop=ENDLESS, batch_size=batch_size
        )
    )
    assert lengths_of(rows) == [2, 19, 1, 2]
    for text, [completion] in zip(texts, rows, strict=True):
        first = int(text[0]) + 1
        assert completion.tokens == [(first + i) % 7 for i in range(len(completion.tokens))]
    assert warning.startswith("texts: got 4 of 4 that were cut where the model's 20 positions end")


def test_a_streamed_text_gets_what_fits():
    (*_, rows), _ = caught(
        lambda: list(decoding_jax.stream(COUNTING, Digits(), ["1" * 18], stop=ENDLESS))
    )
    assert rows[0][0].tokens == [2, 3]


@pytest.mark.release
def test_a_function_of_ones_own_gets_the_limit_of_its_texts():
    def greedy(model, prompt, *, max_new_tokens, stop):
        return decoding_jax.greedy(model, prompt, max_new_tokens=max_new_tokens, stop=stop)

    rows, _ = caught(
        lambda: decoding_jax.generate(
            COUNTING, Digits(), ["1" * 18, "2", "3" * 17], stop=ENDLESS, strategy=greedy
        )
    )
    assert lengths_of(rows) == [2, 19, 3]
    with pytest.raises(ValueError, match=r"^max_new_tokens: expected an int of 1 or more, got 0$"):
        decoding_jax.generate(COUNTING, Digits(), ["1"], max_new_tokens=0, strategy=greedy)


@pytest.mark.exhaustive
def test_an_empty_text_is_a_prompt_where_the_tokenizer_adds_a_token():
    [[completion]] = decoding_jax.generate(COUNTING, WithFirst(), [""], max_new_tokens=2)
    assert completion.tokens == [0]
    with pytest.raises(
        ValueError, match="texts: expected texts with a token, got an empty text at index 1"
    ):
        decoding_jax.generate(COUNTING, Digits(), ["1", ""], max_new_tokens=2)


@pytest.mark.exhaustive
def test_truncated_prompts_keep_their_end_and_the_first_token():
    def ids_of(text, **given):
        call = TextCall("stream", {}, COUNTING, WithFirst(), [text], truncate=True, **given)
        return call.ids[0]

    text = "12345" * 8
    assert ids_of(text) == [6, *map(int, text[-9:])]  # The default leaves half of the positions.
    assert ids_of(text, max_new_tokens=4) == [6, *map(int, text[-15:])]
    assert ids_of(text, stop=Stop(max_new_tokens=[4])) == [6, *map(int, text[-15:])]
    assert ids_of("1234", max_new_tokens=4) == [6, 1, 2, 3, 4]
    # Texts that fit are not cut: the last new token needs no position.
    assert ids_of("1" * 16, max_new_tokens=4) == [6, *[1] * 16]
    assert ids_of("1" * 19) == [6, *[1] * 19]
    with pytest.raises(
        ValueError, match=r"^max_new_tokens: expected at most 20, the model's positions, got 21"
    ):
        ids_of(text, max_new_tokens=21)
    [[completion]] = decoding_jax.generate(
        COUNTING, WithFirst(), [text], truncate=True, max_new_tokens=3, stop=ENDLESS
    )
    assert completion.tokens == [6, 0, 1]


@pytest.mark.release
def test_truncated_inputs_keep_their_beginning_and_the_end_token():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("good morning")
    assert tokenizer.decode(cut(tokenizer, ids, 5, keep_last=False)) == "good"
    assert cut(tokenizer, ids, 5, keep_last=False)[-1] == 1
    assert cut(tokenizer, ids, 1, keep_last=False) == [ids[0], 1]
    assert cut(tokenizer, ids, 13, keep_last=False) == ids
    shared = cut(tokenizer, ids, 8, shared=4, keep_last=True)
    assert tokenizer.decode(shared) == "gooding"
    assert len(shared) == 8
