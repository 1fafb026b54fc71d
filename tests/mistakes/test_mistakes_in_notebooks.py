"""Typical mistakes in notebooks and batch jobs raise one line before anything is compiled."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from mistake_calls import (
    KEY,
    PAIR,
    SHORT,
    SMALL,
    T5_MODEL,
    TOKENIZER,
    EosAsText,
    HuggingFaceLike,
    check,
    generate,
    job,
    named,
    stream,
    t5x,
)

import decoding_jax
from decoding_jax import (
    Stop,
    transforms,
)
from decoding_jax.models import T5, load_t5x
from decoding_jax.text import constraints, load_tokenizer

PATH = "such directory"
MESSAGE = {"role": "user", "content": "Hello!"}
TABLE = [
    # In a notebook: generate and stream.
    (
        "model",
        lambda: generate("t5-small"),
        r"expected a language model, got 't5-small': decoding_jax\.load gives",
    ),
    ("model", lambda: generate(PAIR), "expected a language model, got a pair with a T5:"),
    ("model", lambda: generate(T5), "expected a language model, got the class T5:"),
    ("tokenizer", lambda: generate(tokenizer=None), "got None; takes one with encode, decode and"),
    ("tokenizer", lambda: generate(tokenizer="t5"), "got 't5'; takes one with encode"),
    ("tokenizer", lambda: generate(tokenizer=HuggingFaceLike()), "without eos_ids; takes"),
    ("tokenizer.eos_ids", lambda: generate(tokenizer=EosAsText()), "got '</s>'; takes a tuple"),
    (
        "tokenizer",
        lambda: generate(T5.init(SMALL, KEY)),
        "got id 100 for text 0; takes a tokenizer",
    ),
    ("texts", lambda: generate(texts="hello"), "got one string, 'hello'; takes a list of strings"),
    ("texts", lambda: generate(texts=None), "got None; takes a list of strings"),
    ("texts", lambda: generate(texts=[7]), "got 7 at index 0; takes strings"),
    (
        "texts",
        lambda: generate(texts=[MESSAGE]),
        "got one message at index 0; takes strings, or li",
    ),
    (
        "texts",
        lambda: generate(texts=[[MESSAGE]]),
        "got a conversation at index 0; takes strings with a ByteTokenizer",
    ),
    ("texts", lambda: generate(texts=["a", ""]), "got an empty text at index 1; takes texts with"),
    (
        "texts",
        lambda: generate(texts=["a\ud83d"]),
        "d83d', a lone surrogate, as character 1 at ind",
    ),
    (
        "texts",
        lambda: stream(texts=["\ud83d"]),
        "d83d', a lone surrogate, as character 0 at index 0",
    ),
    (
        "texts",
        lambda: generate(SHORT, texts=["a", "b" * 20]),
        "got one of 21 tokens at index 1, 'bb.*; takes at most 16, the .*model; truncate=True cuts",
    ),
    (
        "max_new_tokens",
        lambda: generate(SHORT, texts=["a", "b" * 14]),
        "got 4 after 15 tokens of text 1, 'bb.*'; takes at most 2: the model has 16 positions",
    ),
    (
        "max_new_tokens",
        lambda: stream(SHORT, texts=["a", "b" * 14]),
        "got none for texts that are streamed together; takes at most 1, for which text 1, 'bb",
    ),
    ("truncate", lambda: generate(truncate="left"), "expected True or False, got 'left'"),
    ("progress", lambda: generate(progress="no"), "expected True or False, got 'no'"),
    (
        "progress",
        lambda: stream(progress=False),
        "greedy expected no such setting, got False: generate has",
    ),
    (
        "chunk",
        lambda: generate(chunk=4),
        "greedy expected no such setting, got 4: stream and stream_text have",
    ),
    (
        "chunk",
        lambda: generate(num_beams=2, chunk=4),
        "GenerationConfig expected no such parameter, got 4: stream",
    ),
    (
        "batch_size",
        lambda: stream(batch_size=4),
        "greedy expected no such setting, got 4: generate and",
    ),
    (
        "streamer",
        lambda: generate(streamer=print),
        "greedy expected no such setting, got <built-in function",
    ),
    (
        "attention_mask",
        lambda: generate(attention_mask=[[1]]),
        r"greedy expected no such setting, got \[\[1\]\]: texts and",
    ),
    (
        "max_new_tokens",
        lambda: generate(max_new_tokens=[3, 5]),
        r"expected an int of 1 or more; stop=Stop\(max_new_tokens=\.\.\.\) limits each text, got",
    ),
    (
        "max_new_tokens",
        lambda: generate(num_beams=2, max_new_tokens=[3, 5]),
        r"expected an int of 1 or more; stop=Stop\(max_new_tokens=\.\.\.\) limits each text, got",
    ),
    (
        "bad_words_ids",
        lambda: generate(bad_words_ids=[3, 4]),
        r"got \[3, 4\]; takes lists of token ids, such as \[\[5, 6\], \[7\]\]",
    ),
    (
        "force_words_ids",
        lambda: generate(num_beams=2, force_words_ids=[3, 4]),
        r"got \[3, 4\]; takes lists of token ids",
    ),
    ("suppress_tokens", lambda: generate(suppress_tokens=3), "got 3; takes a list of token ids"),
    (
        "eos_token_id",
        lambda: generate(eos_token_id="</s>"),
        "got '</s>'; takes a token id, or a list of them",
    ),
    (
        "strategy",
        lambda: generate(strategy="beam"),
        "'beam'; takes one of .*; beam_sample and beam_search are near",
    ),
    ("strategy", lambda: generate(strategy="sampling"), "takes one of .*; sample is near"),
    (
        "strategy",
        lambda: generate(strategy="top_p"),
        "; top_p is a transform: sample takes transform=trans",
    ),
    ("strategy", lambda: generate(strategy=3), "got 3; takes a name such as 'beam_search'"),
    (
        "key",
        lambda: generate(strategy="sample"),
        "got None; .* takes a typed key such as jax.random",
    ),
    ("key", lambda: generate(strategy="sample", key=0), "got int; takes a typed key"),
    (
        "key",
        lambda: generate(strategy="speculative_sample", drafter=T5_MODEL, num_draft_tokens=2),
        "got None; this strategy takes a typed key such as jax.random",
    ),
    (
        "verifier",
        lambda: generate(
            strategy="speculative_sample", drafter=T5_MODEL, num_draft_tokens=2, verifier="exact"
        ),
        "expected one of block, code, coded_token, greedy, gumbel,",
    ),
    ("seed", lambda: generate(strategy="sample", key=KEY, seed=3), r"key=jax.random.key\(3\) inst"),
    (
        "max_new_tokens",
        lambda: generate(max_new_tokens="64"),
        "expected an int of 1 or more, got '64'",
    ),
    ("max_new_tokens", lambda: generate(max_new_tokens=0), "expected an int of 1 or more, got 0"),
    (
        "max_length",
        lambda: generate(strategy="greedy", max_length=20),
        "greedy expected max_new_tokens=20 instead, got 20",
    ),
    ("batch_size", lambda: generate(batch_size=2.5), r"expected an int of 1 or more, got 2\.5"),
    ("batch_size", lambda: generate(batch_size=0), "expected an int of 1 or more, got 0"),
    ("batchsize", lambda: generate(batchsize=8), "greedy expected batch_size=8 instead, got 8"),
    (
        "do_sample",
        lambda: generate(strategy="greedy", do_sample=True),
        "sampling is a separate strategy, sample",
    ),
    (
        "stop",
        lambda: generate(stop="."),
        r"expected Stop\(sequences=\(ids,\)\) with token ids, such as",
    ),
    (
        "stop",
        lambda: generate(stop=[1]),
        r"expected a Stop, such as Stop\(eos_ids=\(1,\)\), got \[1\]",
    ),
    ("stop", lambda: generate(stop=1), r"expected a Stop, such as Stop\(eos_ids=\(1,\)\), got 1"),
    (
        "stop.eos_ids",
        lambda: generate(stop=Stop(eos_ids=999)),
        "expected ids from 0 to 258, the model's vocabulary, got 999",
    ),
    (
        "eos_token_id",
        lambda: generate(strategy="greedy", eos_token_id=1),
        r"greedy expected stop=Stop\(eos_ids=\(1,\)\) instead, got 1",
    ),
    (
        "beam_size",
        lambda: generate(strategy=decoding_jax.beam_search),
        "beam_search expected an int of 1 or more, got none",
    ),
    ("drafter", lambda: generate(drafter=T5_MODEL), "got a T5; this strategy takes none"),
    (
        "drafter",
        lambda: generate(strategy="speculative_sample", key=KEY, num_draft_tokens=2),
        "got None; this strategy takes a model or a drafter",
    ),
    (
        "drafter",
        lambda: generate(
            strategy="speculative_sample", key=KEY, num_draft_tokens=2, drafter="draft"
        ),
        "got 'draft'; takes a model, such as load gives",
    ),
    (
        "banned_sequences.sequences",
        lambda: generate(transform=transforms.banned_sequences([(300,)])),
        "expected ids from 0 to 258, the model's vocabulary, got 300",
    ),
    (
        "banned_sequences.sequences",
        lambda: stream(transform=transforms.banned_sequences([(300,)])),
        "expected ids from 0 to 258, the model's vocabulary, got 300",
    ),
    (
        "banned_sequences.sequences",
        lambda: job(
            strategy=functools.partial(
                decoding_jax.greedy,
                max_new_tokens=2,
                transform=transforms.banned_sequences(np.array([[[300]]])),
            )
        ),
        "expected ids from 0 to 258, the model's vocabulary, got 300",
    ),
    ("chunk", lambda: stream(chunk=0), "expected an int of 1 or more, got 0"),
    (
        "num_beams",
        lambda: stream(strategy="greedy", num_beams=4),
        "greedy expected no such setting, got 4; it belongs to",
    ),
    (
        "max_new_tokens",
        lambda: stream(max_new_tokens=4.0),
        r"expected an int of 1 or more, got 4\.0",
    ),
    ("phrases", lambda: constraints(TOKENIZER, "house"), "got 'house'; takes a list of strings"),
    ("nowhere", lambda: decoding_jax.load("nowhere"), PATH),
    ("nowhere", lambda: decoding_jax.load("translation-en-fr", tokenizer="nowhere"), PATH),
    ("gpt2", lambda: decoding_jax.load("gpt2"), f'{PATH}.* translation-en-fr,.*; or "hf://gpt2",'),
    (
        "Qwen/Qwen3-0.6B",
        lambda: decoding_jax.load("Qwen/Qwen3-0.6B"),
        r'which huggingface_hub.snapshot_download\("Qwen/Qwen3-0.6B"\) downloads',
    ),
    ("python_code", lambda: decoding_jax.load("python_code"), f"{PATH}.*such as python-code, "),
    (
        "directory",
        lambda: decoding_jax.load("hf://a/b/c"),
        "got 'hf://a/b/c'; takes hf://organisation/model",
    ),
    ("nowhere", lambda: load_t5x("nowhere"), PATH),
    ("nowhere", lambda: load_tokenizer("nowhere"), PATH),
    ("directory", lambda: decoding_jax.load(None), "got a NoneType; takes a path, or one of"),
    (
        "dtype",
        lambda: decoding_jax.load("translation-en-fr", dtype="fp16"),
        "'fp16'; takes 'float32",
    ),
    # A batch job.
    (
        "chunk",
        lambda: job(strategy=functools.partial(decoding_jax.greedy, chunk=4)),
        "greedy expected no such setting, got 4: stream and stream_text have",
    ),
    (
        "streamer",
        lambda: job(strategy=functools.partial(decoding_jax.greedy, streamer=print)),
        "greedy expected no such setting, .*stream_text.* gives texts as they grow",
    ),
    (
        "max_new_tokens",
        lambda: job(strategy=functools.partial(decoding_jax.greedy, max_new_tokens=[3, 5])),
        r"expected an int of 1 or more; stop=Stop\(max_new_tokens=\.\.\.\) limits each text, got",
    ),
    (
        "strategy",
        lambda: job(strategy="greedy"),
        "got 'greedy'; takes a function such as functools",
    ),
    (
        "max_new_tokens",
        lambda: job(strategy=decoding_jax.greedy),
        "greedy expected an int of 1 or more, got none",
    ),
    (
        "num_beams",
        lambda: job(strategy=functools.partial(decoding_jax.beam_search, num_beams=4)),
        "beam_search expected beam_size=4 instead",
    ),
    ("model", lambda: job(model=T5_MODEL), "got a T5; takes a model and its tokenizer"),
    (
        "model",
        lambda: job(model="translation-en-fr"),
        "takes a model and its tokenizer, as decoding",
    ),
    ("tokenizer", lambda: job(model=(T5_MODEL, None)), "got None; takes one with encode"),
    ("source", lambda: job(source="inputs.txt"), r"got 'inputs.txt'; takes TextLines\(path\)"),
    ("source", lambda: job(source=["a"]), r"got 'a' among its items; takes TextLines\(path\)"),
    ("source", lambda: job(source=None), r"got None; takes TextLines\(path\)"),
    ("source", lambda: job(source=[]), "got no inputs; takes at least one"),
    ("seed", lambda: job(seed="1"), "got '1'; takes 0 to"),
    ("batch_size", lambda: job(batch_size="4"), "got '4'; takes a whole number of 1 or more"),
    ("buckets", lambda: job(buckets=16), "got 16; takes a list of widths"),
    ("stop", lambda: job(stop=[1]), r"expected a Stop, such as Stop\(eos_ids=\(1,\)\), got \[1\]"),
    ("output_dir", lambda: job(report=None), "got None, and no report either; takes at least one"),
    ("output_dir", lambda: job(output_dir=3), "got 3; takes a path"),
    # T5X's decode functions.
    ("inputs", lambda: t5x(inputs=jnp.zeros(4, jnp.int32)), r"got shape \[4\]; takes \[B, L\]"),
    ("num_decodes", lambda: t5x(num_decodes=0), "1 or more"),
]


@pytest.mark.parametrize(("argument", "call", "message"), named(TABLE))
def test_a_mistake_gets_one_line(argument, call, message):
    check(argument, call, message)


def test_the_table_is_as_long_as_it_should_be():
    assert len(TABLE) >= 50


@pytest.mark.parametrize("call", [decoding_jax.generate, decoding_jax.stream])
def test_a_key_that_is_not_used_is_warned_of(call):
    """A mistake in another argument raises before anything is compiled."""
    speculation = {"strategy": "speculative_sample", "drafter": T5_MODEL, "num_draft_tokens": 2}
    for settings, name in (
        ({}, "greedy"),
        ({**speculation, "verifier": "greedy"}, "speculative_sample with the greedy verifier"),
    ):
        with (
            pytest.warns(UserWarning, match=f"^key: {name} draws nothing and does not use it$"),
            pytest.raises(ValueError, match="texts: got an empty text"),
        ):
            list(call(T5_MODEL, TOKENIZER, [""], key=KEY, **settings))


IDLE = "temperature: no effect with greedy, which draws nothing; sample draws"


def test_a_transform_that_has_no_effect_is_warned_of(caplog):
    for call in (decoding_jax.generate, decoding_jax.stream):
        with pytest.warns(UserWarning, match=f"^{IDLE}$"), pytest.raises(ValueError, match="empty"):
            list(call(T5_MODEL, TOKENIZER, [""], transform=transforms.temperature(5)))
    greedy = functools.partial(
        decoding_jax.greedy, max_new_tokens=2, transform=transforms.temperature(5)
    )
    check("source", lambda: job(strategy=greedy, source=[]), "got no inputs")
    assert IDLE in caplog.messages
