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
    OfTransformers,
    Table,
    check,
    generate,
    job,
    named,
    stream,
    t5x,
)
from networks import drawn

import decoding_jax
from decoding_jax import (
    Stop,
    transforms,
)
from decoding_jax.models import T5, load_t5x
from decoding_jax.text import constraints, embedded, load_tokenizer

load = functools.partial(decoding_jax.load, "translation-en-fr")
PATH = "such directory"
MESSAGE = {"role": "user", "content": "Hello!"}
TABLE = [
    # In a notebook: generate and stream.
    (
        "model",
        lambda: generate("t5-small"),
        "expected a language model, got 't5-small': decoding_jax",
    ),
    ("model", lambda: generate(PAIR), "expected a language model, got a pair with a T5"),
    ("model", lambda: generate(T5), "expected a language model, got the class T5"),
    (
        "tokenizer",
        lambda: generate(tokenizer=None),
        "expected one with encode, decode and eos_ids, .*, got None",
    ),
    ("tokenizer", lambda: generate(tokenizer="t5"), "expected one with encode, .*, got 't5'"),
    (
        "tokenizer",
        lambda: generate(tokenizer=HuggingFaceLike()),
        "expected .*, got a HuggingFaceLike without eos_ids",
    ),
    (
        "tokenizer.eos_ids",
        lambda: generate(tokenizer=EosAsText()),
        "expected a tuple of token ids, got '</s>'",
    ),
    (
        "tokenizer",
        lambda: generate(drawn(T5, SMALL)),
        "expected one of the model's vocabulary, of at most 50 tokens besides added .*, got one of",
    ),
    (
        "texts",
        lambda: generate(texts="hello"),
        "expected a list of strings, got one string, 'hello'",
    ),
    ("texts", lambda: generate(texts=None), "expected a list of strings, got None"),
    ("texts", lambda: generate(texts=[7]), r"expected strings, got 7 at index 0; token ids are"),
    (
        "texts",
        lambda: generate(texts=[[5, 6]]),
        r"got \[5, 6\] at index 0; token ids are the Prompt",
    ),
    ("texts", lambda: generate(texts=jnp.ones((1, 2))), r"got float32\[2\] at index 0; token ids"),
    ("texts", lambda: generate(texts={"a", "b"}), "expected a list of .*, got a set, which has no"),
    ("texts", lambda: generate(texts={"a": "b"}), "expected a list of strings, got a dict"),
    (
        "texts",
        lambda: generate(texts=Table()),
        r"got a Table; a column of it is list\(table\[name\]",
    ),
    (
        "generate",
        lambda: decoding_jax.generate(T5_MODEL, ["a"]),
        r"expected generate\(model, tokenizer, texts\), got generate\(a T5, \['a'\]\): missing",
    ),
    (
        "stream",
        lambda: decoding_jax.stream(PAIR, ["a"], max_new_tokens=3),
        r"expected stream\(model, tokenizer, texts\), got stream\(a pair with a T5, \['a'\]\)",
    ),
    ("tokenizer", lambda: TOKENIZER("a"), r"expected tokenizer.encode\(text\) for one text, got a"),
    ("text", lambda: TOKENIZER.encode(["a"]), r"expected one string, as in \[encode.*got \['a'\]"),
    (
        "text",
        lambda: decoding_jax.load("translation-en-fr-draft")[1].encode(["a"]),
        r"expected one string, as in \[encode\(text\) for text in texts\], got \['a'\]",
    ),
    (
        "tokenizer",
        lambda: generate(tokenizer=OfTransformers()),
        r"without eos_ids; text.load_tokenizer\(directory\) reads the same files",
    ),
    (
        "texts",
        lambda: generate(texts=[MESSAGE]),
        "expected strings, or lists .*, got one message at index 0",
    ),
    (
        "chat_template",
        lambda: generate(texts=[[MESSAGE]]),
        "expected a template in Jinja, .*, got None, and the tokenizer has none",
    ),
    (
        "texts",
        lambda: generate(texts=["a", ""]),
        "expected texts with a token, got an empty text at index 1",
    ),
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
        "expected at most 16 tokens, the .*model, got 21 at index 1, 'bb.*; truncate=True cuts",
    ),
    (
        "max_new_tokens",
        lambda: generate(SHORT, texts=["a", "b" * 14]),
        "expected at most 2 after the 15 tokens of text 1, 'bb.*', since .* 16 positions, got 4",
    ),
    (
        "max_new_tokens",
        lambda: stream(SHORT, texts=["a", "b" * 14]),
        "expected at most 1, for which text 1, 'bb.*, got none for texts that are streamed",
    ),
    ("truncate", lambda: generate(truncate="left"), "expected True or False, got 'left'"),
    ("progress", lambda: generate(progress="no"), "expected True or False, got 'no'"),
    (
        "progress",
        lambda: stream(progress=False),
        "greedy expected no such setting, .*: generate has it, and",
    ),
    (
        "chunk",
        lambda: generate(chunk=4),
        "greedy expected no such setting, got 4: stream and stream_text have it",
    ),
    (
        "chunk",
        lambda: generate(num_beams=2, chunk=4),
        "GenerationConfig expected no such .*, got 4: stream and st",
    ),
    (
        "batch_size",
        lambda: stream(batch_size=4),
        "greedy expected no such .*: generate and infer.run have",
    ),
    (
        "streamer",
        lambda: generate(streamer=print),
        "no such setting, .*: stream_text.* gives texts as they",
    ),
    (
        "attention_mask",
        lambda: generate(attention_mask=[[1]]),
        "expected no such setting, .*: texts and prompts have",
    ),
    (
        "max_new_tokens",
        lambda: generate(max_new_tokens=[3, 5]),
        r"expected an int of 1 or more; stop=Stop.* limits each text, got \[3, 5\]",
    ),
    (
        "max_new_tokens",
        lambda: generate(num_beams=2, max_new_tokens=[3, 5]),
        r"expected an int of 1 or more; stop=Stop.* limits each text, got \[3, 5\]",
    ),
    (
        "bad_words_ids",
        lambda: generate(bad_words_ids=[3, 4]),
        r"expected lists of token ids, such as \[\[5, 6\], \[7\]\], got \[3, 4\]",
    ),
    (
        "force_words_ids",
        lambda: generate(num_beams=2, force_words_ids=[3, 4]),
        r"expected lists of token ids, .*, got \[3, 4\]",
    ),
    ("suppress_tokens", lambda: generate(suppress_tokens=3), "expected a list of token ids, got 3"),
    (
        "eos_token_id",
        lambda: generate(eos_token_id="</s>"),
        "expected a token id, or a list of them, got '</s>'",
    ),
    (
        "strategy",
        lambda: generate(strategy="beam"),
        "expected one of .*, got 'beam'; beam_sample and beam_search are near",
    ),
    (
        "strategy",
        lambda: generate(strategy="sampling"),
        "expected one of .*, got 'sampling'; sample is near",
    ),
    ("strategy", lambda: generate(strategy="am"), "expected one of .*, got 'am'$"),
    (
        "strategy",
        lambda: generate(strategy="top_p"),
        "; top_p is a transform: sample takes transform=trans",
    ),
    ("strategy", lambda: generate(strategy=3), "expected a name such as 'beam_search', .*, got 3"),
    (
        "key",
        lambda: generate(strategy="sample"),
        "expected a typed key such as jax.random.*, got None",
    ),
    ("key", lambda: generate(strategy="sample", key=0), "expected a typed key .*, got int"),
    (
        "key",
        lambda: generate(strategy="speculative_sample", drafter=T5_MODEL, num_draft_tokens=2),
        "expected a typed key such as jax.random.* for this strategy, got None",
    ),
    (
        "verifier",
        lambda: generate(
            strategy="speculative_sample", drafter=T5_MODEL, num_draft_tokens=2, verifier="exact"
        ),
        "expected one of block, code, .*, got 'exact'",
    ),
    ("logprobs", lambda: generate(logprobs=5), "greedy expected with_scores=5 instead, got 5"),
    ("stop_token_ids", lambda: generate(stop_token_ids=[1]), r"stop=Stop\(eos_ids=\[1\]\) instead"),
    (
        "stop_token_ids",
        lambda: generate(num_beams=2, stop_token_ids=[1]),
        r"eos_token_id=\[1\] inst",
    ),
    ("stop_sequences", lambda: generate(stop_sequences=["a"]), r"stop_strings=\['a'\] instead"),
    (
        "guided_json",
        lambda: generate(guided_json={}),
        r"transform=constraints.json_schema\(schema, t",
    ),
    ("regex", lambda: generate(num_beams=2, regex="a"), r"transform=constraints.regex\(pattern, t"),
    ("sampling_params", lambda: generate(sampling_params=1), "each parameter is an argument, such"),
    ("stream", lambda: generate(stream=True), r"stream_text\(model, tokenizer, texts\).print\(\)"),
    ("n", lambda: generate(do_sample=True, n=4), "expected num_return_sequences=4 instead"),
    (
        "seed",
        lambda: generate(seed=3),
        "greedy expected no key, since it draws nothing, got 3; sampl",
    ),
    ("top_p", lambda: generate(do_sample=True, top_p=1.5), "a probability from 0 to 1, got 1.5"),
    ("min_p", lambda: generate(do_sample=True, min_p=-0.1), "a probability from 0 to 1, got -0.1"),
    (
        "temperature",
        lambda: generate(do_sample=True, temperature=-1),
        "expected a finite number of 0 or more, got -1",
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
        "greedy expected max_new_tokens=20 instead",
    ),
    ("batch_size", lambda: generate(batch_size=2.5), "expected an int of 1 or more, got 2.5"),
    ("batch_size", lambda: generate(batch_size=0), "expected an int of 1 or more, got 0"),
    ("batchsize", lambda: generate(batchsize=8), "greedy expected batch_size=8 instead"),
    (
        "do_sample",
        lambda: generate(strategy="greedy", do_sample=True),
        "sampling is a separate strategy, sample",
    ),
    ("stop", lambda: generate(stop="."), r"expected stop_strings=... of generate, or Stop.*'.'"),
    ("stop", lambda: generate(stop=["\n"]), r"expected stop_strings=... of generate, or Stop"),
    (
        "stop",
        lambda: generate(stop=[1]),
        r"expected a Stop, such as Stop\(eos_ids=\(1,\)\), got \[1\]",
    ),
    ("stop", lambda: generate(stop=1), "expected a Stop, .*, got 1"),
    (
        "stop.eos_ids",
        lambda: generate(stop=Stop(eos_ids=999)),
        "expected ids from 0 to 258, .*, got 999",
    ),
    (
        "eos_token_id",
        lambda: generate(strategy="greedy", eos_token_id=1),
        r"expected stop=Stop\(eos_ids=\(1,\)\) instead",
    ),
    (
        "beam_size",
        lambda: generate(strategy=decoding_jax.beam_search),
        "beam_search expected an int of 1 or more, got none",
    ),
    ("drafter", lambda: generate(drafter=T5_MODEL), "expected none for this strategy, got a T5"),
    (
        "drafter",
        lambda: generate(strategy="speculative_sample", key=KEY, num_draft_tokens=2),
        "expected a model or a drafter for this strategy, got None",
    ),
    (
        "drafter",
        lambda: generate(
            strategy="speculative_sample", key=KEY, num_draft_tokens=2, drafter="draft"
        ),
        r"expected a model, .* or strategies.speculative.PromptLookup\(\), got 'draft'",
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
    (
        "max_new_tokens",
        lambda: job(
            model=(SHORT, TOKENIZER),
            strategy=functools.partial(decoding_jax.greedy, max_new_tokens=4),
        ),
        r"at most 1 after a prompt of 16, .*; max_input_length \(in gin MAX_INPUT_LENGTH\), wh",
    ),
    ("chunk", lambda: stream(chunk=0), "expected an int of 1 or more, got 0"),
    (
        "num_beams",
        lambda: stream(strategy="greedy", num_beams=4),
        "greedy expected no such setting, got 4; .*beam_search",
    ),
    ("max_new_tokens", lambda: stream(max_new_tokens=4.0), "expected an int of 1 or more, got 4.0"),
    (
        "phrases",
        lambda: constraints(TOKENIZER, "house"),
        "expected a list of strings .*, got 'house'",
    ),
    ("nowhere", lambda: decoding_jax.load("nowhere"), PATH),
    (
        "torch_dtype",
        lambda: load(torch_dtype="float16"),
        'load expected dtype="bfloat16", "float32"',
    ),
    (
        "device_map",
        lambda: load(device_map="auto"),
        'load expected mesh={"model": N} for N devices',
    ),
    (
        "load_in_8bit",
        lambda: load(load_in_8bit=True),
        'load expected weights="int8" instead, got T',
    ),
    ("quantization", lambda: load(quantization="awq"), 'weights="int8" or "int4" .*, got \'awq\''),
    ("dtyp", lambda: load(dtyp="auto"), "load expected dtype='auto' instead, got 'auto'"),
    ("nowhere", lambda: decoding_jax.load_drafter("nowhere"), PATH),
    (
        r".*config.json",
        lambda: decoding_jax.load_drafter(embedded()["translation-en-fr"]),
        "expected a head of EAGLE-3 .*; load reads a draft model",
    ),
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
        "expected hf://organisation/model.*, got 'hf://a/b/c'",
    ),
    ("nowhere", lambda: load_t5x("nowhere"), PATH),
    ("nowhere", lambda: load_tokenizer("nowhere"), PATH),
    ("directory", lambda: decoding_jax.load(None), "expected a path, or one of .*, got a NoneType"),
    (
        "dtype",
        lambda: decoding_jax.load("translation-en-fr", dtype="fp16"),
        "expected 'float32.*, got 'fp16'",
    ),
    # A batch job.
    (
        "chunk",
        lambda: job(strategy=functools.partial(decoding_jax.greedy, chunk=4)),
        "greedy expected no such setting, got 4: stream and stream_text have it",
    ),
    (
        "streamer",
        lambda: job(strategy=functools.partial(decoding_jax.greedy, streamer=print)),
        "greedy expected no such setting, .*: stream_text.* gives texts as",
    ),
    (
        "max_new_tokens",
        lambda: job(strategy=functools.partial(decoding_jax.greedy, max_new_tokens=[3, 5])),
        r"expected an int of 1 or more; stop=Stop.* limits each text, got \[3, 5\]",
    ),
    (
        "strategy",
        lambda: job(strategy="greedy"),
        "expected a function such as functools.*got 'greedy'",
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
    (
        "model",
        lambda: job(model=T5_MODEL),
        "expected a model and its tokenizer, as .* returns them, got a T5",
    ),
    (
        "model",
        lambda: job(model="translation-en-fr"),
        "expected a model and its tokenizer, as decoding_jax.load returns them, got 'trans",
    ),
    ("tokenizer", lambda: job(model=(T5_MODEL, None)), "expected one with encode, .*, got None"),
    (
        "source",
        lambda: job(source="inputs.txt"),
        r"expected TextLines\(path\), .*, got 'inputs.txt'",
    ),
    ("source", lambda: job(source=["a"]), r"expected items .*, got 'a'"),
    ("source", lambda: job(source=None), r"expected TextLines\(path\), .*, got None"),
    ("source", lambda: job(source=[]), "expected at least one input, got none"),
    ("seed", lambda: job(seed="1"), "expected a whole number from 0 to .*, got '1'"),
    ("batch_size", lambda: job(batch_size="4"), "expected an int of 1 or more, got '4'"),
    ("buckets", lambda: job(buckets=16), "expected a list of widths, got 16"),
    ("stop", lambda: job(stop=[1]), r"expected a Stop, such as Stop\(eos_ids=\(1,\)\), got \[1\]"),
    ("output_dir", lambda: job(report=None), "expected a path, or else a report, got neither"),
    ("output_dir", lambda: job(output_dir=3), "expected a path, got 3"),
    # T5X's decode functions.
    ("inputs", lambda: t5x(inputs=jnp.zeros(4, jnp.int32)), r"expected shape \[B, L\], got \[4\]"),
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
            pytest.raises(ValueError, match="texts: expected texts with a token, got an"),
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
    check("source", lambda: job(strategy=greedy, source=[]), "expected at least one input")
    assert IDLE in caplog.messages
