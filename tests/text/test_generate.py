import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import drawn

import decoding_jax
from decoding_jax import Stop
from decoding_jax.loop.inputs import check_drafter
from decoding_jax.models import T5, BoundT5, Llama, LlamaConfig, T5Config
from decoding_jax.strategies.speculative import PromptLookup
from decoding_jax.text import ByteTokenizer, bind_drafter, embedded
from decoding_jax.text.completions import completions
from decoding_jax.text.continuations import continuation

TOKENIZER = ByteTokenizer()
TEXTS = ["hello", "a", "good morning to you", "x y"]
T5_MODEL = drawn(T5, T5Config(259, 16, 2, 8, 32, 1, 1, dtype="float32"))
SETTINGS = {"max_new_tokens": 6, "batch_size": 2}


@pytest.fixture(scope="module")
def llama():
    config = LlamaConfig(
        vocab_size=259,
        emb_dim=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        mlp_dim=32,
        num_layers=1,
        max_positions=48,
    )
    return drawn(Llama, config, seed=1)


def test_greedy_of_many_is_greedy_of_each():
    many = decoding_jax.generate(T5_MODEL, TOKENIZER, TEXTS, **SETTINGS)
    assert [len(row) for row in many] == [1] * 4
    for text, [got] in list(zip(TEXTS, many, strict=True))[1:3]:  # the shortest and the longest
        # Twice, since batches of two have programs.
        [[alone], _] = decoding_jax.generate(T5_MODEL, TOKENIZER, [text, text], **SETTINGS)
        assert got.tokens == alone.tokens
        assert got.log_prob == pytest.approx(alone.log_prob, abs=1e-4)
        assert got.text == TOKENIZER.decode(got.tokens)


@pytest.mark.exhaustive
def test_a_text_keeps_its_samples_in_any_batch():
    def run(texts, **settings):
        return decoding_jax.generate(
            T5_MODEL,
            TOKENIZER,
            texts,
            strategy="arithmetic_sample",
            num_samples=3,
            key=jax.random.key(5),
            **{**SETTINGS, **settings},
        )

    want = [[c.tokens for c in row] for row in run(TEXTS, batch_size=7)]
    for count in (1, 2):
        assert [[c.tokens for c in row] for row in run(TEXTS[:count])] == want[:count]


@pytest.mark.release
def test_stream_grows_into_generate(llama):
    settings = {"max_new_tokens": 6, "stop": Stop(eos_ids=())}
    [want] = decoding_jax.generate(llama, TOKENIZER, ["hello"], **settings)
    parts = list(decoding_jax.stream(llama, TOKENIZER, ["hello"], **settings))
    assert [len(p[0][0].tokens) for p in parts] == [1, 2, 3, 4, 5, 6]
    assert parts[-1][0][0].tokens == want[0].tokens
    assert parts[-1][0][0].log_prob == pytest.approx(want[0].log_prob, abs=1e-5)


def test_a_text_that_fills_the_context(llama):
    text = "h" * 42  # and its end token: 43 of 48 positions
    stop = Stop(eos_ids=())
    [[got]] = decoding_jax.generate(llama, TOKENIZER, [text], max_new_tokens=6, stop=stop)
    assert len(got.tokens) == 6
    with pytest.raises(
        ValueError, match=r"max_new_tokens: expected at most .* after the 43 tokens of text 0"
    ):
        decoding_jax.generate(llama, TOKENIZER, [text], max_new_tokens=7)


def test_a_function_is_a_strategy():
    def shout(model, prompt, *, max_new_tokens, stop):
        return decoding_jax.greedy(model, prompt, max_new_tokens=max_new_tokens, stop=stop)

    want = decoding_jax.generate(T5_MODEL, TOKENIZER, TEXTS[:2], **SETTINGS)
    got = decoding_jax.generate(T5_MODEL, TOKENIZER, TEXTS[:2], strategy=shout, **SETTINGS)
    assert [r[0].tokens for r in got] == [r[0].tokens for r in want]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": "bream_search"}, "strategy: expected one of .*, got 'bream_search'"),
        ({"strategy": "sample"}, "key: expected a typed key .*, got None"),
        (
            {"texts": ["ok", " "]},
            "texts: expected texts with a token, got an empty text at index 1",
        ),
        ({"texts": "ok"}, "texts: expected a list of strings, got one string"),
        ({"batch_size": 0}, "batch_size: expected an int of 1 or more, got 0"),
    ],
)
def test_bad_arguments_get_one_line(change, words):
    settings = {"texts": TEXTS, **SETTINGS, **change}
    with pytest.raises(ValueError, match=words):
        decoding_jax.generate(T5_MODEL, TOKENIZER, **settings)


def test_a_continuation_keeps_the_space_before_it():
    class Spaces:
        eos_ids = ()

        def decode(self, ids):
            return " ".join("abcdef"[i] for i in ids)

    assert continuation(Spaces(), [0, 1], [2, 3]) == " c d"
    assert continuation(Spaces(), [], [2, 3]) == "c d"


def test_completions_read_what_stands():
    output = decoding_jax.DecodeOutput(
        jnp.array([[[107, 108, 1, 0], [107, 0, 0, 0]]]),
        jnp.array([[3, 1]]),
        jnp.array([[-1.5, -0.5]]),
        jnp.array([[-1.5, -0.5]]),
        jnp.array([[True, False]]),
    )
    [[first, second]] = completions(TOKENIZER, output, 1)
    assert first == ("hi", [107, 108, 1], -1.5, -1.5, True, None, None, None, None)
    assert second == ("h", [107], -0.5, -0.5, False, None, None, None, None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["translation-en-fr", "translation-en-fr-draft"])
def test_the_embedded_models_translate(name):
    model, tokenizer = decoding_jax.load(name)
    sentences = ["Tom is my brother.", "I don't know.", "Where is the station?"]
    rows = decoding_jax.generate(model, tokenizer, sentences, max_new_tokens=24)
    assert all(row[0].finished for row in rows)
    assert [row[0].text for row in rows] == [
        "Tom est mon frère.",
        "Je ne sais pas.",
        "Où est la gare ?",
    ]
    assert np.isfinite([row[0].log_prob for row in rows]).all()
    assert name in embedded()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["python-code", "python-code-draft-wide", "python-code-draft-deep"]
)
def test_the_embedded_models_continue_code(name):
    model, tokenizer = decoding_jax.load(name)
    text = "        raise NotImplementedError\n\n    def"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    [[row]] = decoding_jax.generate(model, tokenizer, [text], max_new_tokens=4)
    assert row.text == " __init__(self"
    assert not row.finished
    assert tokenizer.eos_ids == (0,)
    assert name in embedded()


@pytest.mark.exhaustive
def test_drafters_are_bound_to_the_texts():
    """A T5 and a prompt lookup are bound to each batch, and do not change greedy texts.

    All texts are short, so that their batches share a program.
    """
    texts = ["hello", "a", "good", "x y"]
    settings = {"strategy": "speculative_sample", "verifier": "greedy", "num_draft_tokens": 2}
    settings |= SETTINGS
    want = decoding_jax.generate(T5_MODEL, TOKENIZER, texts, **SETTINGS)
    drafter = (T5_MODEL, TOKENIZER)
    got = decoding_jax.generate(T5_MODEL, TOKENIZER, texts, drafter=drafter, **settings)
    assert [row[0].tokens for row in got] == [row[0].tokens for row in want]
    del settings["batch_size"]
    lookup = PromptLookup()
    *_, last = decoding_jax.stream(T5_MODEL, TOKENIZER, texts, drafter=lookup, **settings)
    assert [row[0].tokens for row in last] == [row[0].tokens for row in want]
    with pytest.raises(
        ValueError, match="drafter: expected a model or a drafter for this strategy, got None"
    ):
        decoding_jax.generate(T5_MODEL, TOKENIZER, texts, **settings)
    with pytest.raises(ValueError, match="drafter: expected none for this strategy, got a T5"):
        decoding_jax.generate(T5_MODEL, TOKENIZER, texts, drafter=T5_MODEL)


class Bindable:
    """A drafter of your own that uses encoder inputs."""

    def bind(self, tokens, length):
        return tokens.tolist(), length.tolist()


def test_any_drafter_that_supports_bind_is_bound_where_the_target_has_an_encoder(llama):
    drafter = Bindable()
    assert bind_drafter(drafter, T5_MODEL, [[5, 6], [7]], 2) == ([[5, 6], [7, 0]], [2, 1])
    assert bind_drafter(drafter, llama, [[5, 6], [7]], 2) is drafter
    assert bind_drafter(None, T5_MODEL, [[5, 6], [7]], 2) is None
    assert bind_drafter(PromptLookup(), llama, [[5]], 2) == PromptLookup()
    assert isinstance(bind_drafter(T5_MODEL, llama, [[5]], 2), BoundT5)
    assert check_drafter(PromptLookup()) == PromptLookup()
