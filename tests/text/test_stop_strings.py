"""Stop strings, compared with their definition: decode every beginning, and look for the string."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, VOCABULARY, Digits
from tokenizer_zoo import ZOO, zoo

import decoding_jax
from decoding_jax import GenerationConfig, Stop, infer, text
from decoding_jax.loop.stopping import ends_with_string
from decoding_jax.text.continuations import continuation
from decoding_jax.text.token_texts import concatenated

LENGTH = 14
TRIALS = 40
ends = jax.jit(ends_with_string)
TOGETHER = [name for name in ZOO if name != "end_of_word"]


def padded(strings):
    """The same strings with tables of one size, so that all tokenizers share a program."""

    def pad(array, *sizes, value=0):
        widths = [(0, size - old) for size, old in zip(sizes, array.shape, strict=True)]
        return np.pad(array, widths, constant_values=value)

    return dataclasses.replace(
        strings,
        token_class=pad(strings.token_class, 8200),
        first_class=pad(strings.first_class, 8200, value=-1),
        byte=None if strings.byte is None else pad(strings.byte, 8200, value=-1),
        transitions=pad(strings.transitions, 48, 512),
        matches=pad(strings.matches, 48, 512, 6),
        last_tokens=np.zeros(1, np.int32),
        chosen=pad(strings.chosen, *strings.chosen.shape[:-1], 6),
        window=24,
        max_ends=1,
        special=None if strings.special is None else pad(strings.special, 8200, value=-1),
    )


def random_tokens(rng, tokenizer, size):
    """Tokens of a few values, with pieces of real text among them."""
    real = tokenizer.pieces("the café ### 日本\n\nthe cats don't.")
    few = rng.integers(0, size, 6)
    new = np.where(rng.random(LENGTH) < 0.4, rng.integers(0, size, LENGTH), rng.choice(few, LENGTH))
    start = rng.integers(0, len(real))
    return [*new[: rng.integers(0, 5)].tolist(), *real[start:], *new.tolist()][:LENGTH]


def first_end(tokenizer, context, new, strings):
    """The definition: the number of tokens with which the text first contains a string, or 0."""
    for count in range(1, len(new) + 1):
        so_far = continuation(tokenizer, context, new[:count])
        if any(string in so_far for string in strings):
            return count
    return 0


@pytest.mark.parametrize("name", TOGETHER)
def test_every_tokenizer_ends_where_the_definition_does(name):
    tokenizer, size = zoo(name)
    rng = np.random.default_rng(1)
    lengths = np.arange(1, LENGTH + 1, dtype=np.int32)[None]
    found = 0
    for trial in range(TRIALS):
        context = tokenizer.pieces("the cat")[: trial % 2 * 9]
        new = random_tokens(rng, tokenizer, size)
        whole = continuation(tokenizer, context, new)
        starts = rng.integers(0, max(len(whole), 1), 3)
        strings = [whole[at : at + rng.integers(1, 7)] for at in starts]
        strings = [s for s in strings if s and "\ufffd" not in s] or ["###"]
        compiled = text.stop_strings(tokenizer, strings, size, begun=bool(context))
        tokens = np.broadcast_to(np.asarray(new, np.int32), (1, LENGTH, LENGTH))
        [got] = jax.device_get(ends(padded(compiled), tokens, lengths))
        got = int(got.argmax()) + 1 if got.any() else 0
        assert got == first_end(tokenizer, context, new, strings), (context, new, strings)
        found += got > 0
    assert found > TRIALS // 4


class Spelled(Digits):
    """Digits whose texts have several characters, or none."""

    words = ("", "ab", "b#", "#", "", "a", "##a")

    def decode(self, ids):
        return "".join(self.words[i] for i in ids)

    def token_texts(self, size):
        return concatenated([word.encode() for word in self.words[:size]])


CASES = {
    "greedy": {},
    "sample": {"num_samples": 4},
    "beam_search": {"beam_size": 3},
    "stochastic_beam_search": {"beam_size": 3},
    "constrained_beam_search": {
        "beam_size": 3,
        "constraints": decoding_jax.Constraints(phrases=((6, 5),)),
    },
    "best_k_search": {"k": 2, "budget": 12, "num_return": 2},
    "speculative_sample": {"drafter": TABLE, "num_draft_tokens": 3, "num_samples": 3},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "strategy",
    tiers.values(
        "greedy",
        exhaustive=["beam_search", "best_k_search", "speculative_sample"],
        release=["sample", "stochastic_beam_search", "constrained_beam_search"],
    ),
)
def test_texts_end_with_the_first_token_that_completes_a_string(strategy):
    """Each text has strings of its own, and none of them before its last token."""
    settings = {"strategy": strategy, "max_new_tokens": 7, "stop": Stop(eos_ids=())}
    settings |= CASES[strategy]
    if decoding_jax.registry.STRATEGIES[strategy].draws:
        settings["key"] = jax.random.key(3)
    strings = [["b#", "aa"], ["ba"], []]
    rows = decoding_jax.generate(
        TABLE, Spelled(), ["1 2 3", "4", "5 6"], stop_strings=strings, **settings
    )
    assert not any(c.finished for c in rows[2])
    assert any(c.finished for row in rows for c in row)
    for completion, of_row in itertools.chain.from_iterable(
        [(c, of_row) for c in row] for row, of_row in zip(rows, strings, strict=True)
    ):
        count = first_end(Spelled(), [], completion.tokens, of_row)
        assert completion.finished == (count > 0)
        assert count in (0, len(completion.tokens))
        assert completion.finished or strategy == "best_k_search" or len(completion.tokens) == 7


@pytest.mark.release
def test_a_beam_search_keeps_its_width_where_many_tokens_end_a_text():
    """At saturating width, the best texts are those of an exhaustive search."""
    settings = {"max_new_tokens": 2, "stop": Stop(eos_ids=()), "stop_strings": ["b", "##"]}
    [got] = decoding_jax.generate(
        TABLE, Spelled(), ["4"], strategy="beam_search", beam_size=36, **settings
    )
    compiled = {tuple(c.tokens): c.log_prob for c in got}
    whole = set()
    for new in itertools.product(range(VOCABULARY), repeat=2):
        count = first_end(Spelled(), [4], list(new), ["b", "##"])
        whole.add(new[: count or 2])
    assert set(compiled) == whole
    assert sum(np.exp(list(compiled.values()))) == pytest.approx(1, abs=1e-5)


@pytest.mark.release
def test_the_string_stays_and_a_minimum_holds():
    settings = {"max_new_tokens": 7, "strategy": "greedy"}
    texts = ["1 2 3", "4", "5 6"]
    long = decoding_jax.generate(TABLE, Spelled(), texts, stop=Stop(eos_ids=()), **settings)
    for row, [whole] in enumerate(long):
        string = whole.text[1:3]
        stop = Stop(eos_ids=(), strings=string)
        [cut] = decoding_jax.generate(TABLE, Spelled(), texts, stop=stop, **settings)[row]
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
        assert string in cut.text
    stop = Stop(eos_ids=(), strings="a", min_new_tokens=4)
    rows = decoding_jax.generate(TABLE, Spelled(), texts, stop=stop, **settings)
    assert min(len(row[0].tokens) for row in rows) >= 4


@pytest.mark.release
def test_a_config_and_a_stream_take_stop_strings():
    settings = {"max_new_tokens": 7, "eos_token_id": [], "stop_strings": ["b#"]}
    config = GenerationConfig(**settings)
    [[got]] = decoding_jax.generate(TABLE, Spelled(), ["4"], config=config)
    [[same]] = decoding_jax.generate(TABLE, Spelled(), ["4"], **settings)
    pieces = decoding_jax.stream_text(TABLE, Spelled(), ["4"], config=config)
    assert "".join(pieces) == got.text == same.text
    assert pieces.output[0][0].tokens == got.tokens


@pytest.mark.release
def test_the_batch_job_takes_stop_strings(tmp_path):
    (tmp_path / "inputs.txt").write_text("1 2 3\n4\n5 6\n")
    made = []
    infer.run(
        (TABLE, Spelled()),
        infer.TextLines(tmp_path / "inputs.txt"),
        functools.partial(decoding_jax.greedy, max_new_tokens=7),
        report=made.append,
        stop=Stop(eos_ids=(), strings=["b#", "aa"]),
        max_input_length=16,
    )
    want = decoding_jax.generate(
        TABLE,
        Spelled(),
        ["1 2 3", "4", "5 6"],
        stop=Stop(eos_ids=()),
        stop_strings=["b#", "aa"],
        max_new_tokens=7,
    )
    assert [r["outputs"][0]["text"] for r in made] == [row[0].text for row in want]
    with pytest.raises(
        ValueError, match=r"stop\.strings: expected one list .*, got a list of lists"
    ):
        infer.run(
            (TABLE, Spelled()),
            infer.TextLines(tmp_path / "inputs.txt"),
            functools.partial(decoding_jax.greedy, max_new_tokens=7),
            report=made.append,
            stop=Stop(strings=[["a"], ["b"], []]),
        )


SPECIAL = ["byte_level", "llama", "metaspace"]


@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_token_that_is_a_stop_string_ends_a_text(name):
    """Beside a row without it, in whose text the token changes nothing."""
    tokenizer, size = zoo(name)
    rng = np.random.default_rng(2)
    lengths = np.arange(1, LENGTH + 1, dtype=np.int32)
    for trial in range(TRIALS // 2):
        context = tokenizer.pieces("the cat")[: trial % 2 * 9]
        new = np.asarray(random_tokens(rng, tokenizer, size), np.int32)
        new[rng.integers(0, LENGTH, 2)] = 0
        new[0] = 0 if trial % 4 > 1 else new[0]
        whole = continuation(tokenizer, context, new.tolist()).replace("\ufffd", "") or "###"
        start = rng.integers(0, len(whole))
        other = whole[start : start + 4]
        strings = [["<end>", other], [other]]
        compiled = text.stop_strings(tokenizer, strings, size, begun=[bool(context)] * 2)
        tokens = np.broadcast_to(new, (2, LENGTH, LENGTH))
        got = jax.device_get(ends(padded(compiled), tokens, np.stack([lengths] * 2)))
        got = [int(row.argmax()) + 1 if row.any() else LENGTH + 1 for row in got]
        of_text = first_end(tokenizer, context, new.tolist(), [other]) or LENGTH + 1
        of_token = new.tolist().index(0) + 1
        assert got == [min(of_text, of_token), of_text], (context, new, other)


class Marked(Spelled):
    """One of the tokens without text is special."""

    def token_texts(self, size):
        return super().token_texts(size)._replace(special={4: b"<end>"})


@pytest.mark.release
def test_calls_streams_and_jobs_end_with_a_special_token(tmp_path):
    texts, settings = ["1 2 3", "4", "5 6"], {"max_new_tokens": 7, "strategy": "greedy"}
    stop = Stop(eos_ids=())
    marked = {"stop": stop, "stop_strings": "<end>", **settings}
    whole = decoding_jax.generate(TABLE, Marked(), texts, stop=stop, **settings)
    want = [row[0].tokens for row in whole]
    want = [ids[: ids.index(4) + 1] if 4 in ids else ids for ids in want]
    assert any(4 in ids for ids in want)
    rows = decoding_jax.generate(TABLE, Marked(), texts, **marked)
    assert [row[0].tokens for row in rows] == want
    assert [row[0].finished for row in rows] == [ids[-1] == 4 for ids in want]
    pieces = decoding_jax.stream_text(TABLE, Marked(), texts, **marked)
    list(pieces)
    assert [row[0].tokens for row in pieces.output] == want
    (tmp_path / "inputs.txt").write_text("\n".join(texts))
    made = []
    infer.run(
        (TABLE, Marked()),
        infer.TextLines(tmp_path / "inputs.txt"),
        functools.partial(decoding_jax.greedy, max_new_tokens=7),
        report=made.append,
        stop=Stop(eos_ids=(), strings=["<end>"]),
        max_input_length=16,
    )
    rows = decoding_jax.generate(
        TABLE, Marked(), texts, stop=stop, stop_strings="<end>", max_new_tokens=7, strategy="greedy"
    )
    assert [r["outputs"][0]["text"] for r in made] == [row[0].text for row in rows]
    assert [r["outputs"][0]["finished"] for r in made] == [row[0].finished for row in rows]


@pytest.mark.parametrize(
    ("strings", "words"),
    [
        ("", "stop_strings: expected a string, .*, got ''"),
        ([["a"], 3], "stop_strings: expected .*, got 3"),
        (["\ufffd"], "stop_strings: expected a string, .*, got '.'"),
        (5, "stop_strings: expected a string, .*, got 5"),
        (
            [["a"], ["b"]],
            "stop_strings: expected one list for all texts, or one for each of .*, got lists for 2",
        ),
    ],
)
def test_mistakes_are_one_line(strings, words):
    with pytest.raises(ValueError, match=words):
        decoding_jax.generate(TABLE, Spelled(), ["1"], stop_strings=strings)


def test_tokenizers_that_cannot_say_their_texts_are_refused():
    with pytest.raises(ValueError, match="got a Digits without token_texts"):
        decoding_jax.generate(TABLE, Digits(), ["1"], stop_strings="2")
    tokenizer, size = zoo("end_of_word")
    with pytest.raises(ValueError, match="with the decoder BPEDecoder"):
        text.stop_strings(tokenizer, "cat", size)
    prompt = decoding_jax.Prompt(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
    with pytest.raises(
        ValueError, match=r"stop.strings: expected the result of .*strings, .*, got 'a'"
    ):
        decoding_jax.greedy(TABLE, prompt, max_new_tokens=2, stop=Stop(strings="a"))
    with pytest.raises(ValueError, match=r"stop_strings: expected none beside stop.strings"):
        decoding_jax.generate(TABLE, Spelled(), ["1"], stop=Stop(strings="a"), stop_strings="b")
