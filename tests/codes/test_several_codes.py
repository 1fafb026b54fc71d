"""Codes after the first, and orders of tokens: every sample is exact, by enumeration.

All probabilities are multiples of 1/8, so the intervals of a code end on a grid. The middles of its
cells, as shifts of the lattices, give each text as often as all 2**64 shifts do. The rows of one
batch are all combinations of the shifts and factors of a text's codes.
"""

import functools
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import codes
from decoding_jax.codes import arithmetic, point_sets
from decoding_jax.ops import random, uint64

pytestmark = pytest.mark.optimized

EIGHTHS = np.array([[4, 1, 2, 1], [2, 4, 1, 1], [2, 2, 2, 2], [1, 1, 4, 2], [2, 2, 0, 4]])
"""The probabilities of four tokens after each of them, and (last) of the first token."""
N, LENGTH, FACTORS = 4, 3, 2
GRIDS = (32, 32, 8)
"""The cells of the three codes: a text of three tokens narrows the last of them once."""


def middle(cell, grid):
    return uint64.from_int((2 * cell + 1) * 2**63 // grid)


def rows():
    """Of every row the shift of the first code, and the bits of shift and factor of the later."""
    later = (range(n) for grid in GRIDS[1:] for n in (grid, FACTORS))
    found = list(itertools.product(range(GRIDS[0]), *later))
    first = np.stack([middle(row[0], GRIDS[0]) for row in found])
    bits = np.zeros((len(found), 4, 2), np.uint32)
    for i, row in enumerate(found):
        for k, value in enumerate(row[1:]):
            bits[i, k] = [value, 0] if k % 2 else middle(value, GRIDS[1 + k // 2])
    return first, bits


@functools.partial(jax.jit, static_argnames="order")
def decode(first, bits, keys, order, logits):
    """The tokens ``[B, N, LENGTH]`` of lattices whose shifts and factors are given."""
    code = codes.start("lattice", keys, N, "lattice")
    points = jnp.asarray(point_sets.cells(N))[None]
    code = code._replace(offset=uint64.add(*jnp.broadcast_arrays(points, first[:, None])))
    previous, tokens = jnp.full(code.offset.shape[:2], 4), []
    with mock.patch.object(
        random, "bits_at", lambda keys, index: jnp.take_along_axis(bits, index[..., None], 1)
    ):
        for position in range(LENGTH):
            previous, code = codes.choose(code, logits[previous], position, order=order)
            tokens.append(previous)
    return jnp.stack(tokens, -1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", ["probability", "id"])
def test_every_sample_has_every_text_as_often_as_it_is_probable(order):
    first, bits = rows()
    with np.errstate(divide="ignore"):
        logits = np.log(EIGHTHS).astype(np.float32)
    keys = random.row_keys(jax.random.key(0), len(first))
    tokens = np.asarray(decode(first, bits, keys, order, logits))
    index = (tokens * 4 ** np.arange(LENGTH)[::-1]).sum(-1)  # [rows, N]
    p = np.array([EIGHTHS[4] / 8])
    for _ in range(LENGTH - 1):
        p = p.reshape(-1, 1) * np.tile(EIGHTHS[:4] / 8, (p.size // 4, 1))
    for lane in range(N):
        counts = np.bincount(index[:, lane], minlength=4**LENGTH)
        np.testing.assert_array_equal(counts, p.reshape(-1) * len(first))
    # The number of samples with any prefix is N p, rounded up or down, as for the first code alone.
    for length in range(1, LENGTH + 1):
        of = 4**length
        prefix = index // 4 ** (LENGTH - length)
        counts = (prefix[..., None] == np.arange(of)).sum(1)
        expected = N * p.reshape(of, -1).sum(-1)
        assert (counts >= np.floor(expected)).all()
        assert (counts <= np.ceil(expected)).all()


@pytest.mark.exhaustive
def test_the_first_tokens_are_the_most_probable_and_the_others_follow_by_id():
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 3, (20, 100)).astype(np.float32)  # Ties at the end of the first ones.
    logits[:5, 10:] = -np.inf  # Fewer tokens than come first.
    logits[5:10, ::3] = -np.inf
    offset = random.bits(jax.random.key(0), (20, 200, 2))
    wide = np.broadcast_to(logits[:, None], (20, 200, 100))
    narrow = jax.jit(codes.narrow, static_argnames="order")
    token = narrow(offset, jnp.full_like(offset, 0xFFFFFFFF), wide, None, order="probability")[0]
    for row, point, found in zip(logits, np.asarray(offset), np.asarray(token), strict=True):
        first = np.argsort(-row, kind="stable")[:32]
        order = [*first, *sorted({*range(100)} - {*first.tolist()})]
        ends = np.cumsum(np.exp(row[order].astype(np.float64)))
        share = point[:, 0] / 2.0**32
        expected = np.searchsorted(ends / ends[-1], share, side="right")
        near = np.abs(share[:, None] - ends / ends[-1]).min(-1) < 1e-5
        assert near.mean() < 0.05
        np.testing.assert_array_equal(found[~near], np.asarray(order)[expected][~near])


renewed = jax.jit(lambda code: arithmetic.renewed(code, code.used))


@pytest.mark.parametrize("num_samples", [1, 6])
def test_the_next_codes_of_a_row_are_a_lattice(num_samples):
    """All are 1/N apart; which sample has which differs from row to row."""
    keys = random.lane_keys(random.row_keys(jax.random.key(3), 8), num_samples)
    nothing = np.zeros((8, num_samples, 2), np.uint32)  # an interval of width 1: all are alone
    code = arithmetic.Code(nothing, nothing, keys, np.zeros((8, num_samples), np.int32))
    found = uint64.to_ints(jax.device_get(renewed(code).offset))
    apart = [sorted(int(x) - min(row) for x in row) for row in found.tolist()]
    np.testing.assert_allclose(apart, [[i * 2**64 // num_samples for i in range(num_samples)]] * 8)
    orders = {tuple(np.argsort(np.roll(row, -np.argmin(row))).tolist()) for row in found}
    assert len(orders) == (2 if num_samples == 6 else 1)  # the factors 1 and 5
    assert len({row[0] for row in found.tolist()}) == 8
