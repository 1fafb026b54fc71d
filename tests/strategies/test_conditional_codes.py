"""Arithmetic codes of the conditional distribution of a language, which is enumerated."""

import functools

import jax
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.loop import stream
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution, same_bits
from decoding_jax.testing.certificate.comparisons import outcome_index

LENGTH, SAMPLES, LEVEL = 4, 64, 1e-3
MODEL = TableLM.random(jax.random.key(3), 4, sharpness=1.5)
PROMPT = Prompt(np.array([[1, 2, 3], [3, 0, 0]], np.int32), np.array([3, 1], np.int32))
# The end token 1 may come first, and some texts go on where others end.
TEXTS = [(1,), (0, 1), (0, 2, 1), (0, 2, 3, 1), (3, 3, 0, 1), (2, 2, 1), (3, 0, 2, 2)]
TRIE = transforms.prefix_allowed_tokens(transforms.Trie.from_sequences(TEXTS))
WARM = transforms.temperature(1.3)


def automaton(edges, start=0):
    """Of edges ``(state, token, state)``; all automata here have one size."""
    table = np.full((16, 4), -1, np.int32)
    for state, token, after in edges:
        table[state, token] = after
    return transforms.prefix_allowed_tokens(transforms.Automaton(table), start=start)


_states = {beginning: i for i, beginning in enumerate({t[:n]: 0 for t in TEXTS for n in range(4)})}
LIST = automaton(
    [(_states[t[:n]], t[n], _states.get(t[: n + 1], 15)) for t in TEXTS for n in range(len(t))]
)
EVEN = [(0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 0), (1, 0, 1), (1, 2, 0), (1, 3, 1)]
CASES = {
    "list": (LIST, lambda row, text: text in TEXTS[:-1], {}),
    "trie": (TRIE, lambda row, text: text in TEXTS[:-1], {}),
    "rows": (
        automaton(EVEN, start=np.array([0, 1], np.int32)),
        lambda row, text: text[-1] == 1 and text.count(2) % 2 == row,
        {"max_texts": 40},
    ),
    "sequences": (
        automaton(EVEN),
        lambda row, text: text[-1] == 1 and text.count(2) % 2 == 0,
        {"max_texts": 128, "stop": Stop(sequences=((1,),))},
    ),
}


def limited(*limits):
    return Stop(eos_ids=(1,), max_new_tokens=np.array(limits, np.int32))


def run(prompt=PROMPT, key=1, model=MODEL, **settings):
    settings = {
        "num_samples": SAMPLES,
        "max_new_tokens": LENGTH,
        "max_texts": 8,
        "transform": WARM,
        "stop": limited(LENGTH, LENGTH),
        "with_sample_log_prob": True,
        **settings,
    }
    keys = jax.random.split(jax.random.key(key), prompt.length.size)
    return jax.device_get(decoding_jax.arithmetic_sample(model, prompt, keys, **settings))


@functools.cache
def conditional(row, name):
    """The texts of a row, their conditional probabilities, and that of the language."""
    found = enumerate_distribution(
        MODEL, PROMPT, row, max_new_tokens=LENGTH, transform=WARM, stop=Stop(eos_ids=(1,))
    )
    texts = [tuple(t[:n].tolist()) for t, n in zip(found.tokens, found.length, strict=True)]
    mass = found.prob * [CASES[name][1](row, text) for text in texts]
    return found._replace(prob=mass / mass.sum()), texts, mass.sum()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["list", *(pytest.param(n, marks=pytest.mark.exhaustive) for n in list(CASES)[1:])]
)
def test_codes_are_those_of_the_conditional(name):
    """Of 64 samples, each beginning has 64 p, rounded up or down."""
    language, _, settings = CASES[name]
    output = run(language=language, **settings)
    for row in range(2):
        want, texts, mass = conditional(row, name)
        np.testing.assert_allclose(output.info.log_language_prob[row], np.log(mass), atol=2e-6)
        drawn = [tuple(t[:n]) for t, n in zip(output.tokens[row], output.length[row], strict=True)]
        for beginning in {text[:n] for text in texts for n in range(1, LENGTH + 1)}:
            is_in = [text[: len(beginning)] == beginning for text in texts]
            got = sum(text[: len(beginning)] == beginning for text in drawn)
            assert abs(got - SAMPLES * want.prob[is_in].sum()) < 1.001, (row, beginning)
        index = outcome_index(want, output.tokens[row], output.length[row])
        np.testing.assert_allclose(output.log_prob[row], want.log_prob[index], atol=1e-5)
        share = output.sample_log_prob[row].sum(-1)
        np.testing.assert_allclose(share, np.log(want.prob[index]), atol=1e-5)
    assert output.finished.all()
    assert output.info.complete.all()


@pytest.mark.release
def test_rows_do_not_see_each_other_and_faults_are_marked():
    """Rows in another order; too many texts, none, no room for any, and NaN logits."""
    batch = run(language=LIST)
    again = run(Prompt(PROMPT.tokens[[0, 0]], PROMPT.length[[0, 0]]), language=LIST)
    for got, want in zip(jax.tree.leaves(again), jax.tree.leaves(batch), strict=True):
        assert same_bits(got[0], want[0])
    table = np.where(np.arange(4) == 1, -np.inf, np.asarray(MODEL.table))
    never = TableLM(table, MODEL.features)
    none = run(language=LIST, stop=limited(0, LENGTH))
    assert none.finished[1].all()
    for output in (
        jax.tree.map(lambda x: x[:1], none),
        run(language=automaton(EVEN)),
        run(language=LIST, model=never),
    ):
        assert not output.length.any()
        assert not output.finished.any()
        assert (output.log_prob == -np.inf).all()
    assert not run(language=automaton(EVEN)).info.complete.any()
    assert (none.info.log_language_prob == -np.inf).tolist() == [True, False]
    table = np.array(MODEL.table)
    table[:, :, 2, 0] = np.nan  # after a token 2, which texts of both rows contain
    broken = run(language=LIST, model=TableLM(table, MODEL.features))
    assert np.isnan(broken.log_prob).all()
    assert not broken.length.any()


@pytest.mark.release
def test_one_sample_follows_the_conditional():
    """Of models that move lanes: lane 0 of 1,000 rows, by chi-square at level 0.001."""
    many = Prompt(*(np.tile(x, (500, *[1] * (x.ndim - 1))) for x in PROMPT))
    settings = {"num_samples": 2, "order": "probability", "after": "lattice"}
    output = run(many, language=LIST, model=MODEL.lockstep(), stop=Stop(eos_ids=(1,)), **settings)
    for row in range(2):
        want = conditional(row, "list")[0]
        index = outcome_index(want, output.tokens[row::2, 0], output.length[row::2, 0])
        counts = np.bincount(index, minlength=len(want.prob))
        assert chi_square(counts, want.prob).p_value > LEVEL / 2


@pytest.mark.release
def test_a_stream_ends_with_what_a_run_returns():
    strategy = decoding_jax.ArithmeticSample(
        num_samples=4, max_new_tokens=LENGTH, stop=Stop(eos_ids=1), language=LIST, max_texts=8
    )
    *_, last = stream(strategy, MODEL, PROMPT, jax.random.key(1))
    whole = strategy(MODEL, PROMPT, jax.random.key(1))
    for got, want in zip(jax.tree.leaves(last), jax.tree.leaves(whole), strict=True):
        assert same_bits(jax.device_get(got), jax.device_get(want))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_texts": None}, "max_texts: expected an int from 1 to 4,096, for a language, got N"),
        ({"max_texts": 4097}, "max_texts: expected an int from 1 to 4,096, for a language, got 4"),
        ({"language": None}, "language: expected a transform, for max_texts, got None"),
    ],
)
def test_bad_settings_get_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        run(**{"language": LIST, **change})
    assert "\n" not in str(caught.value)
