"""Texts that join and leave a running batch, beside the same texts alone."""

import asyncio
import http.server
import json
import threading
import time
import urllib.error
import urllib.request

import jax
import pages
import pytest
import tiers
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import RunningBatch, Stop, constraints, transforms
from decoding_jax.text import running_batch
from decoding_jax.text.token_texts import concatenated


class Texts(Digits):
    """Says what the texts of tokens are."""

    def token_texts(self, size):
        return concatenated([b"", *(str(i).encode() for i in range(1, size))])


TOKENIZER = Texts()
TEXTS = ["1 2 3", "4", "5 6 1 2 3 4 5 " * 3, "2 2", "6 5 4 3", "1"]
STRATEGIES = {
    "sample": {"num_samples": 2, "stop_strings": ["12", "5"]},
    "greedy": {},
    "beam_search": {"beam_size": 3},
    "speculative_sample": {"drafter": TABLE, "num_draft_tokens": 2},
}


def transform_of(i):
    """Numbers of text i, of which every one is another."""
    return transforms.chain(
        transforms.temperature(0.5 + i / 4),
        transforms.thinking_budget((3,), (4,), max_tokens=i % 3),
    )


def limit_of(i):
    return 4 + 2 * i


EXHAUSTIVE = ("sample",)  # tests/infer/test_refill.py has the rows of speculation


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    tiers.values(*EXHAUSTIVE, release=[name for name in STRATEGIES if name not in EXHAUSTIVE]),
)
def test_a_text_has_the_tokens_that_it_has_alone(name):
    """Six texts in three rows, of two widths, each with a key and numbers of its own."""
    settings = {"strategy": name, **STRATEGIES[name]}
    draws = decoding_jax.registry.STRATEGIES[name].draws
    keys = [jax.random.key(i) if draws else None for i in range(len(TEXTS))]
    shape = {"batch_size": 3, "max_input_length": 24, "max_new_tokens": 16}
    with RunningBatch(TABLE, TOKENIZER, chunk=2, **shape, **settings) as batch:

        def submit(i):
            given = {"transform": transform_of(i), "max_new_tokens": limit_of(i)}
            return batch.submit(TEXTS[i], key=keys[i], **given)

        first = [submit(i) for i in range(4)]
        read = [list(first[0])]
        later = [submit(i) for i in (4, 5)]
        streams = [*first, *later]
        read += [list(stream) for stream in streams[1:]]
    for i, (stream, pieces) in enumerate(zip(streams, read, strict=True)):
        given = {"transform": transform_of(i), "max_new_tokens": 16}  # one program for all limits
        stop = Stop(max_new_tokens=[limit_of(i)])
        [alone] = decoding_jax.generate(
            TABLE, TOKENIZER, [TEXTS[i]], key=keys[i], stop=stop, **settings, **given
        )
        [made] = stream.output
        assert [c.tokens for c in made] == [c.tokens for c in alone]
        assert [c.finished for c in made] == [c.finished for c in alone]
        for sample, completion in enumerate(made):
            assert "".join(p for p in pieces if p.sample == sample) == completion.text


SCHEMA = {"type": "integer", "minimum": 3, "maximum": 64}


def formats():
    """A list, a pattern and a schema."""
    size = TABLE.vocab_size
    return [
        constraints.choice(["12", "3", "456"], TOKENIZER, vocab_size=size),
        constraints.regex("(12)*6?", TOKENIZER, vocab_size=size),
        SCHEMA,
    ]


@pytest.mark.exhaustive
def test_each_text_has_a_constraint_of_its_own():
    """Texts of three languages and of none share two rows."""
    several = formats()
    shape = {"batch_size": 2, "max_input_length": 8, "max_new_tokens": 6, "chunk": 1}
    texts = [*TEXTS[:2], "3 1", *TEXTS[3:], "1 1"]
    order = [None, several[0], several[1], dict(SCHEMA), None, several[2], several[1]]
    keys = [jax.random.key(i) for i in range(len(texts))]
    with RunningBatch(
        TABLE, TOKENIZER, response_formats=several, strategy="sample", **shape
    ) as batch:
        given = zip(texts, keys, order, strict=True)
        streams = [batch.submit(text, key=key, response_format=x) for text, key, x in given]
        read = ["".join(stream) for stream in streams]
    for i, text in enumerate(texts):
        [[alone]] = decoding_jax.generate(
            TABLE, TOKENIZER, [text], key=keys[i], strategy="sample",
            response_format=order[i], max_new_tokens=6,
        )  # fmt: skip
        [[made]] = streams[i].output
        assert (made.tokens, made.finished) == (alone.tokens, alone.finished)
        assert (made.parsed, read[i]) == (alone.parsed, alone.text)


def test_a_format_that_a_batch_does_not_have_is_one_line():
    given = {"strategy": "sample", "batch_size": 1, "max_input_length": 8}
    with RunningBatch(TABLE, TOKENIZER, response_formats=formats(), **given) as batch:
        for settings, words in (
            ({"response_format": {"type": "string"}}, "response_format: expected one of the batch"),
            ({"tools": [{}]}, "tools: expected None in a batch with response_formats, got"),
        ):
            with pytest.raises(ValueError, match=words):
                batch.submit("1", key=jax.random.key(0), **settings)
    given |= {"strategy": "smc_sample", "num_samples": 2}
    with RunningBatch(TABLE, TOKENIZER, response_formats=formats(), **given) as batch:
        words = "response_formats: expected none for a strategy with a language"
        with pytest.raises(ValueError, match=words):
            batch.submit("1", key=jax.random.key(0))
    with pytest.raises(ValueError, match="response_formats: expected a list of formats"):
        RunningBatch(TABLE, TOKENIZER, response_formats=formats()[0], **given)


def test_the_order_of_properties_tells_formats_apart():
    one = {"properties": {"a": {"const": 1}, "b": {}}}
    other = {"properties": {"b": {}, "a": {"const": 1}}}
    named = [(one, "one"), (other, "other"), (None, "none")]
    for asked, made in (one, "one"), (other, "other"), ({**other}, "other"), (None, "none"):
        assert running_batch._format_of({"response_format": asked}, named) == made
    with pytest.raises(ValueError, match="response_format: expected one of the batch"):
        running_batch._format_of({"response_format": {"properties": {"a": {"const": True}}}}, named)


@pytest.fixture(scope="module")
def one_row():
    """A batch of one row, whose texts never end by themselves."""
    shape = {"batch_size": 1, "max_input_length": 16, "max_new_tokens": 1024, "max_waiting": 1}
    with RunningBatch(TABLE, TOKENIZER, **shape, **ENDLESS, chunk=1) as batch:
        yield batch


ENDLESS = {"strategy": "greedy", "stop": Stop(eos_ids=())}


def test_texts_take_the_row_of_one_another(one_row):
    """And have the tokens that ``generate`` gives them."""
    texts = TEXTS[:2]
    streams = [one_row.submit(text, max_new_tokens=9 - i) for i, text in enumerate(texts)]
    pieces = [list(stream) for stream in streams]
    rows = decoding_jax.generate(TABLE, TOKENIZER, texts, max_new_tokens=9, **ENDLESS)
    for i, (stream, [alone]) in enumerate(zip(streams, rows, strict=True)):
        [[made]] = stream.output
        assert made.tokens == alone.tokens[: 9 - i]
        assert "".join(pieces[i]) == made.text
    assert len(pieces[0]) > 2


def test_a_stream_that_is_closed_frees_its_row(one_row):
    endless = one_row.submit("1")
    assert next(endless)
    short = one_row.submit("2 2", max_new_tokens=3)
    endless.close()
    assert len("".join(short)) <= 3
    assert short.output[0][0].tokens
    assert list(endless) == []
    assert endless.output is None


def test_a_text_waits_where_others_wait(one_row):
    """One runs, one waits, and the third is let in once the first is taken back."""
    running = one_row.submit("1")
    next(running)
    waiting = one_row.submit("2", max_new_tokens=2)
    third = []
    thread = threading.Thread(target=lambda: third.append(one_row.submit("3", max_new_tokens=2)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    running.close()
    thread.join()
    for stream in (waiting, third[0]):
        assert list(stream)[-1].last


@pytest.mark.exhaustive
def test_a_text_may_have_scores_or_a_time(one_row):
    given = {"max_new_tokens": 3, "with_scores": 2}
    scored, timed = one_row.submit("1 2", **given), one_row.submit("1", max_time=0.01)
    assert list(scored)[-1].last
    assert list(timed)[-1].last
    [[want], [whole]] = decoding_jax.generate(
        TABLE, TOKENIZER, ["1 2", "1"], **{**given, "max_new_tokens": 64}, **ENDLESS
    )
    [[made]], [[cut]] = scored.output, timed.output
    assert made.scores.top_tokens.tolist() == want.scores.top_tokens[:3].tolist()
    assert made.scores.log_prob == pytest.approx(want.scores.log_prob[:3], abs=1e-6)
    assert 0 < len(cut.tokens) < 1024
    assert not cut.finished
    assert cut.tokens[:64] == whole.tokens[: len(cut.tokens)]


def test_a_stream_is_read_asynchronously_and_the_thread_rests(one_row):
    async def read():
        return [piece async for piece in one_row.submit("1 2", max_new_tokens=3)]

    assert asyncio.run(read())[-1].last
    begun = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - begun < 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_new_tokens": 5000}, "max_new_tokens: expected at most 1024, .* got 5000"),
        ({"text": "1" * 17}, "text: expected at most 16 tokens, the max_input_length, got 17"),
        (
            {"transform": transforms.repetition_penalty(2.0)},
            "transform: expected what the first text of the batch has",
        ),
        ({"stop": Stop(eos_ids=(1, 2))}, "stop: expected what the first text of the batch has"),
        ({"strategy": "sample", "key": jax.random.key(0)}, "strategy: expected what the first"),
        (
            {"share_prefix": True},
            "share_prefix: expected none for a text that joins a batch, got Tr",
        ),
        ({"drafter": TABLE}, "drafter: expected none for a text that joins a batch, got"),
        ({"tempo": 1}, "tempo: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_a_batch_cannot_do_is_one_line(one_row, settings, words):
    list(one_row.submit("1", max_new_tokens=1))
    with pytest.raises(ValueError, match=words) as error:
        one_row.submit(**{"text": "1", **settings})
    assert "\n" not in str(error.value)


def test_a_closed_batch_ends_its_texts():
    batch = RunningBatch(
        TABLE, TOKENIZER, batch_size=1, max_input_length=16, max_new_tokens=1024, chunk=1,
        stop=Stop(eos_ids=()), strategy="greedy", max_waiting=1,
    )  # fmt: skip
    streams = [batch.submit("1"), batch.submit("2")]
    assert not batch.has_ended
    batch.close()
    assert batch.has_ended
    for stream in streams:
        with pytest.raises(RuntimeError, match="closed before the text had ended"):
            list(stream)
    with pytest.raises(RuntimeError, match="expected one that runs"):
        batch.submit("1")
    batch.close()


@pytest.fixture
def endpoint(monkeypatch):
    """The endpoint of the page, with a small model; its address."""
    [block] = [b for b in pages.blocks("docs/engines.md") if "ThreadingHTTPServer" in b.text]
    monkeypatch.setattr(decoding_jax, "load", lambda name: (TABLE, TOKENIZER))
    monkeypatch.setattr(http.server.BaseHTTPRequestHandler, "log_message", lambda *_: None)
    made = {}
    exec(compile(block.text, "docs/engines.md", "exec"), made)
    yield f"http://127.0.0.1:{made['server'].server_port}/v1"
    made["server"].shutdown()
    made["server"].server_close()
    made["batch"].close()


def expected(text, seed, **settings):
    chain = transforms.chain(transforms.temperature(0.9), transforms.top_p(1.0))
    [[completion]] = decoding_jax.generate(
        TABLE, TOKENIZER, [text], strategy="sample", key=jax.random.key(seed), transform=chain,
        **settings,
    )  # fmt: skip
    return completion


def asked(address, **body):
    request = urllib.request.Request(f"{address}/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.exhaustive
def test_the_endpoint_of_the_page_answers(endpoint):
    alone = expected("1 2", 3, max_new_tokens=12)
    body = {"model": "any", "prompt": "1 2", "temperature": 0.9, "seed": 3, "max_tokens": 12}
    choice = asked(endpoint, **body)["choices"][0]
    assert choice["text"] == alone.text
    assert choice["finish_reason"] == ("stop" if alone.finished else "length")
    stop = alone.text[1:3]
    assert asked(endpoint, **body, stop=stop)["choices"][0]["text"] == alone.text[:1]
    for wrong in ({"max_tokens": 10_000}, {"best_of": 2}):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            asked(endpoint, **body | wrong)


@pytest.mark.exhaustive
def test_the_client_of_openai_reads_the_endpoint(endpoint):
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    client = openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0)
    body = {"model": "any", "prompt": "1 2", "temperature": 0.9, "seed": 3, "max_tokens": 12}
    alone = expected("1 2", 3, max_new_tokens=12)
    assert client.completions.create(**body).choices[0].text == alone.text
    parts = list(client.completions.create(**body, stream=True))
    assert "".join(part.choices[0].text for part in parts) == alone.text
    assert parts[-1].choices[0].finish_reason == ("stop" if alone.finished else "length")
    with pytest.raises(openai.BadRequestError, match="max_new_tokens"):
        client.completions.create(**body | {"max_tokens": 10_000})
