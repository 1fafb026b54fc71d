"""The widths that inputs are padded to."""

import itertools

import numpy as np
import pytest

from decoding_jax.batches import widths


def test_every_input_is_in_the_narrowest_bucket_that_holds_it_longest_first():
    lengths = [1, 16, 17, 100, 33, 16, 2, 64, 65]
    of_inputs = widths.widths(100)
    assert of_inputs == (16, 32, 64, 100)
    found = widths.by_width(lengths, of_inputs)
    assert sorted(m for members in found.values() for m in members) == list(range(len(lengths)))
    assert list(found) == sorted(found, reverse=True)
    for width, members in found.items():
        assert all(width == min(w for w in of_inputs if w >= lengths[m]) for m in members)
        assert [lengths[m] for m in members] == sorted((lengths[m] for m in members), reverse=True)


def test_the_default_buckets_reach_the_longest_input_once():
    for longest in (1, 15, 16, 17, 512, 1000):
        of_inputs = widths.widths(longest)
        assert of_inputs[-1] == longest
        assert len(set(of_inputs)) == len(of_inputs) <= max(1, longest.bit_length() - 3)


@pytest.mark.parametrize("least", [1, 5, 1000])
def test_many_inputs_that_need_less_than_their_bucket_have_one_of_their_own(least):
    lengths = np.random.default_rng(0).integers(1, 101, 300).tolist()
    given = widths.by_width(lengths, widths.widths(100))
    found = widths.finer(given, lengths, least)
    assert sorted(m for members in found.values() for m in members) == list(range(len(lengths)))
    assert list(found) == sorted(found, reverse=True)
    assert set(found) <= {8, 12, 16, 24, 32, 48, 50, 64, 75, 100}
    assert set(found) <= set(given) if least == 1000 else len(found) > len(given)
    for width, members in found.items():
        assert all(lengths[m] <= width for m in members)
        assert width in given or len(members) >= least
        assert [lengths[m] for m in members] == sorted((lengths[m] for m in members), reverse=True)


@pytest.mark.parametrize("extra", [0, 5000])
def test_no_widths_cost_less_than_the_cheapest(extra):
    """A further width counts as a ninth more tokens; an input has its narrowest width."""
    longest = np.random.default_rng(0).integers(1, 140, 12).tolist()
    found = widths.cheapest(longest, 192, most=3, extra=extra)
    assert len(found) == (1 if extra else 3)

    def cost(chosen):
        read = [extra + min(width for width in chosen if width >= size) for size in longest]
        return sum(read) / 0.9 ** len(chosen)

    others = [set(chosen) for chosen in itertools.product([16, 32, 48, 64, 96, 128, 192], repeat=2)]
    assert all(cost(found) <= cost([*chosen, 192]) + 1e-9 for chosen in others)


def test_widths_leave_out_the_shared_beginning():
    assert widths.cheapest([1010, 1035, 1100], 1128, most=3, shared=1000) == (1016, 1048, 1128)
