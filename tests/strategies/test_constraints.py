"""Constrained beam search beside beam search, row by row, and in parts; what is refused."""

import dataclasses

import jax
import numpy as np
import pytest
from constrained_reference import contains, lacking, search
from test_constrained_beam_search import (
    LENGTH,
    MODEL,
    PROMPT,
    ROWS,
    SEARCHED,
    STOP,
    VOCAB,
    check,
    padded,
    run,
    texts,
)

import decoding_jax
from decoding_jax import Constraints, loop, strategies, transforms
from decoding_jax.strategies.beam.constraints import match_nothing, match_token
from decoding_jax.testing import same_bits
from decoding_jax.testing.certificate.enumeration import row_stop


@pytest.mark.exhaustive
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


@pytest.mark.release
def test_a_model_without_trees_gives_the_same():
    constraints = padded(((3, 3, 1), (1, 2)), ())
    tree, lanes = (run(constraints, model=m, stop=STOP) for m in (MODEL, MODEL.lockstep()))
    assert same_bits(tree, lanes)
    assert tree.info.met.any()


@pytest.mark.release
def test_a_transform_may_make_a_phrase_impossible():
    """The other texts are returned unfinished, and other rows are not affected."""
    mask = np.ones((ROWS, VOCAB), bool)
    mask[0, 2] = mask[1, :] = mask[2, 1:] = False
    output = run(padded(((1, 2),), ()), stop=STOP, transform=transforms.allowed_tokens(mask))
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


@pytest.mark.exhaustive
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
    count = jax.jit(constraints.lacking)
    for text in rng.integers(0, 2, (20, 9)):
        matched = match_nothing(table, 1)
        for n, token in enumerate(text):
            matched = step(table, matched, np.array([[token]]))
            so_far = tuple(text[: n + 1].tolist())
            got = np.asarray(matched)[0, 0, : len(sequences), -1]
            np.testing.assert_array_equal(got, [contains(so_far, s) for s in sequences])
            want = lacking(so_far, sequences, (sequences[3:5], sequences[7:]))
            assert np.asarray(count(table, matched))[0, 0] == want


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Constraints(((1,), ())),
            "phrases: expected sequences of one token or more, got an",
        ),
        (
            lambda: Constraints((), (((1,), (-2,)),)),
            r"alternatives: expected sequences of token ids, such as \[\[5,",
        ),
        (
            lambda: Constraints((), ((),)),
            "alternatives: expected sets of one sequence or more, got an",
        ),
        (
            lambda: run(Constraints(np.ones((3, 1, 2), np.int32))),
            r"constraints\.phrases: expected 2 axes that all rows share,",
        ),
        (
            lambda: run(Constraints((), np.ones((2, 1), np.int32))),
            r"constraints\.alternatives: expected 3 axes that all rows",
        ),
        (
            lambda: run(padded(((1, 2), (99,)), ())),
            r"constraints\.phrases: expected ids from 0 to 4, the model's",
        ),
        (
            lambda: run(Constraints(), num_return=4),
            "num_return: expected 1 to beam_size, which is 3, got 4",
        ),
    ],
)
def test_bad_arguments_get_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
