"""``stream_text``: pieces are final, and joined they are the texts of ``generate``."""

import asyncio
import io
import threading

import jax
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, Digits, Halves
from tokenizer_zoo import ZOO, zoo

import decoding_jax
from decoding_jax import Stop, stream_text, transforms
from decoding_jax.text import Piece, TextStreamer
from decoding_jax.text.continuations import GrowingText, continuation

TEXTS = ["1 2 3", "4"]
NO_ENDS = Stop(eos_ids=())


def random_tokens(rng, size, count):
    """Tokens of a few values, so that runs of bytes and characters occur."""
    few = rng.integers(0, size, 6)
    return np.where(rng.random(count) < 0.5, rng.integers(0, size, count), rng.choice(few, count))


@pytest.mark.parametrize("name", ZOO)
def test_pieces_are_final_with_any_tokenizer(name):
    """Random tokens, after a prompt or after none, and the characters of real text."""
    tokenizer, size = zoo(name)
    rng = np.random.default_rng(0)
    real = tokenizer.pieces("the café ### 日本\n\nthe cats don't.")
    for trial in range(60):
        context = random_tokens(rng, size, trial % 3).tolist()
        new = random_tokens(rng, size, 12).tolist()
        if trial % 2:
            start = rng.integers(0, len(real))
            new = [*new[: trial % 5], *real[start : start + 12], *new[5:7]]
        text = GrowingText(tokenizer, context)
        pieces = [text.grow(new[:count]) for count in range(len(new) + 1)]
        whole = continuation(tokenizer, context, new)
        pieces.append(text.close(whole))
        assert "".join(pieces) == whole
        for count in range(len(new) + 1):  # Each beginning is a beginning of every longer text.
            settled = "".join(pieces[: count + 1])
            other = new[:count] + random_tokens(rng, size, 3).tolist()
            assert continuation(tokenizer, context, other).startswith(settled)


@pytest.mark.parametrize("name", ["bytes", "byte_level", "pieces", "metaspace", "words"])
def test_little_is_held_back(name):
    """All but an incomplete character is given out with its last token."""
    tokenizer, _ = zoo(name)
    tokens = tokenizer.pieces("the cat , the cat")
    text = GrowingText(tokenizer, [])
    for count in range(1, len(tokens) + 1):
        text.grow(tokens[:count])
        assert text.given == tokenizer.decode(tokens[:count])


CASES = {
    "greedy": {},
    "sample": {"num_samples": 2, "key": jax.random.key(0)},
    "beam_search": {"beam_size": 3},
    "stochastic_beam_search": {"beam_size": 2, "key": jax.random.key(1)},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2, "diversity_penalty": 0.5},
    "constrained_beam_search": {
        "beam_size": 3,
        "constraints": decoding_jax.Constraints(phrases=((2, 5),)),
    },
    "best_k_search": {"k": 2, "budget": 12, "num_return": 2},
    "contrastive_search": {"penalty_alpha": 0.6, "top_k": 3},
    "speculative_sample": {"drafter": TABLE, "num_draft_tokens": 2, "key": jax.random.key(2)},
}


@pytest.mark.parametrize(
    "strategy",
    tiers.values(
        "greedy",
        exhaustive=["beam_search", "speculative_sample"],
        release=[
            *("sample", "best_k_search"),
            *("stochastic_beam_search", "diverse_beam_search", "constrained_beam_search"),
            "contrastive_search",
        ],
    ),
)
def test_joined_pieces_are_the_texts_of_generate(strategy):
    settings = {"strategy": strategy, "max_new_tokens": 6, **CASES[strategy]}
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, **settings)
    stream = stream_text(TABLE, Digits(), TEXTS, **settings)
    joined, ended = {}, []
    for piece in stream:
        place = (piece.row, piece.sample)
        assert place not in ended
        joined[place] = joined.get(place, "") + piece
        ended += [place] * piece.last
    texts = {(b, n): c.text for b, row in enumerate(want) for n, c in enumerate(row)}
    assert joined == texts
    assert sorted(ended) == sorted(texts)
    assert [[c.tokens for c in row] for row in stream.output] == [
        [c.tokens for c in row] for row in want
    ]


@pytest.mark.parametrize(
    "strategy",
    tiers.values(
        "beam_search",
        exhaustive=["stochastic_beam_search"],
        release=["diverse_beam_search", "constrained_beam_search"],
    ),
)
def test_a_search_says_as_soon_as_possible_what_its_hypotheses_share(strategy):
    """Only one token may follow each of the first three, so the first ones are shared."""
    allowed = transforms.prefix_allowed_tokens(
        transforms.Trie.from_sequences([(3, 2, 5, a, b) for a in (1, 4) for b in (2, 5, 6)])
    )
    settings = {"strategy": strategy, "max_new_tokens": 5, "transform": allowed, **CASES[strategy]}
    pieces = stream_text(TABLE, Digits(), ["4"], stop=NO_ENDS, chunk=1, **settings)
    first = [piece for piece in pieces if piece.sample == 0]
    assert first[:3] == ["3", "2", "5"]
    assert "".join(first) == pieces.output[0][0].text


def test_half_characters_wait():
    real = transforms.allowed_tokens(range(1, 7))
    settings = {"max_new_tokens": 5, "stop": NO_ENDS, "transform": real}
    pieces = list(stream_text(TABLE, Halves(), ["4"], chunk=1, **settings))
    assert [len(piece) for piece in pieces] == [1, 1, 1]
    assert pieces[-1] == "\ufffd"
    assert pieces[-1].last


class Fickle(Digits):
    """A tokenizer whose text changes as it grows."""

    def decode(self, ids):
        return super().decode(ids)[::-1]


def test_a_tokenizer_that_changes_its_text_is_named_at_the_end():
    pieces = stream_text(TABLE, Fickle(), ["4"], max_new_tokens=5, stop=NO_ENDS)
    with pytest.raises(
        ValueError, match=r"tokenizer: expected one .*, got a Fickle that changed '\d' to"
    ):
        list(pieces)
    assert len(pieces.output[0][0].tokens) == 5


def test_printing_of_one_and_of_several(capsys):
    settings = {"max_new_tokens": 5, "stop": NO_ENDS}
    [[only]] = stream_text(TABLE, Digits(), ["4"], **settings).print()
    assert capsys.readouterr().out == only.text + "\n"
    file = io.StringIO()
    rows = stream_text(TABLE, Digits(), TEXTS, **settings).print(file)
    lines = [f"[{b}.0] {row[0].text}\n" for b, row in enumerate(rows)]
    assert file.getvalue() == "".join(lines)


def test_one_completion_grows_on_the_screen_while_others_wait():
    file = io.StringIO()
    streamer = TextStreamer(file, labels=True)
    streamer.put(Piece("a"))
    for sample in (2, 1):
        streamer.put(Piece("b", 0, sample))
    streamer.put(Piece("c", 0, 1, last=True))
    assert file.getvalue() == "[0.0] a"
    streamer.put(Piece("", last=True))
    assert file.getvalue() == "[0.0] a\n[0.1] bc\n[0.2] b"
    streamer.end()
    streamer.end()
    assert file.getvalue().endswith("b\n")


class Collected:
    """A streamer that keeps what it is given."""

    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        self.values.append(value)

    def end(self):
        self.ended += 1


@pytest.mark.exhaustive
def test_the_tokens_of_a_search_have_the_prompt_once():
    settings = {"strategy": "beam_search", "beam_size": 3, "num_return": 1, "max_new_tokens": 5}
    tokens = Collected()
    [[got]] = stream_text(TABLE, Digits(), ["1 2"], stop=NO_ENDS, **settings).to(
        tokens, tokens=True
    )
    prompt, *new = tokens.values
    assert prompt.tolist() == [[1, 2]]
    assert np.concatenate(new).tolist() == got.tokens


def test_streamers_of_pieces_and_of_tokens():
    settings = {"max_new_tokens": 5, "stop": NO_ENDS}
    pieces, tokens = Collected(), Collected()
    [[want]] = stream_text(TABLE, Digits(), ["1 2"], **settings).to(pieces)
    assert "".join(pieces.values) == want.text
    [[got]] = stream_text(TABLE, Digits(), ["1 2"], **settings).to(tokens, tokens=True)
    prompt, *new = tokens.values
    assert prompt.tolist() == [[1, 2]]
    assert np.concatenate(new).tolist() == got.tokens == want.tokens
    assert (pieces.ended, tokens.ended) == (1, 1)
    with pytest.raises(ValueError, match="tokens: expected one completion, got 2"):
        stream_text(TABLE, Digits(), TEXTS, **settings).to(tokens, tokens=True)
    with pytest.raises(
        ValueError, match=r"streamer: expected an object with put\(value\) and end\(\), got "
    ):
        stream_text(TABLE, Digits(), ["1"], **settings).to(print)


def test_the_event_loop_goes_on_while_a_step_computes():
    """What is computed in another thread waits until the event loop has turned once more."""
    turned, waits = threading.Event(), 0

    class Waiting(Digits):
        def decode(self, tokens):
            nonlocal waits
            if threading.current_thread() is not threading.main_thread():
                turned.clear()
                assert turned.wait(60), "the event loop is blocked"
                waits += 1
            return super().decode(tokens)

    async def read():
        async def turn():
            while True:
                turned.set()
                await asyncio.sleep(0)

        other = asyncio.create_task(turn())
        stream = stream_text(TABLE, Waiting(), ["4"], max_new_tokens=5, stop=NO_ENDS)
        pieces = [piece async for piece in stream]
        other.cancel()
        return pieces, stream.output

    pieces, [[completion]] = asyncio.run(read())
    assert "".join(pieces) == completion.text
    assert waits >= len(pieces) > 1


def test_mistakes_are_refused_at_once():
    with pytest.raises(ValueError, match=r"strategy: expected one of .*, got 'bream_search'"):
        stream_text(TABLE, Digits(), TEXTS, strategy="bream_search")
    with pytest.raises(ValueError, match="texts: expected one string or more, got none"):
        stream_text(TABLE, Digits(), [])
