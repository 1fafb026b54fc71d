"""Each point is uniform by itself, and each set is as even as its docstring states."""

import functools
from fractions import Fraction
from math import ceil, floor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding_jax import codes
from decoding_jax.ops import random, uint64

pytestmark = pytest.mark.optimized

KEY = jax.random.key(5)
COUNTS = [
    pytest.param(count, marks=[] if count in (1, 3, 1000) else [pytest.mark.exhaustive])
    for count in (1, 2, 3, 8, 1000)
]


@functools.cache
def place(points, num_samples: int, rows: int = 1) -> np.ndarray:
    run = jax.jit(lambda key: codes.points(points, random.row_keys(key, rows), num_samples))
    return uint64.to_ints(run(KEY))


def intervals(rng) -> list[tuple[int, int]]:
    """Intervals [a, b) of all widths, including dyadic ones and those at the ends of the line."""
    ends = [int(x) for x in rng.integers(0, 2**64, 20, np.uint64)]
    near = [
        (a, min(2**64, a + (b >> s))) for a, b, s in zip(ends, ends[1:], range(19), strict=False)
    ]
    dyadic = [(a << (64 - j), (a + 1) << (64 - j)) for j in range(5) for a in range(2**j)]
    return near + dyadic + [(0, ends[0]), (ends[1], 2**64)]


def count(points: np.ndarray, start: int, end: int) -> int:
    return int(np.sum((points >= start) & (points < end)))


def is_even(got: int, expected: Fraction) -> bool:
    return floor(expected) <= got <= ceil(expected)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name in ("lattice", "radical_inverse") else [pytest.mark.exhaustive]
        )
        for name in codes.POINTS
    ],
)
def test_every_point_by_itself_is_uniform(name) -> None:
    # 8,192 rows of 5 points, 64 bins of the first and of the last 6 bits of each: chi-square at
    # level 1e-3 after Bonferroni over the 10.
    x = place(name, 5, rows=8192)
    for lane in range(5):
        for bins in (x[:, lane] >> 58, x[:, lane] & 63):
            counts = np.bincount(bins.astype(np.int64), minlength=64)
            assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("num_samples", COUNTS)
def test_lattice_counts_are_floor_or_ceiling_of_every_interval(num_samples) -> None:
    for x in place("lattice", num_samples, rows=3):
        for a, b in intervals(np.random.default_rng(num_samples)):
            assert is_even(count(x, a, b), Fraction(num_samples * (b - a), 2**64))


@pytest.mark.parametrize("num_samples", COUNTS)
def test_lattice_points_differ_by_constants_so_that_each_is_as_uniform_as_the_shift(
    num_samples,
) -> None:
    x = place("lattice", num_samples, rows=3)
    for row in x:
        expected = [(row[0] + i * 2**64 // num_samples) % 2**64 for i in range(num_samples)]
        assert row.tolist() == expected


@pytest.mark.parametrize("num_samples", COUNTS)
def test_stratified_counts_are_off_by_less_than_two(num_samples) -> None:
    for x in place("stratified", num_samples, rows=3):
        for a, b in intervals(np.random.default_rng(num_samples)):
            assert abs(count(x, a, b) - Fraction(num_samples * (b - a), 2**64)) < 2


@pytest.mark.exhaustive
def test_stratified_points_are_uniform_in_their_cells() -> None:
    # The gap between the two points has a triangular distribution over (0, 2) cells: 4,000 rows,
    # Kolmogorov-Smirnov at level 1e-3.
    x = place("stratified", 2, rows=4000)
    gaps = ((x[:, 1] - x[:, 0]) % 2**64).astype(float) / 2**63
    assert stats.kstest(gaps, stats.triang(0.5, 0, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("num_samples", COUNTS)
def test_antithetic_points_are_mirror_images(num_samples) -> None:
    (x,) = place("antithetic", num_samples)
    pairs = num_samples // 2
    assert np.all(x[: 2 * pairs : 2] + x[1 : 2 * pairs : 2] == 2**64 - 1)
    assert len(set(x)) == num_samples


@pytest.mark.parametrize("num_samples", COUNTS)
def test_every_first_part_of_the_radical_inverse_is_even_in_dyadic_intervals(num_samples) -> None:
    (x,) = place("radical_inverse", num_samples)
    for first in {1, 2, 3, num_samples // 3, num_samples // 2, num_samples - 1, num_samples}:
        part = x[: min(first, num_samples)]
        for level in range(12):
            counts = np.bincount((part >> (64 - level)).astype(np.int64), minlength=2**level)
            expected = Fraction(len(part), 2**level)
            assert floor(expected) <= counts.min() <= counts.max() <= ceil(expected)


def test_scrambling_is_nested_with_independent_bits() -> None:
    # The 7 random bits that permute 8 points are fair and independent, so all 128 orders of the
    # first three digits are equally likely (chi-square, 8,192 rows, level 1e-3).
    x = place("radical_inverse", 8, rows=8192) >> 61
    assert all(sorted(row) == list(range(8)) for row in x)
    _, counts = np.unique(x.astype(np.int64), axis=0, return_counts=True)
    assert len(counts) == 128
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("name", list(codes.POINTS))
def test_rows_depend_only_on_their_keys(name) -> None:
    keys = random.row_keys(KEY, 4)
    run = jax.jit(lambda keys: codes.points(name, keys, 6))
    whole = run(keys)
    np.testing.assert_array_equal(run(keys[2:3])[0], whole[2])
    assert len(set(uint64.to_ints(whole).ravel())) == 24


def test_a_function_can_be_given_instead_of_a_name() -> None:
    def centres(key, num_samples):
        del key
        high = (jnp.arange(num_samples, dtype=jnp.uint32) * 2 + 1) << 27
        return jnp.stack([high, jnp.zeros_like(high)], axis=-1)

    assert place(centres, 3).tolist() == [[2**59, 3 * 2**59, 5 * 2**59]]


@pytest.mark.parametrize(
    ("points", "num_samples", "name"),
    [
        ("latice", 4, "points"),
        (lambda key, n: jnp.zeros((n, 2)), 4, "points"),
        (lambda key, n: jnp.zeros((n,), jnp.uint32), 4, "points"),
        ("lattice", 0, "num_samples"),
        ("lattice", 2.5, "num_samples"),
    ],
)
def test_bad_settings_get_one_line_that_names_them(points, num_samples, name) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got .*$") as error:
        codes.start(points, random.row_keys(KEY, 2), num_samples)
    assert "\n" not in str(error.value)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="lattice, stratified, antithetic, iid, radical_inverse"):
        place("sobol", 4)
