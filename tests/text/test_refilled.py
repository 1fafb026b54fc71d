"""``generate`` with many texts for each row: a text has the result that it has in any batch."""

import jax
import numpy as np
import pytest
import tiers
from networks import fixture
from same_texts import check_equal
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import Stop, transforms
from decoding_jax.batches import RowDecoder, refilled
from decoding_jax.text import call

COUNT = 37
DRAWN = np.random.default_rng(0)
TEXTS = np.array([" ".join(map(str, DRAWN.integers(1, 7, 1 + i % 5))) for i in range(COUNT)])
PENALTIES = DRAWN.uniform(0.5, 1.5, COUNT).astype(np.float32)
LIMITS = DRAWN.integers(1, 12, COUNT)
STRATEGIES = {
    "greedy": {},
    "sample": {"num_samples": 3},
    "arithmetic_sample": {"num_samples": 3},
    "beam_search": {"beam_size": 3, "length_penalty": PENALTIES},
    "contrastive_search": {"penalty_alpha": PENALTIES / 2, "top_k": 3},
    "best_k_search": {"k": 2, "budget": 8, "num_return": 2},
    "speculative_sample": {"drafter": TABLE, "num_draft_tokens": 2},
}
every = pytest.mark.parametrize(
    "name",
    tiers.values(
        "sample",
        exhaustive=["beam_search", "speculative_sample"],
        release=["greedy", "arithmetic_sample", "contrastive_search", "best_k_search"],
    ),
)


@pytest.fixture
def run(monkeypatch):
    """Decodes some texts, each with its own key, penalty and limit."""

    def run(name, order=range(COUNT), *, refill=True, seed=3, scale=1.0, limits=LIMITS):
        order = np.asarray(order)
        monkeypatch.setattr(call, "_REFILLED", 4 if refill else COUNT)
        penalties = scale * PENALTIES[order]
        of_texts = {"transform": transforms.repetition_penalty(penalties)}
        for key, value in STRATEGIES[name].items():
            of_texts[key] = value[order] if isinstance(value, np.ndarray) else value
        if name == "best_k_search":
            del of_texts["transform"]
        if decoding_jax.registry.STRATEGIES[name].draws:
            of_texts["key"] = jax.random.split(jax.random.key(seed), COUNT)[order]
        return decoding_jax.generate(
            TABLE,
            Digits(),
            TEXTS[order].tolist(),
            strategy=name,
            stop=Stop(max_new_tokens=limits[order]),
            batch_size=8,
            **of_texts,
        )

    return run


def without_draft_calls(rows):
    """The completions; an iteration of all rows drafts for the one that needs most."""
    if "draft_calls" not in rows[0][0].info._fields:
        return rows
    infos = [[c.info._replace(draft_calls=0) for c in row] for row in rows]
    infos = jax.tree.map(lambda count: np.asarray(count).tolist(), infos)
    return [
        [c._replace(info=info) for c, info in zip(*pair, strict=True)]
        for pair in zip(rows, infos, strict=True)
    ]


@pytest.mark.exhaustive
@every
def test_a_text_has_the_result_of_any_other_batch(run, name):
    found = run(name)
    check_equal(found, run(name, refill=False))
    shuffled = np.random.default_rng(1).permutation(COUNT)
    again = run(name, shuffled)
    back = [again[i] for i in np.argsort(shuffled)]
    assert without_draft_calls(back) == without_draft_calls(found)


@pytest.mark.release
@every
def test_a_second_call_compiles_nothing(run, name):
    """The strategy, its settings and the keys are arguments of the programs."""

    def programs():
        compiled = refilled._compiled(name)
        return [getattr(compiled, part).cache_size() for part in compiled._fields]

    first = run(name)
    before = programs()
    assert sum(before) >= 4
    other = run(name, range(COUNT)[::-1], seed=4, scale=0.3, limits=LIMITS[::-1])
    assert programs() == before
    assert first != other[::-1]


@pytest.mark.release
def test_counts_are_those_of_the_text(run):
    """The model's calls for a text end with its own last token."""
    for row in run("sample"):
        assert {c.info.model_calls for c in row} == {max(len(c.tokens) for c in row)}


@pytest.mark.release
def test_what_cannot_be_refilled_is_decoded_in_batches(monkeypatch):
    def forbidden(*args):
        raise AssertionError

    texts, settings = TEXTS.tolist(), {"max_new_tokens": 3, "batch_size": 8}
    model = TABLE.lockstep()
    want = decoding_jax.generate(TABLE, Digits(), texts, **settings)
    check_equal(decoding_jax.generate(model, Digits(), texts, **settings), want)
    monkeypatch.setattr(RowDecoder, "decode", forbidden)
    for more in ({"with_scores": True}, {"max_time": 60}, {"batch_size": 16}):
        check_equal(decoding_jax.generate(TABLE, Digits(), texts, **(settings | more)), want)


@pytest.mark.release
@pytest.mark.parametrize("mesh", [None, {"data": 2, "model": 2}])
@pytest.mark.parametrize(
    "settings",
    [{}, {"strategy": "beam_search", "beam_size": 2}, {"strategy": "sample", "num_samples": 2}],
)
def test_a_network_gives_the_same(monkeypatch, mesh, settings):
    """Inputs of two widths share the batch of an encoder-decoder."""
    model, tokenizer = decoding_jax.load("translation-en-fr-draft", mesh=mesh)
    words = ["the red house", "is", "my old friend", "a long walk", "here", "we are", "by the sea"]
    texts = [" ".join(words[i % 7 :: 1 + i % 3]) for i in range(40)]
    texts[0] = " ".join(words * 2)
    settings = {"key": jax.random.key(0), "max_new_tokens": 8, "batch_size": 8, **settings}
    if settings.get("strategy") != "sample":
        del settings["key"]
    found = decoding_jax.generate(model, tokenizer, texts, **settings)
    monkeypatch.setattr(call, "_REFILLED", COUNT)
    want = decoding_jax.generate(model, tokenizer, texts, **settings)
    assert [[c.tokens for c in row] for row in found] == [[c.tokens for c in row] for row in want]


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", tiers.values("int8", release=[None, "int4-4"]))
def test_a_row_of_a_mixture_of_experts_depends_on_no_other(monkeypatch, weights):
    """No expert drops a token of a batch in which many tokens choose it."""
    model, texts = fixture("qwen2_moe", weights=weights), TEXTS[:20]

    def decoded(order, size):
        stop = Stop(max_new_tokens=LIMITS[order])
        texts_of = texts[order].tolist()
        return decoding_jax.generate(model, Digits(), texts_of, stop=stop, batch_size=size)

    alone = [decoded([i], 1)[0] for i in range(4)]
    want = decoded(np.arange(20), 20)
    check_equal(want[:4], alone)
    monkeypatch.setattr(call, "_REFILLED", 4)
    order = np.arange(20)[::-1]
    check_equal(decoded(order, 8)[::-1], want)


@pytest.mark.exhaustive
def test_scores_without_alternatives_are_scores(monkeypatch):
    monkeypatch.setattr(call, "_REFILLED", 4)
    given = {"strategy": "greedy", "max_new_tokens": 3, "batch_size": 8}
    rows = decoding_jax.generate(TABLE, Digits(), TEXTS.tolist(), with_scores=0, **given)
    assert all(row[0].scores.log_prob.size == len(row[0].tokens) for row in rows)
