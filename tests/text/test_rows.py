"""Settings with one value for each text follow their texts through sorting, batches and padding."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
import tiers
from examples import ENDS, PHRASES, TRANSFORMS, each, made
from text_fakes import TABLE, VOCABULARY, Digits

import decoding_jax
from decoding_jax import (
    Constraints,
    GNMTPenalty,
    PowerPenalty,
    Prompt,
    Stop,
    rows,
    transforms,
)
from decoding_jax.loop.stopping import StopStrings
from decoding_jax.models import guided
from decoding_jax.strategies.speculative import (
    Bigram,
    Corpus,
    NextToken,
    PromptLookup,
    SuffixDrafter,
)
from decoding_jax.text.tokenizers import ByteTokenizer

# Of five lengths, neither ascending nor descending: sorting moves every text but one.
TEXTS = ["1 2 3", "4", "5 6 1 2 3 4 5", "2 2", "6 5 4 3"]
COUNT = len(TEXTS)
TOKENIZER = Digits()


SOURCE = Prompt(each([1, 2, 3], [4, 4, 5], [6, 1, 0], [2, 3, 0], [5, 0, 0]), each(3, 3, 2, 2, 1))
BIAS = TRANSFORMS["logit_bias"].per_text["bias"]
CORPUS = Corpus.of([[1] * COUNT], padded_size=COUNT)

# Every class of settings, with a value for each text wherever it takes one.
PER_TEXT = {
    **{name: made(name, example.per_text) for name, example in TRANSFORMS.items()},
    "logit_bias of some tokens": transforms.logit_bias({1: each(1.0, 2, 3, -4, 5), 2: 1.0}),
    "an automaton": transforms.prefix_allowed_tokens(
        transforms.Automaton([[1] * VOCABULARY] * COUNT), start=each(0, 1, 4, 2, 3)
    ),
    "stop": Stop(ENDS, PHRASES, each(0, 1, 2, 0, 1), each(3, 4, 0, 5, 2)),
    "constraints": Constraints(PHRASES, PHRASES[:, None]),
    "power penalty": PowerPenalty(each(0, 1, 0.5, 2, 0.1)),
    "GNMT penalty": GNMTPenalty(each(0, 1, 0.5, 2, 0.1)),
    "prompt lookup": PromptLookup(source=SOURCE),
    "no prompt lookup source": PromptLookup(),
    "suffix": SuffixDrafter(source=SOURCE, corpus=CORPUS),
    "corpus": CORPUS,
    "bigram": Bigram(np.zeros((COUNT, COUNT))),
    "next token": NextToken(np.zeros(COUNT, int)),
}
SHARED = {name: example.shared for name, example in TRANSFORMS.items()}
SHARED |= {
    "suffix": 4,
    "corpus": 4,
    "bigram": 1,
    "next token": 1,
    "an automaton": 1,
    "logit_bias of some tokens": 1,
}


def of_text(settings, i):
    """The values of ``settings`` for text i, written by hand."""

    def pick(leaf):
        return leaf[i] if np.ndim(leaf) and len(leaf) == COUNT else leaf

    return jax.tree.map(pick, settings)


@pytest.mark.parametrize("name", PER_TEXT)
def test_every_setting_with_a_row_axis_is_taken_by_rows(name):
    order = [3, 0, 0, 4]
    [taken] = rows.take_rows({name: PER_TEXT[name]}, order, COUNT).values()
    changed = 0
    for old, new in zip(jax.tree.leaves(PER_TEXT[name]), jax.tree.leaves(taken), strict=True):
        if new is not old:
            np.testing.assert_array_equal(new, np.asarray(old)[order])
            changed += 1
    assert changed == len(jax.tree.leaves(PER_TEXT[name])) - SHARED.get(name, 0)
    assert jax.tree.structure(taken) == jax.tree.structure(PER_TEXT[name])


def test_every_array_of_a_settings_class_declares_its_axes():
    classes = {type(value) for value in PER_TEXT.values()}
    classes |= {getattr(transforms, name) for name in transforms.__all__ if name[0].isupper()}
    classes |= {StopStrings}
    nested = ("language", "strings")  # settings that declare their own fields
    for cls in classes - {transforms.Chain}:
        for field in dataclasses.fields(cls):
            declared = field.metadata.keys() & {"static", "shared_axes"}
            assert declared or field.name in nested, f"{cls.__name__}.{field.name}"


def test_values_for_all_texts_are_unchanged():
    given = {
        "transform": transforms.chain(transforms.temperature(0.5), transforms.logit_bias(BIAS[0])),
        "stop": Stop(eos_ids=(1, 2, 3, 4, 5), sequences=((1, 2), (3,))),
        "drafter": TABLE,
        "num_samples": 3,
        "key": None,
    }
    taken = rows.take_rows(given, [0, 0], COUNT)
    for old, new in zip(jax.tree.leaves(given), jax.tree.leaves(taken), strict=True):
        assert new is old


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"transform": transforms.chain(transforms.top_p([0.5, 0.6]))},
            r"transform.transforms\[0\].p: expected one value for all, or one for each of the 5 "
            "texts, got values for 2",
        ),
        (
            {"stop": Stop(max_new_tokens=[1] * 6)},
            r"stop\.max_new_tokens: expected one value for all, or one for",
        ),
        ({"gamma": [0.5, 0.6]}, "gamma: expected one value for all, or one for each of the 5"),
        (
            {"transform": transforms.logit_bias({3: each(1.0, 2)})},
            r"transform\.bias\[3\]: expected one value for all, or one for",
        ),
        (
            {"drafter": PromptLookup(source=Prompt(*(x[:3] for x in SOURCE)))},
            r"drafter\.source: expected one value for all, or one for each",
        ),
        (
            {"other": np.zeros((COUNT, 2))},
            "other: expected a field that is declared with shared_axes, got",
        ),
    ],
)
def test_another_number_of_values_than_texts_is_refused_by_name(given, words):
    arguments = rows.row_arguments(decoding_jax.BestKSearch)
    with pytest.raises(ValueError, match=words):
        rows.take_rows(given, [0], COUNT, arguments)


def test_your_own_class_declares_its_row_axes():
    @decoding_jax.pytree
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        factor: object = dataclasses.field(metadata={"shared_axes": 0})
        table: object = dataclasses.field(metadata={"shared_axes": None})

    table = np.zeros(COUNT)
    taken = rows.take_rows({"transform": Scaled(each(1, 2, 3, 4, 5), table)}, [4, 1], COUNT)
    assert taken["transform"].factor.tolist() == [5, 2]
    assert taken["transform"].table is table


def test_a_strategy_is_given_the_values_of_its_texts():
    seen = []

    def look(model, prompt, *, stop, transform, max_new_tokens):
        for row, length in enumerate(prompt.length):
            text = prompt.tokens[row, : int(length)].tolist()
            seen.append((text, transform.value[row], stop.max_new_tokens[row]))
        none = np.zeros((prompt.length.shape[0], 1), np.int32)
        return decoding_jax.DecodeOutput(none[..., None], none, none, none, none)

    values, limits = [0, 5, 6], [1, 2, 3]
    settings = {
        "transform": transforms.temperature(values),
        "stop": Stop(max_new_tokens=limits),
    }
    texts = ["Stop!", "Where is the station?", "I was invited to the party last night."]
    tokenizer = ByteTokenizer()
    methods = {"prefill": None, "extend": None}
    attributes = {"vocab_size": 259, "max_positions": None, "ragged": True, "tree": True}
    model = types.SimpleNamespace(**methods, **attributes)
    ids = [tuple(tokenizer.encode(text)) for text in texts]
    want = dict(zip(ids, zip(values, limits, strict=True), strict=True))
    for batch_size in (1, 2, 16):
        decoding_jax.generate(
            model, tokenizer, texts, strategy=look, batch_size=batch_size, **settings
        )
    assert len(seen) >= 9
    for text, value, limit in seen:
        assert want[tuple(text)] == (value, limit)


CHOSEN = ("logit_bias", "temperature", "top_p", "thinking_budget")
SOME = transforms.chain(*(PER_TEXT[name] for name in CHOSEN))
CHAIN = transforms.chain(*(PER_TEXT[name] for name in TRANSFORMS if "allowed" not in name))
LIMITS = Stop(eos_ids=ENDS, max_new_tokens=each(3, 4, 5, 0, 2))
STRATEGIES = {
    "greedy": {"transform": PER_TEXT["presence_penalty"]},
    "sample": {"num_samples": 3, "transform": SOME},
    "sample, every transform": {"num_samples": 3, "transform": CHAIN},
    "constrained_beam_search": {
        "beam_size": 4,
        "constraints": Constraints(PHRASES),
        "length_penalty": each(0, 1, 0.5, 2, 0.1),
    },
    "best_k_search": {"k": 2, "budget": 9, "gamma": each(0, 0.1, 0.2, 0.05, 0.3)},
    "speculative_sample": {
        "drafter": PromptLookup(source=SOURCE),
        "num_draft_tokens": 2,
        "transform": PER_TEXT["temperature"],
    },
}


# Each takes its rows by the declarations of its settings, which the tests above are about.
MORE = ("constrained_beam_search", "best_k_search", "speculative_sample")
RELEASE = ("sample, every transform",)


@pytest.mark.parametrize("case", tiers.of_table(STRATEGIES, exhaustive=MORE, release=RELEASE))
def test_batches_give_what_each_text_gives_by_itself(case):
    """Shuffled texts in batches of 2 give the result of two copies of one text with its values.

    Greedy decoding has a last batch of one text too, whose program others are spared.
    """
    strategy = case.partition(",")[0]
    entry = decoding_jax.registry.STRATEGIES[strategy]
    settings = {"stop": LIMITS, **STRATEGIES[case]}
    keys = jax.random.split(jax.random.key(0), COUNT)
    fixed = {"strategy": strategy, "batch_size": 2, "max_new_tokens": 5}
    run = functools.partial(decoding_jax.generate, TABLE, TOKENIZER, **fixed)
    texts = TEXTS if case == "greedy" else TEXTS[:4]
    order, of_row = range(len(texts)), rows.row_arguments(entry.strategy)
    together = rows.take_rows(settings, order, COUNT, of_row)
    got = run(texts, key=keys[: len(texts)] if entry.draws else None, **together)
    for i, text in enumerate(texts):
        alone = rows.take_rows(settings, [i, i], COUNT, of_row)
        pair = run([text, text], key=keys[np.array([i, i])] if entry.draws else None, **alone)
        for want in pair:
            assert [c.tokens for c in got[i]] == [c.tokens for c in want]
            assert [c.finished for c in got[i]] == [c.finished for c in want]
            scores = [c.score for c in got[i]]
            assert scores == pytest.approx([c.score for c in want], abs=1e-5)


def test_a_stream_gives_each_text_its_own_values():
    settings = {"stop": LIMITS, "max_new_tokens": 5, **STRATEGIES["greedy"]}
    want = decoding_jax.generate(TABLE, TOKENIZER, TEXTS, batch_size=2, **settings)
    *_, last = decoding_jax.stream(TABLE, TOKENIZER, TEXTS, chunk=5, **settings)
    assert [[c.tokens for c in row] for row in last] == [[c.tokens for c in row] for row in want]
    assert [len(row[0].tokens) if row else 0 for row in last] != [5] * COUNT


@pytest.mark.exhaustive
def test_models_with_a_value_for_each_text_follow_their_texts():
    """A batch of two texts, in the order of their lengths, has the prompts of these texts."""
    texts = TEXTS[:4]  # of two batches that share a program
    scale, negative = each(0.5, 1.5, 2, 1), [[1], [2, 3], [4], [5, 1, 2]]
    settings = {"strategy": "sample", "num_samples": 2, "max_new_tokens": 4}
    keys = jax.random.split(jax.random.key(0), len(texts))

    def run(model, texts, key, **changes):
        rows = decoding_jax.generate(model, TOKENIZER, texts, key=key, **settings, **changes)
        return [[completion.tokens for completion in row] for row in rows]

    got = run(guided(TABLE, scale, negative), texts, keys, batch_size=2)
    for i, text in enumerate(texts):
        alone = guided(TABLE, scale[i], negative[i])
        assert run(alone, [text], keys[i : i + 1]) == [got[i]]
    with pytest.raises(ValueError, match=r"model.negative.*: expected one value for all, or"):
        run(guided(TABLE, 2, negative[:3]), texts, keys)
