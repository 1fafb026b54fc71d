"""A text before every input: tokens at the seam, ``generate``, streams and errors."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import tiers
from networks import drawn

import decoding_jax
from decoding_jax.models import GPT2, T5, GPT2Config, T5Config
from decoding_jax.text import share_prefix
from decoding_jax.text.shared_prefix import with_common_prefix

CONFIG = GPT2Config(vocab_size=64, emb_dim=16, num_heads=2, mlp_dim=16, num_layers=2)
PREFIX = "say: yes. say: no. say: "
TEXTS = ["maybe", "x", "well then"]


class Words:
    """A start token and one token for each letter, where a space joins what follows it."""

    eos_ids = (63,)

    def encode(self, text: str) -> list[int]:
        ids = [0]
        for before, letter in zip(" " + text, text, strict=False):
            if before == " " and letter != " " and len(ids) > 1:
                ids[-1] = 32 + ord(letter) % 31  # in place of the space
            else:
                ids.append(1 + ord(letter) % 31)
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + i % 26) for i in ids)


MODEL = drawn(GPT2, CONFIG, spread=0.3)


def same(ours: Any, theirs: Any) -> None:
    for our_row, their_row in zip(ours, theirs, strict=True):
        for x, y in zip(our_row, their_row, strict=True):
            assert (x.text, x.tokens) == (y.text, y.tokens)
            assert abs(x.log_prob - y.log_prob) < 1e-4


def test_tokens_are_those_of_the_whole_text() -> None:
    plain = Words()
    model, tokenizer = share_prefix((MODEL, plain), PREFIX)
    # The space at the end is joined to the first letter of an input, and is not shared.
    assert model.tokens.tolist() == plain.encode(PREFIX)[:-1]
    assert [tokenizer.encode(x) for x in TEXTS] == [plain.encode(PREFIX + x) for x in TEXTS]


@pytest.mark.release
def test_generate_gives_what_whole_texts_give() -> None:
    plain = Words()
    model, tokenizer = share_prefix((MODEL, plain), PREFIX)
    settings = {"max_new_tokens": 5}
    whole = decoding_jax.generate(MODEL, plain, [PREFIX + x for x in TEXTS], **settings)
    same(decoding_jax.generate(model, tokenizer, TEXTS, **settings), whole)


@pytest.mark.release
@pytest.mark.parametrize(
    "settings",
    tiers.values(
        exhaustive=[{"strategy": "sample", "num_samples": 2, "with_scores": 2}],
        release=[
            {
                "strategy": "speculative_sample",
                "drafter": MODEL.early_exit(1),
                "num_draft_tokens": 2,
            }
        ],
    ),
    ids=lambda settings: settings["strategy"],
)
def test_samples_streams_and_drafts_give_what_whole_texts_give(settings: dict[str, Any]) -> None:
    plain = Words()
    model, tokenizer = share_prefix((MODEL, plain), PREFIX)
    whole = [PREFIX + x for x in TEXTS]
    settings = {**settings, "max_new_tokens": 5, "key": jax.random.key(1)}
    expected = decoding_jax.generate(MODEL, plain, whole, **settings)
    same(decoding_jax.generate(model, tokenizer, TEXTS, **settings), expected)
    *_, last = decoding_jax.stream(model, tokenizer, TEXTS, **settings)
    same(last, expected)


def test_what_texts_have_in_common_is_found() -> None:
    ids = [[5] * 70 + [1, 2], [5] * 70 + [3], [5] * 80]
    assert with_common_prefix(MODEL, ids).tokens.tolist() == [5] * 64
    assert with_common_prefix(MODEL, [[5] * 64, [5] * 70]) is MODEL  # leaves each text a token
    assert with_common_prefix(MODEL, ids[:1]) is MODEL
    assert with_common_prefix(MODEL, [*ids, [1]]) is MODEL
    with pytest.raises(ValueError, match="share_prefix: expected True or False, got 'text'"):
        with_common_prefix(MODEL, ids, "text")
    with pytest.raises(
        ValueError, match=r"model: expected a decoder-only model of decoding_jax.models"
    ):
        with_common_prefix(T5({}, T5Config(9, 8, 2, 4, 8, 1, 1)), ids)


@pytest.mark.release
def test_calls_that_share_what_they_find_decode_the_same() -> None:
    texts = [PREFIX * 5 + x for x in TEXTS]
    assert with_common_prefix(MODEL, [Words().encode(x) for x in texts]).tokens.shape == (64,)
    expected = decoding_jax.generate(MODEL, Words(), texts, max_new_tokens=5)
    settings = {"max_new_tokens": 5, "share_prefix": True}
    same(decoding_jax.generate(MODEL, Words(), texts, **settings), expected)
    chosen = decoding_jax.generate(MODEL, Words(), texts, do_sample=False, **settings)
    same(chosen, expected)
    *_, last = decoding_jax.stream(MODEL, Words(), texts, **settings)
    same(last, expected)
    pieces = decoding_jax.stream_text(MODEL, Words(), texts, **settings)
    assert list(pieces)
    same(pieces.output, expected)


def test_a_file_holds_the_text(tmp_path: Any) -> None:
    path = tmp_path / "examples.txt"
    path.write_text(PREFIX, encoding="utf-8")
    model, _ = share_prefix((MODEL, Words()), file=path)
    assert model.tokens.tolist() == Words().encode(PREFIX)[:-1]


class Crossing(Words):
    """A tokenizer with a token for a whole text."""

    def encode(self, text: str) -> list[int]:
        return [40] if text.endswith("q") else super().encode(text)


def test_what_cannot_be_shared_is_refused(tmp_path: Any) -> None:
    pair = MODEL, Words()
    _, tokenizer = shared = share_prefix((MODEL, Crossing()), PREFIX)
    t5 = T5({}, T5Config(9, 8, 2, 4, 8, 1, 1))
    for call, message in (
        (
            lambda: share_prefix(MODEL, PREFIX),
            "model: expected a model and its tokenizer, as decoding_jax.load returns them, got a G",
        ),
        (lambda: share_prefix(pair), "text: expected a text or a file, got neither or both"),
        (
            lambda: share_prefix(pair, PREFIX, tmp_path / "x"),
            "text: expected a text or a file, got neither or both",
        ),
        (lambda: share_prefix(pair, ""), "text: expected a text that is not empty, got ''"),
        (
            lambda: share_prefix((t5, Words()), PREFIX),
            "model: expected a decoder-only model of decoding_jax.models with a shared prefix",
        ),
        (lambda: share_prefix(shared, PREFIX), "model: expected one without a shared prefix"),
        (lambda: tokenizer.encode("q"), "got an input, 'q', that changes the 20 shared"),
        (
            lambda: tokenizer.encode(""),
            "text: expected a text with a token after the prefix, got ''",
        ),
        (
            lambda: decoding_jax.generate(shared[0], Words(), ["hello"]),
            "got a text at index 0 that does not begin with the 20 tokens",
        ),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)
        assert "\n" not in str(error.value)
