"""The integer distribution and its inversion, compared with a float64 softmax and integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from machine import need_devices

from decoding_jax import codes
from decoding_jax.ops import uint64
from decoding_jax.ops.logits import largest

pytestmark = pytest.mark.optimized

SIZES = [
    pytest.param(size, marks=[] if size in (1, 5, 97) else [pytest.mark.exhaustive])
    for size in (1, 2, 3, 5, 7, 16, 31, 97, 1000, 32_128, 256_000)
]
ROWS = 130  # The tests of one size share a program of so many rows.

distribution_of = jax.jit(codes.integer_distribution)
invert = jax.jit(codes.invert)
draw = jax.jit(codes.draw)


def distributions(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    tiny = np.full(size, np.log(5.5e-8))  # each below half a unit in the last place of the first
    tiny[0] = 0
    dominant = rng.normal(size=size)
    dominant[size // 2] += 40
    masked = np.where(rng.random(size) < 0.7, -np.inf, rng.normal(size=size) * 2)
    masked[-1] = 0
    ends = np.full(size, -np.inf)
    ends[size // 2] = -7
    return {
        "uniform": np.full(size, 123.456),
        "gaussian": rng.normal(size=size) * 3 - 500,
        "peaked": rng.normal(size=size) * 15,
        "dominant": dominant,
        "many tiny": tiny,
        "half and half": np.where(np.arange(size) == size - 1, 0.0, -12.4),
        "zipf": -1.1 * np.log(np.arange(1, size + 1)),
        "masked": masked,
        "one left": ends,
    }


def pack(values) -> np.ndarray:
    return np.stack([uint64.from_int(v) for v in values])


def random_bits(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (*shape, 2), np.uint32)


def joint_masses(distribution, size: int) -> list[int]:
    """Each token's probability in units of 2**-62."""
    block = np.asarray(distribution.block_mass).astype(object)
    return (
        (block[:, None] * np.asarray(distribution.token_mass).astype(object))
        .ravel()[:size]
        .tolist()
    )


@pytest.mark.parametrize("size", SIZES)
def test_distribution_is_whole_exact_and_within_1e_6_of_the_softmax(size) -> None:
    for name, logits in distributions(size).items():
        logits = logits.astype(np.float32)
        distribution = distribution_of(jnp.asarray(logits))
        block, token = (np.asarray(m).astype(np.int64) for m in distribution)
        assert block.sum() == 2**31, name
        assert np.all(token.sum(-1) == 2**31), name
        p = ((block / 2**31)[:, None] * (token / 2**31)).ravel()
        assert np.all(p[size:] == 0), name
        exact = np.exp(logits.astype(np.float64) - logits.max())
        exact /= exact.sum()
        assert np.all(p[:size][exact == 0] == 0), name
        assert np.abs(p[:size] - exact).sum() / 2 <= 1e-6, name


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", SIZES)
def test_draw_gives_each_token_exactly_its_share_of_the_bits(size) -> None:
    # The bits that draw a token are an interval of 2**64 / 2**62 times its mass. Both ends of the
    # interval are drawn for every token, or for 64 tokens of a large vocabulary.
    for name in ("gaussian", "masked", "one left", "many tiny"):
        logits = distributions(size)[name].astype(np.float32)
        masses = joint_masses(distribution_of(logits), size)
        ends = np.cumsum(np.array([0, *masses], object)) * 4
        assert ends[-1] == 2**64
        tested = [v for v in range(size) if masses[v]]
        tested = sorted({*tested[:: -(-len(tested) // 64)], tested[0], tested[-1]})
        points = [p for v in tested for p in (ends[v], ends[v + 1] - 1)]
        points += points[-1:] * (ROWS - len(points))  # one shape, one compilation
        bits = pack(points)
        lanes = 10 if size > 32_128 else ROWS
        for i in range(0, min(2 * len(tested), 2 * lanes), lanes):
            tokens = np.asarray(draw(np.broadcast_to(logits, (lanes, size)), bits[i : i + lanes]))
            expected = np.repeat(tested, 2)[i : i + lanes].tolist()
            assert tokens[: len(expected)].tolist() == expected, name


@pytest.mark.exhaustive
def test_invert_cuts_an_interval_at_the_floors_of_the_exact_boundaries() -> None:
    # Both levels compared with Python's integers, for widths from 2**64 down to one point.
    rng = np.random.default_rng(3)
    size, count = 16, 400
    logits = rng.normal(size=(count, size)).astype(np.float32) * 4
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    bits, shifts = rng.integers(0, 2**64, count, np.uint64), rng.integers(0, 64, count)
    widths = [max(1, int(w) >> int(s)) for w, s in zip(bits, shifts, strict=True)]
    widths[:3] = [2**64, 2**64 - 1, 1]
    offsets = [int(rng.integers(0, w - 1, dtype=np.uint64, endpoint=True)) for w in widths]
    distribution = distribution_of(jnp.asarray(logits))
    token, offset, last = invert(jnp.asarray(logits), pack(offsets), pack([w - 1 for w in widths]))
    offset, last = uint64.to_ints(offset), uint64.to_ints(last)
    for i in range(count):
        hits, left, width = [], offsets[i], widths[i]
        for level in (distribution.block_mass[i], distribution.token_mass[i]):
            masses = np.asarray(level if not hits else level[hits[0]]).astype(object)
            ends = np.cumsum(masses) * width // 2**31
            hits.append(int(np.argmax(ends > left)))
            low = ends[hits[-1] - 1] if hits[-1] else 0
            left, width = left - low, ends[hits[-1]] - low
        assert int(token[i]) == hits[0] * distribution.token_mass.shape[-1] + hits[1]
        assert (offset[i], last[i]) == (left, width - 1)


@pytest.mark.exhaustive
def test_a_token_with_all_the_mass_leaves_the_code_unchanged() -> None:
    rng = np.random.default_rng(0)
    code = rng.integers(0, 2**32, (50, 2), dtype=np.uint32)
    last = np.maximum(code, rng.integers(0, 2**32, (50, 2), dtype=np.uint32))
    for size in (7, 16):
        tokens = rng.integers(0, size, 50)
        logits = np.where(np.arange(size) == tokens[:, None], -3.0, -np.inf).astype(np.float32)
        got, offset_left, last_left = invert(logits, code, last)
        assert got.tolist() == tokens.tolist()
        np.testing.assert_array_equal(offset_left, code)
        np.testing.assert_array_equal(last_left, last)


@pytest.mark.exhaustive
def test_logits_that_are_not_finite_have_a_distribution() -> None:
    nan, inf = np.nan, np.inf
    large = float(np.finfo(np.float32).max)
    cases = [
        ([-inf, -inf, -inf, -inf, -inf], [1, 0, 0, 0, 0]),
        ([nan, nan, nan, nan, nan], [1, 0, 0, 0, 0]),
        ([nan, 1.0, -inf, 1.0, nan], [0, 0.5, 0, 0.5, 0]),
        ([inf, 3.0, inf, nan, -inf], [0.5, 0, 0.5, 0, 0]),
        ([inf, large, 0.0, -large, -large], [0.5, 0.5, 0, 0, 0]),
        ([-large, -large, -inf, -inf, -inf], [0.5, 0.5, 0, 0, 0]),
    ]
    # All rows are in one batch, so rows with NaN are next to rows without.
    logits = np.array([c[0] for c in cases], np.float32)
    distribution = jax.tree.map(np.asarray, distribution_of(logits))
    for i, (_, expected) in enumerate(cases):
        got = joint_masses(jax.tree.map(lambda m, i=i: m[i], distribution), 5)
        np.testing.assert_allclose(np.array(got, float) / 2**62, expected, atol=1e-9)
        assert [g == 0 for g in got] == [e == 0 for e in expected]
    bits = np.full((6, 2), 0xFFFFFFFF, np.uint32)
    assert draw(logits, bits).tolist() == [0, 0, 3, 2, 1, 1]
    assert draw(logits, bits * 0).tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "size",
    tiers.values(97, exhaustive=[256], release=[8_000]),
)
def test_a_nan_anywhere_counts_as_banned(size) -> None:
    """Each row has one NaN or two, after its maximum except in the first rows."""
    places = np.linspace(0, size - 1, ROWS).astype(int)
    logits = np.random.default_rng(size).normal(size=(len(places), size)).astype(np.float32)
    logits[:, 5] = 100.0
    logits[1, 7] = np.inf
    spoiled, banned = logits.copy(), logits.copy()
    for row, place in enumerate(places):
        spoiled[row, [place, size - 1]] = np.nan
        banned[row, [place, size - 1]] = -np.inf
    np.testing.assert_array_equal(np.isnan(jax.jit(largest)(spoiled)), True)
    np.testing.assert_array_equal(jax.jit(largest)(banned)[:, 0], banned.max(-1))
    for got, want in zip(distribution_of(spoiled), distribution_of(banned), strict=True):
        np.testing.assert_array_equal(got, want)
    bits = random_bits(size, len(places))
    np.testing.assert_array_equal(draw(spoiled, bits), draw(banned, bits))
    last = np.full_like(bits, 0xFFFFFFFF)
    for got, want in zip(invert(spoiled, bits, last), invert(banned, bits, last), strict=True):
        np.testing.assert_array_equal(got, want)
    sums = jax.jit(codes.block_sums)
    np.testing.assert_array_equal(sums(spoiled), sums(banned))


@pytest.mark.parametrize("size", tiers.values(exhaustive=[1, 8_000], release=[5, 97]))
def test_a_draw_of_known_sums_is_the_draw(size) -> None:
    logits = np.array(list(distributions(size).values()), np.float32)
    logits[0, size // 2] = np.nan
    sums = jax.jit(lambda x: codes.block_sums(x, largest(x)))(logits)
    bits = random_bits(size, 64, len(logits))
    np.testing.assert_array_equal(
        jax.vmap(draw, (None, 0, None))(logits, bits, sums), jax.vmap(draw, (None, 0))(logits, bits)
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_give_the_distribution_of_the_same_numbers_in_float32(dtype) -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(size=97) * 3, dtype)
    for narrow, wide in zip(
        distribution_of(logits), distribution_of(logits.astype(jnp.float32)), strict=True
    ):
        np.testing.assert_array_equal(narrow, wide)


@pytest.mark.exhaustive
def test_an_inversion_is_the_same_to_the_bit_in_every_program() -> None:
    # A lane alone, under vmap, and inside a larger program with products that could be fused. 1,000
    # tokens are 40 blocks of 25, which is not a multiple of any vector width.
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 3, 1000)).astype(np.float32) * 3
    bits = rng.integers(0, 2**32, (5, 3, 2), dtype=np.uint32)
    last = np.full_like(bits, 0xFFFFFFFF)

    # The divisor is an argument because some compilers replace division by a constant with a
    # multiplication by its reciprocal.
    def larger(raw, temperature, bits, last):
        return codes.invert(raw / temperature, bits, last), (raw * 2.0).sum()

    whole = invert(logits, bits, last)
    alone = invert(logits[4, 1], bits[4, 1], last[4, 1])
    jax.tree.map(lambda w, a: np.testing.assert_array_equal(w[4, 1], a), whole, alone)
    mapped = jax.jit(jax.vmap(codes.invert))(logits, bits, last)
    jax.tree.map(np.testing.assert_array_equal, whole, mapped)
    jax.tree.map(
        np.testing.assert_array_equal,
        invert(jax.jit(jnp.divide)(logits, np.float32(0.7)), bits, last),
        jax.jit(larger)(logits, np.float32(0.7), bits, last)[0],
    )


@pytest.mark.exhaustive
def test_a_sharded_vocabulary_sends_only_masses_and_one_block() -> None:
    size = 4096
    need_devices(8)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("rows", "vocab"))
    sharding = lambda *axes: jax.NamedSharding(mesh, jax.P(*axes))  # noqa: E731
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 2, size)).astype(np.float32) * 3
    bits = rng.integers(0, 2**32, (4, 2, 2), dtype=np.uint32)
    expected = draw(logits, bits)
    compiled = (
        jax.jit(codes.draw, out_shardings=sharding("rows"))
        .lower(
            jax.device_put(logits, sharding("rows", None, "vocab")),
            jax.device_put(bits, sharding("rows")),
        )
        .compile()
    )
    got = compiled(
        jax.device_put(logits, sharding("rows", None, "vocab")),
        jax.device_put(bits, sharding("rows")),
    )
    assert got.tolist() == expected.tolist()
    moved = [line for line in compiled.as_text().splitlines() if _is_collective(line)]
    assert moved
    assert max(_elements(line) for line in moved) <= 4 * 64  # 2 rows, 2 lanes, 64 blocks of 64


def _is_collective(line: str) -> bool:
    names = ("all-gather(", "all-reduce(", "all-to-all(", "collective-permute(")
    return any(name in line for name in names)


def _elements(line: str) -> int:
    shape = line.split(" = ")[1].split("[")[1].split("]")[0]
    return int(np.prod([int(n) for n in shape.split(",") if n]))


@pytest.mark.parametrize("size", [*range(1, 200), 1000, 8_000, 32_128, 50_021, 50_257, 256_000])
def test_blocks_are_about_the_square_root_and_cover_the_vocabulary(size) -> None:
    count = codes.block_count(size)
    width = -(-size // count)
    assert (count - 1) * width < size <= count * width
    assert max(count, width) <= 9 * np.sqrt(size)
