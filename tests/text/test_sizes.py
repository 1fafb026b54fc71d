"""Shapes are rounded up to a few sizes, without a change of results."""

from itertools import chain

import jax
import pytest
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import Stop, registry

TEXTS = ["1 2 3", "4", "5 6", "2 2", "6 5 4 3", "1"]
NO_ENDS = Stop(eos_ids=())


@pytest.mark.exhaustive
def test_numbers_of_texts_and_tokens_within_a_size_share_a_program():
    def lengths(count, max_new_tokens):
        settings = {"max_new_tokens": max_new_tokens, "stop": NO_ENDS}
        rows = decoding_jax.generate(TABLE, Digits(), TEXTS[:count], **settings)
        return [len(row[0].tokens) for row in rows]

    assert lengths(6, 5) == [5] * 6
    before = decoding_jax.greedy.cache_size()
    assert lengths(5, 16) == [16] * 5
    assert lengths(6, 1) == [1] * 6
    assert decoding_jax.greedy.cache_size() == before
    assert lengths(6, 17) == [17] * 6
    assert decoding_jax.greedy.cache_size() == before + 1


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("stochastic_beam_search", {"beam_size": 2}, marks=pytest.mark.exhaustive),
        ("beam_search", {"beam_size": 2, "early_stopping": "never", "length_penalty": 1.0}),
        pytest.param(
            "best_k_search",
            {"k": 2, "budget": 3, "fallback": True, "score": "mean"},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_longer_program_gives_the_same(name, settings):
    """Compared with a function of your own, whose program has the exact ``max_new_tokens``."""
    entry = registry.STRATEGIES[name]
    common = {"max_new_tokens": 3, **settings}
    if entry.draws:
        common["key"] = jax.random.key(3)

        def exact(model, prompt, key, **settings):
            assert settings["max_new_tokens"] == 3
            return entry.function(model, prompt, key, **settings)
    else:

        def exact(model, prompt, **settings):
            assert settings["max_new_tokens"] == 3
            return entry.function(model, prompt, **settings)

    got, want = (
        decoding_jax.generate(TABLE, Digits(), TEXTS[:2], strategy=strategy, **common)
        for strategy in (name, exact)
    )
    for a, b in zip(chain.from_iterable(got), chain.from_iterable(want), strict=True):
        assert (a.text, a.tokens, a.finished) == (b.text, b.tokens, b.finished)
        assert a.log_prob == pytest.approx(b.log_prob, abs=2e-6)
        assert a.score == pytest.approx(b.score, abs=2e-6)
        assert a.info.model_calls == b.info.model_calls
