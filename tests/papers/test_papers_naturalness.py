"""MAUVE between completions and references, and its features."""

import functools

import jax
import numpy as np
import pytest

from decoding_jax.testing import TableLM
from experiments.papers import naturalness


class Letters:
    """The letters a to f as the tokens 1 to 6, and the end 0."""

    eos_ids = (0,)

    def encode(self, text):
        return [*("abcdef".index(c) + 1 for c in text if c != " "), 0]


@functools.cache
def model():
    return TableLM.random(jax.random.key(0), 7), Letters()


@pytest.mark.exhaustive
def test_the_features_of_a_text_are_the_mean_of_its_states():
    table, tokenizer = model()
    texts = ["abc", "f", "abc", "deaf"]
    found = naturalness.features(model(), texts, max_tokens=4, batch_size=2)
    assert found.shape == (4, 4)
    assert (found[0] == found[2]).all()
    for text, mine in zip(texts, found, strict=True):
        ids = np.asarray([tokenizer.encode(text)[:4]], np.int32)
        output, _ = table.prefill(
            ids, np.asarray([ids.shape[1]], np.int32), lanes=1, slots=0, with_hidden=True
        )
        np.testing.assert_allclose(mine, np.asarray(output.hidden)[0, 0].mean(0), atol=1e-6)


def test_shuffled_words_are_the_same_words():
    rng = np.random.default_rng(0)
    shuffled = {naturalness._shuffled("a b c", rng) for _ in range(50)}
    assert len(shuffled) == 6
    assert all(sorted(text.split()) == ["a", "b", "c"] for text in shuffled)


@pytest.mark.exhaustive
def test_equal_texts_are_near_one_and_others_are_not():
    rng = np.random.default_rng(0)
    references = [["".join(rng.permutation(list("abc")))] for _ in range(30)]
    sets = {
        "equal": [texts * 5 for texts in references],
        "other": [["fed", "def"] * 2 for _ in references],
        "none": [[] for _ in references],
    }
    measure = functools.partial(naturalness.measure, model(), references, size=4, max_tokens=4)
    found = measure(sets, resamples=3)
    assert (found["references"], found["buckets"]) == (30, 3)
    assert found["texts"] == {naturalness.SHUFFLED: 120, "equal": 120, "other": 120, "none": 0}
    assert found["values"]["equal"].value > 0.99
    assert found["values"]["other"].value < 0.5
    assert found["values"]["none"] is None
    low, high = found["values"]["equal"][1:]
    assert 0 < low <= high <= 1 + 1e-9
    assert measure(sets, resamples=3)["values"]["equal"] == found["values"]["equal"]
    assert measure(sets, resamples=1, max_inputs=20)["references"] == 15
