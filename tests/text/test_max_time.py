"""``max_time``: decoding ends between two steps, and returns what there is."""

import pytest
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import GenerationConfig, Stop, transforms
from decoding_jax.text import streaming

TEXTS = ["1 2 3", "4"]
SETTINGS = {"max_new_tokens": 5, "stop": Stop(eos_ids=())}


digits_only = transforms.banned_sequences(((0,),))  # 0 is no text


class Watch:
    """A clock that moves on by a second whenever it is read."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        self.now += 1
        return self.now


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(streaming, "time", Watch())


def tokens(rows):
    return [[c.tokens for c in row] for row in rows]


@pytest.mark.exhaustive
def test_enough_time_changes_nothing():
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, **SETTINGS)
    got = decoding_jax.generate(TABLE, Digits(), TEXTS, max_time=1000, **SETTINGS)
    assert tokens(got) == tokens(want)
    assert [r[0].finished for r in got] == [r[0].finished for r in want]


def test_texts_are_returned_as_far_as_they_are(watch):
    """The clock is read once to start, and twice for each step after the first token."""
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, **SETTINGS)
    for max_time, count in ((1, 1), (2, 2), (4, 3)):
        rows = decoding_jax.generate(TABLE, Digits(), TEXTS, max_time=max_time, **SETTINGS)
        assert tokens(rows) == [[c.tokens[:count] for c in row] for row in want]
        assert not any(c.finished for row in rows for c in row)


def test_a_stream_and_a_config_end_in_time(watch):
    pieces = decoding_jax.stream_text(TABLE, Digits(), TEXTS, max_time=2, **SETTINGS)
    joined = ["", ""]
    for piece in pieces:
        joined[piece.row] += piece
    assert joined == [row[0].text for row in pieces.output]
    assert [len(row[0].tokens) for row in pieces.output] == [2, 2]
    config = GenerationConfig(max_time=2, max_new_tokens=5, eos_token_id=[])
    rows = decoding_jax.generate(TABLE, Digits(), TEXTS, config=config)
    assert tokens(rows) == tokens(pieces.output)


@pytest.mark.release
def test_every_batch_and_every_search_returns_something(watch):
    settings = {"strategy": "beam_search", "beam_size": 2, **SETTINGS}
    rows = decoding_jax.generate(TABLE, Digits(), TEXTS, max_time=1, batch_size=1, **settings)
    assert [[len(c.tokens) for c in row] for row in rows] == [[1, 1], [1, 1]]


@pytest.mark.exhaustive
def test_a_search_that_chooses_its_first_token_in_a_step_has_one():
    settings = {"penalty_alpha": 0.6, "top_k": 2, "max_new_tokens": 5, "max_time": 1e-9}
    rows = decoding_jax.generate(
        TABLE, Digits(), ["1 2"], strategy="contrastive_search", stop=Stop(eos_ids=()), **settings
    )
    assert [len(completion.tokens) for [completion] in rows] == [1]


@pytest.mark.parametrize("max_time", [0, -1.0, "5", True])
def test_bad_limits_are_one_line(max_time):
    with pytest.raises(ValueError, match="max_time: expected seconds above 0, got "):
        decoding_jax.generate(TABLE, Digits(), TEXTS, max_time=max_time)


def test_a_function_that_cannot_be_interrupted_is_refused():
    def shout(model, prompt, *, max_new_tokens, stop):
        return decoding_jax.greedy(model, prompt, max_new_tokens=max_new_tokens, stop=stop)

    with pytest.raises(
        ValueError, match=r"max_time: expected a strategy .*, got one with shout, which runs to"
    ):
        decoding_jax.generate(TABLE, Digits(), TEXTS, strategy=shout, max_time=1)


@pytest.mark.exhaustive
def test_a_fast_stream_reports_more_tokens_at_a_time(monkeypatch):
    """Chunks grow while they take less than 50 ms, and shrink where they take longer."""
    settings = {"max_new_tokens": 16, "stop": Stop(eos_ids=()), "transform": digits_only}
    [[want]] = decoding_jax.generate(TABLE, Digits(), ["4"], **settings)
    for now, counts in (lambda: 0.0, [1, 2, 4, 8, 1]), (Watch().monotonic, [1] * 16):
        monkeypatch.setattr(streaming.time, "monotonic", now)
        pieces = list(decoding_jax.stream_text(TABLE, Digits(), ["4"], **settings))
        assert [len(piece) for piece in pieces if piece] == counts
        assert "".join(pieces) == want.text
    pieces = list(decoding_jax.stream_text(TABLE, Digits(), ["4"], chunk=5, **settings))
    assert [len(piece) for piece in pieces if piece] == [1, 5, 5, 5]
