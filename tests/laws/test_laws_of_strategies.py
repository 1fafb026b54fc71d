"""What holds for every strategy: each law once, over those of ``decoded.SETTINGS``.

All calls of a strategy but those of a row alone share one program, since only numbers differ.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
import tiers
from decoded import (
    ALL,
    DRAFT,
    KEYS,
    LENGTH,
    MODEL,
    PROMPT,
    ROWS,
    SETTINGS,
    call,
    decode,
    limits,
    rows_of,
    rows_of_call,
    warped,
)

from decoding_jax import DecodeOutput, Stop, registry, strategies
from decoding_jax.loop.streaming import stream_progress
from decoding_jax.testing import same_bits

DEFAULT, USERS = ("sample", "beam_search"), ("greedy", "arithmetic_sample")
every = pytest.mark.parametrize(
    "name",
    [
        *tiers.values(*DEFAULT, exhaustive=[n for n in SETTINGS if n not in (*DEFAULT, *USERS)]),
        # As users compile them: bits do not depend on what a program does besides.
        *(pytest.param(x, marks=[pytest.mark.exhaustive, pytest.mark.optimized]) for x in USERS),
    ],
)


def same_rows(got: DecodeOutput, want: DecodeOutput) -> None:
    """Checks that two outputs of as many rows are equal, but for counts of all rows together."""
    assert same_bits(got[:5], want[:5])
    for name, part, other in zip(want.info._fields, got.info, want.info, strict=True):
        if np.ndim(other):
            assert same_bits(part, other), name


@every
def test_a_stream_ends_as_a_run_does(name):
    """No token changes after it is settled, and nothing on the way is NaN."""
    who, settings = call(name, {})
    call_of = functools.partial(stream_progress, getattr(strategies, name), **who, **settings)
    parts = jax.device_get(list(call_of()))
    whole = decode(name)
    assert same_bits(parts[-1].output, whole)
    assert len(parts) == getattr(whole.info, "model_calls", len(parts))
    *_, last = call_of(chunk=3)
    assert same_bits(last.output, whole)
    assert (parts[-1].settled == parts[-1].output.length).all()
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    for early, late in itertools.pairwise(parts):
        assert (early.settled <= late.settled).all()
        is_settled = np.arange(LENGTH) < early.settled[..., None]
        np.testing.assert_array_equal(
            np.where(is_settled, early.output.tokens, 0),
            np.where(is_settled, late.output.tokens, 0),
        )
        assert not np.isnan(early.output.score).any()


@every
def test_a_row_is_what_it_is_alone_and_at_any_place(name):
    """In a batch of other rows, with settings of its own; the row alone is less padded."""
    batch = decode(name)
    order = np.array([2, 0, 1])
    same_rows(decode(name, **rows_of_call(name, order)), rows_of(batch, order))
    changes = rows_of_call(name, np.array([1]))
    prompt = changes.pop("prompt")
    alone = decode(name, prompt=prompt._replace(tokens=prompt.tokens[:, :1]), **changes)
    same_rows(alone, rows_of(batch, np.array([1])))


@every
@pytest.mark.parametrize("reason", ["its limit is 0", "all tokens are banned"])
def test_a_row_that_may_not_begin_is_empty_and_harms_no_other(name, reason):
    if reason == "its limit is 0":
        got = decode(name, stop=limits(LENGTH, 0, LENGTH - 1))
    else:
        got = decode(name, transform=warped(ALL & (np.arange(ROWS) != 1)[:, None]))
    assert not got.length[1].any()
    assert not got.tokens[1].any()
    assert not got.finished[1].any()
    assert not np.isnan(got.score).any()
    assert np.isin(got.log_prob[1], (0, -np.inf)).all()
    others = np.array([0, 2])
    same_rows(rows_of(got, others), rows_of(decode(name), others))


@every
def test_other_numbers_are_not_traced_again(name):
    who, settings = call(name, {})
    function = registry.STRATEGIES[name].function
    before = decode(name)
    programs = function.cache_size()
    stop = Stop(np.full((ROWS, 1), 3, np.int32), max_new_tokens=np.array([3, 4, 5], np.int32))
    keys = {"key": KEYS[::-1]} if who["key"] is not None else {}
    numbers = {k: v / 2 for k, v in settings.items() if isinstance(v, np.ndarray)}
    draft = {"drafter": MODEL} if who["drafter"] is not None else {}
    other = decode(name, stop=stop, transform=warped(ALL, 0.7), **draft, **keys, **numbers)
    assert function.cache_size() == programs
    assert not same_bits(other.tokens, before.tokens)


@every
def test_a_strategy_says_of_each_row_whether_it_is_done(name):
    """Refilled batches read it; it is only traced, with another number of lanes than of rows."""
    entry = registry.STRATEGIES[name]
    lanes = {"num_samples": 2} if "num_samples" in entry.strategy.__dataclass_fields__ else {}
    _, settings = call(name, lanes)
    strategy = registry.steps(name, **settings, **({"drafter": DRAFT} if entry.drafts else {}))
    done = jax.eval_shape(lambda key: strategy.row_done(strategy.init(MODEL, PROMPT, key)), KEYS)
    assert (done.shape, done.dtype) == ((ROWS,), bool)
