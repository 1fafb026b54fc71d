import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding_jax.ops import random, uint64

pytestmark = pytest.mark.optimized

KEY = jax.random.key(11)


def test_a_single_key_is_folded_with_each_row_and_an_array_of_keys_is_used_as_given() -> None:
    keys = random.row_keys(KEY, 3)
    for row in range(3):
        assert keys[row] == jax.random.fold_in(KEY, row)
    assert jnp.all(random.row_keys(keys, 3) == keys)


@pytest.mark.parametrize(
    "key",
    [
        np.zeros(2, np.uint32),
        jnp.zeros(2, jnp.uint32),
        7,
        None,
        jax.random.split(KEY, 2),
        jax.random.split(KEY, (3, 1)),
    ],
)
def test_a_wrong_key_gets_one_line_that_names_it(key) -> None:
    with pytest.raises(ValueError, match=r"^key: expected .*, got .*$") as error:
        random.row_keys(key, 3)
    assert "\n" not in str(error.value)


def test_bits_depend_only_on_row_lane_and_position() -> None:
    keys = random.row_keys(KEY, 5)
    positions = jnp.arange(20).reshape(5, 4)
    bits = random.lane_bits(keys, 4, positions)
    assert bits.shape == (5, 4, 2)
    assert bits.dtype == jnp.uint32
    for row, lane in [(0, 0), (3, 2), (4, 3)]:
        alone = random.lane_bits(keys[row : row + 1], lane + 1, positions[row, lane])
        np.testing.assert_array_equal(alone[0, lane], bits[row, lane])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_every_implementation_of_keys_keeps_rows_apart_from_their_batch(impl) -> None:
    keys = random.row_keys(jax.random.key(1, impl=impl), 3)
    bits = random.lane_bits(keys, 2, 9)
    np.testing.assert_array_equal(random.lane_bits(keys[1:2], 2, 9)[0], bits[1])
    assert len(set(uint64.to_ints(bits).ravel())) == 6
    given = jax.random.split(jax.random.key(2, impl=impl), 3)
    together, alone = random.row_keys(given, 3), random.row_keys(given[1:2], 1)
    assert together[1] == alone[0]
    assert len({tuple(words) for words in jax.random.key_data(together).tolist()}) == 3


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_lanes_bits_at_two_positions_are_independent(impl) -> None:
    """Chi-square of 65,536 pairs of the first four bits, for three pairs, at level 1e-3 in all."""
    keys = random.row_keys(jax.random.key(3, impl=impl), 256)
    at = jax.jit(lambda position: random.lane_bits(keys, 256, position)[..., 0] >> 28)
    for first, second in ((0, 1), (1, 2), (0, 64)):
        pairs = np.asarray(16 * at(first) + at(second)).ravel()
        assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-3 / 3


def test_bits_are_distinct_and_uniform() -> None:
    # 131,072 bytes for each of the 8 bytes of a word, chi-square at level 1e-3 after Bonferroni.
    keys = random.row_keys(KEY, 16)
    draw = jax.jit(lambda position: random.lane_bits(keys, 64, position))
    bits = np.stack([draw(position) for position in range(128)])
    words = uint64.to_ints(bits).ravel()
    assert len(set(words)) == words.size
    for place in range(8):
        bytes_ = (bits[..., place // 4] >> (8 * (place % 4)) & 0xFF).ravel()
        counts = np.bincount(bytes_, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3 / 8


def test_split_gives_streams_that_differ_from_each_other_and_from_the_lanes() -> None:
    keys = random.row_keys(KEY, 2)
    first, second = random.split(keys)
    streams = [random.lane_bits(k, 3, 0) for k in (keys, first, second)]
    assert len(set(uint64.to_ints(np.stack(streams)).ravel())) == 18
