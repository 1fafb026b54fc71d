"""Constrained beam search against a plain version of it, and against enumeration."""

import dataclasses

import jax
import numpy as np
import pytest
from constrained_reference import lacking, search

import decoding_jax
from decoding_jax import Constraints, Prompt, Stop
from decoding_jax.testing import TableLM, enumerate_distribution
from decoding_jax.testing.certificate.enumeration import row_stop

VOCAB, LENGTH = 5, 5
MODEL = TableLM.random(jax.random.key(0), VOCAB, sharpness=1.5)
PROMPT = Prompt(
    np.array([[1, 2, 3], [4, 0, 0], [0, 3, 0], [2, 2, 1]], np.int32),
    np.array([3, 1, 2, 3], np.int32),
)
ROWS = 4


def traced(constraints, *, model=MODEL, **settings):
    """All settings are always given, so that calls share a compiled program."""
    settings = {
        "beam_size": 3,
        "max_new_tokens": LENGTH,
        "length_penalty": 0.0,
        "early_stopping": False,
        **settings,
    }
    return decoding_jax.constrained_beam_search(model, PROMPT, constraints=constraints, **settings)


def run(constraints, **settings):
    return jax.device_get(traced(constraints, **settings))


def texts(output, row):
    """Tokens, score, finished and met of every sequence of a row."""
    found = []
    for n in range(output.length.shape[1]):
        if output.score[row, n] > -np.inf:
            tokens = tuple(output.tokens[row, n, : output.length[row, n]].tolist())
            found.append((tokens, output.score[row, n], output.finished[row, n]))
    return [(*text, bool(m)) for text, m in zip(found, output.info.met[row], strict=False)]


def check(output, want, row):
    got = texts(output, row)
    assert [text[0] for text in got] == [text.tokens for text in want], row
    np.testing.assert_allclose([t[1] for t in got], [t.score for t in want], rtol=1e-5, atol=1e-5)
    assert [text[2:] for text in got] == [(text.finished, text.met) for text in want]


def padded(phrases, alternatives):
    """Pads to two phrases of six tokens and two sets of three sequences of four tokens."""
    constraints = Constraints(phrases, alternatives)
    p, a = np.full((2, 6), -1, np.int32), np.full((2, 3, 4), -1, np.int32)
    for one, wide in ((constraints.phrases, p), (constraints.alternatives, a)):
        if one.size:
            wide[tuple(slice(n) for n in one.shape[:-1])][..., -one.shape[-1] :] = one
    return Constraints(p, a)


SEARCHED = {
    "one phrase": (((1, 2),), ()),
    "a repeated token": (((3, 3, 1),), ()),
    "overlapping": (((1, 2), (2, 0)), ()),
    "one inside another": (((2, 2), (4, 2, 2)), ()),
    "a fallback to the middle": (((1, 2, 1, 0),), ()),
    "alternatives that share a prefix": ((), (((1, 2, 3), (1, 2, 0), (4, 4)),)),
    "one alternative inside another": ((), (((3, 3), (1, 3, 3, 2)),)),
    "both": (((2,),), (((0, 1), (3,)), ((4, 4), (1, 1)))),
    "too long": (((1, 1, 1, 1, 1, 1),), ()),
    "all of the limit": (((1, 2, 3, 4, 1),), ()),
    "the end token last": (((2, 0),), ()),
    "the end token in the middle": (((0, 2),), ()),
    "the stop sequence": (((2, 3), (1,)), ()),
}
STOP = Stop(eos_ids=(0,), sequences=((2, 3),), min_new_tokens=2, max_new_tokens=(LENGTH,) * ROWS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SEARCHED)
def test_equals_the_plain_version(name):
    """The leaves have equal shapes, so that most cases share one compiled program."""
    phrases, alternatives = SEARCHED[name]
    for settings in ({"beam_size": 3}, {"beam_size": 8, "length_penalty": 1.0}):
        output = run(padded(phrases, alternatives), stop=STOP, **settings)
        for row in range(ROWS):
            want = search(
                MODEL,
                PROMPT.tokens[row, : PROMPT.length[row]].tolist(),
                row_stop(STOP, row, LENGTH),
                phrases=phrases,
                alternatives=alternatives,
                ways_to_end=2,
                beam_size=settings["beam_size"],
                penalty=settings.get("length_penalty", 0.0),
            )
            check(output, want, row)
            for tokens, _, finished, met in texts(output, row):
                assert met == (lacking(tokens, phrases, alternatives) == 0)
                assert met or not finished


@pytest.mark.release
def test_a_traced_phrase_with_no_such_token_is_never_met():
    """Plain numbers beyond the vocabulary raise an error, but traced ones cannot."""
    phrases = ((1, 2), (99,))
    output = jax.jit(lambda constraints: traced(constraints, stop=STOP))(padded(phrases, ()))
    for row in range(ROWS):
        want = search(
            MODEL,
            PROMPT.tokens[row, : PROMPT.length[row]].tolist(),
            row_stop(STOP, row, LENGTH),
            phrases=phrases,
            ways_to_end=2,
            beam_size=3,
        )
        check(output, want, row)
    assert not output.info.met.any()


@pytest.mark.parametrize(
    "early_stopping",
    [False, *(pytest.param(x, marks=pytest.mark.exhaustive) for x in (True, "never"))],
)
def test_a_full_pool_closes_a_row_as_in_the_plain_version(early_stopping):
    phrases, stop = ((2,),), dataclasses.replace(STOP, min_new_tokens=np.int32(0))
    output = run(padded(phrases, ()), stop=stop, early_stopping=early_stopping, length_penalty=0.5)
    for row in range(ROWS):
        want = search(
            MODEL,
            PROMPT.tokens[row, : PROMPT.length[row]].tolist(),
            row_stop(stop, row, LENGTH),
            phrases=phrases,
            ways_to_end=2,
            beam_size=3,
            penalty=0.5,
            early_stopping=early_stopping,
        )
        check(output, want, row)


@pytest.mark.release
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_saturating_width_is_exhaustive_search(penalty):
    """81 hypotheses hold all texts of four tokens from a vocabulary of three, in order."""
    model = TableLM.random(jax.random.key(5), 3)
    prompt = Prompt(np.array([[1, 2], [2, 0]], np.int32), np.array([2, 1], np.int32))
    stop = Stop(eos_ids=(0,))
    phrases, alternatives = ((1, 2),), (((1, 1), (2, 0)),)
    output = jax.device_get(
        decoding_jax.constrained_beam_search(
            model,
            prompt,
            constraints=Constraints(phrases, alternatives),
            beam_size=81,
            max_new_tokens=4,
            length_penalty=penalty,
            stop=stop,
        )
    )
    for row in range(2):
        distribution = enumerate_distribution(model, prompt, row, max_new_tokens=4, stop=stop)
        want = []
        for tokens, length, finished, log_prob in zip(
            distribution.tokens,
            distribution.length,
            distribution.finished,
            distribution.log_prob,
            strict=True,
        ):
            text = tuple(tokens[:length].tolist())
            met = lacking(text, phrases, alternatives) == 0
            if met or not finished:
                want.append((not met, -log_prob / length**penalty, text, bool(finished)))
        want.sort()
        got = texts(output, row)
        assert [text[0] for text in got] == [text[2] for text in want]
        assert [text[2:] for text in got] == [(text[3], not text[0]) for text in want]
        np.testing.assert_allclose([t[1] for t in got], [-t[1] for t in want], rtol=1e-5)
        assert 0 < sum(text[3] for text in got) < len(got)
