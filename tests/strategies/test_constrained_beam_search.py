"""Constrained beam search against a plain version of it, and against enumeration."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_reference import contains, lacking, search

import decoding_jax
from decoding_jax import Constraints, Prompt, Stop, loop, strategies, transforms
from decoding_jax.strategies.beam.constraints import match_nothing, match_token
from decoding_jax.testing import TableLM, enumerate_distribution, same_bits
from decoding_jax.testing.certificate.enumeration import row_stop

VOCAB, LENGTH = 5, 5
MODEL = TableLM.random(jax.random.key(0), VOCAB, sharpness=1.5)
PROMPT = Prompt(
    jnp.array([[1, 2, 3], [4, 0, 0], [0, 3, 0], [2, 2, 1]], jnp.int32), jnp.array([3, 1, 2, 3])
)
ROWS = 4


def run(constraints, *, model=MODEL, **settings):
    """All settings are always given, so that calls share a compiled program."""
    settings = {
        "beam_size": 3,
        "max_new_tokens": LENGTH,
        "length_penalty": 0.0,
        "early_stopping": False,
        **settings,
    }
    return decoding_jax.constrained_beam_search(model, PROMPT, constraints=constraints, **settings)


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


@pytest.mark.exhaustive
def test_a_traced_phrase_with_no_such_token_is_never_met():
    """Plain numbers beyond the vocabulary raise an error, but traced ones cannot."""
    phrases = ((1, 2), (99,))
    output = jax.jit(lambda constraints: run(constraints, stop=STOP))(padded(phrases, ()))
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
    "early_stopping", [pytest.param(True, marks=pytest.mark.exhaustive), False, "never"]
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


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_saturating_width_is_exhaustive_search(penalty):
    """81 hypotheses hold all texts of four tokens from a vocabulary of three, in order."""
    model = TableLM.random(jax.random.key(5), 3)
    prompt = Prompt(jnp.array([[1, 2], [2, 0]], jnp.int32), jnp.array([2, 1]))
    stop = Stop(eos_ids=(0,))
    phrases, alternatives = ((1, 2),), (((1, 1), (2, 0)),)
    output = decoding_jax.constrained_beam_search(
        model,
        prompt,
        constraints=Constraints(phrases, alternatives),
        beam_size=81,
        max_new_tokens=4,
        length_penalty=penalty,
        stop=stop,
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


@pytest.mark.parametrize(
    "nothing", [pytest.param(Constraints(), marks=pytest.mark.exhaustive), padded((), ())]
)
def test_without_a_constraint_it_is_beam_search_to_the_bit(nothing):
    settings = {"early_stopping": True, "length_penalty": 0.7, "stop": STOP}
    got = run(nothing, **settings)
    want = decoding_jax.beam_search(MODEL, PROMPT, beam_size=3, max_new_tokens=LENGTH, **settings)
    assert got.info.met.all()
    assert got.info.model_calls == want.info.model_calls
    assert same_bits(got._replace(info=None), want._replace(info=None))


def test_a_row_has_constraints_of_its_own():
    """Each row returns what it returns when all rows have its constraints."""
    constraints_of_rows = [
        padded(*SEARCHED[name])
        for name in ("both", "overlapping", "one phrase", "a repeated token")
    ]
    together = run(jax.tree.map(lambda *rows: np.stack(rows), *constraints_of_rows), stop=STOP)
    for row, constraints in enumerate(constraints_of_rows):
        alone = run(constraints, stop=STOP)
        mine = lambda output: jax.tree.map(lambda x: x[row], output._replace(info=None))  # noqa: B023, E731
        assert same_bits(mine(together), mine(alone))
        assert same_bits(together.info.met[row], alone.info.met[row])


def test_a_model_without_trees_gives_the_same():
    constraints = padded(((3, 3, 1), (1, 2)), ())
    tree, lanes = (run(constraints, model=m, stop=STOP) for m in (MODEL, MODEL.lockstep()))
    assert same_bits(tree, lanes)
    assert tree.info.met.any()


def test_a_transform_may_make_a_phrase_impossible():
    """The other texts are returned unfinished, and other rows are not affected."""
    mask = np.ones((ROWS, VOCAB), bool)
    mask[0, 2] = mask[1, :] = mask[2, 1:] = False
    output = run(
        padded(((1, 2),), ()), stop=STOP, transform=transforms.allowed_tokens(jnp.asarray(mask))
    )
    want = search(
        MODEL,
        PROMPT.tokens[0].tolist(),
        row_stop(STOP, 0, LENGTH),
        phrases=((1, 2),),
        ways_to_end=2,
        beam_size=3,
        banned=(2,),
    )
    check(output, want, 0)
    assert not any(text.met for text in want)
    for row in (1, 2):  # nothing is allowed, or the end token alone, which is too early
        assert texts(output, row) == [((), 0.0, False, False)]
        assert (output.length[row] == 0).all()
    free = run(padded(((1, 2),), ()), stop=STOP)
    assert texts(output, 3) == texts(free, 3)
    assert free.info.met[3].any()


def test_a_row_of_limit_zero_meets_nothing_and_affects_no_other_row():
    constraints, stop = (
        padded(((1, 2),), ()),
        dataclasses.replace(STOP, max_new_tokens=(0, 5, 5, 5)),
    )
    partial, full = run(constraints, stop=stop), run(constraints, stop=STOP)
    assert (partial.length[0] == 0).all()
    assert not partial.info.met[0].any()
    assert same_bits(partial.tokens[1:], full.tokens[1:])


def test_stream_ends_with_what_run_gives():
    settings = {"beam_size": 3, "stop": STOP, "constraints": padded(((3, 3, 1),), ())}
    build = strategies.constrained_beam_search
    *early, last = loop.stream(build, MODEL, PROMPT, max_new_tokens=LENGTH, **settings)
    assert same_bits(last, run(**settings))
    assert len(early) == LENGTH - 1
    assert not any(np.isnan(output.score).any() for output in early)
    assert not early[0].info.met.any()


def test_other_phrases_of_the_same_shape_do_not_retrace():
    run(padded(((1, 2), (3,)), ()), stop=STOP)
    before = decoding_jax.constrained_beam_search.cache_size()
    run(padded(((4,),), (((2, 2),),)), stop=STOP, length_penalty=0.3)
    assert decoding_jax.constrained_beam_search.cache_size() == before


def test_matching_is_that_of_the_definition():
    """Sequences of up to four tokens from a vocabulary of two, along random texts."""
    rng = np.random.default_rng(0)
    sequences = [tuple(rng.integers(0, 2, n).tolist()) for n in (1, 2, 2, 3, 3, 3, 4, 4, 4, 4)]
    constraints = Constraints(tuple(sequences), (tuple(sequences[3:5]), tuple(sequences[7:])))
    table = constraints.table(1)
    step = jax.jit(match_token)
    for text in rng.integers(0, 2, (20, 9)):
        matched = match_nothing(table, 1)
        for n, token in enumerate(text):
            matched = step(table, matched, jnp.array([[token]]))
            so_far = tuple(text[: n + 1].tolist())
            got = np.asarray(matched[0, 0, : len(sequences), -1])
            np.testing.assert_array_equal(got, [contains(so_far, s) for s in sequences])
            want = lacking(so_far, sequences, (sequences[3:5], sequences[7:]))
            assert constraints.lacking(table, matched)[0, 0] == want


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constraints(((1,), ())), r"phrases: got \(\); takes non-empty sequences"),
        (lambda: Constraints((), (((1,), (-2,)),)), r"alternatives: got \(-2,\); takes"),
        (lambda: Constraints((), ((),)), "alternatives: got an empty set; takes"),
        (lambda: run(Constraints(np.ones((3, 1, 2), np.int32))), "constraints: got phrases of"),
        (lambda: run(Constraints((), np.ones((2, 1), np.int32))), "constraints: got alternatives"),
        (lambda: run(padded(((1, 2), (99,)), ())), "constraints.phrases: got 99; takes ids from"),
        (lambda: run(Constraints(), beam_size=0), "beam_size: got 0"),
        (lambda: run(Constraints(), num_return=4), "num_return: got 4"),
    ],
)
def test_bad_arguments_get_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
