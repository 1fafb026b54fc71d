"""Arithmetic codes compared with exact rationals: counts, marginals, long texts.

A language model is a table ``logits[previous token, token]`` for each row. The reference
computes intervals in Python's integers, only from the integer distribution.
"""

import functools
import itertools
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machine import need_devices
from scipy import stats

from decoding_jax import codes
from decoding_jax.ops import random, uint64

pytestmark = pytest.mark.optimized

V = 6  # two blocks of three
STEPS = 4
ROWS = 12  # of every table, so that tests share programs
LINE = 2**64


def tables(rows: int, seed: int = 0) -> np.ndarray:
    """float32 [rows, V + 1, V]: skewed, banned, dyadic, certain; index V is for the first token."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, V + 1, V)) * rng.choice([0.0, 0.5, 2, 6], (rows, 1, 1))
    dyadic = np.log([1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8])
    logits[::4] = rng.permuted(np.broadcast_to(dyadic, logits[::4].shape), axis=-1)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    certain = rng.random((rows, V + 1)) < 0.1
    logits[certain] = np.where(np.arange(V) == rng.integers(V), 0.0, -np.inf)
    return logits.astype(np.float32)


@jax.jit
def decode(table, code):
    """The tokens [rows, N, STEPS] of the codes, and the codes that remain."""

    def step(carry, position):
        previous, code = carry
        logits = jnp.take_along_axis(table, previous[..., None], axis=1)
        token, code = codes.choose(code, logits, position)
        return (token, code), token

    first = jnp.full(code.offset.shape[:2], V)
    (_, code), tokens = jax.lax.scan(step, (first, code), jnp.arange(STEPS))
    return jnp.moveaxis(tokens, 0, -1), code


distribution_of = jax.jit(codes.integer_distribution)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def codes_of(seed, name, num_samples, rows=ROWS):
    """The codes of the samples of each row."""
    return codes.start(name, random.row_keys(jax.random.key(seed), rows), num_samples)


class Interval(NamedTuple):
    """A prefix of the reference. While it is carried, it is [start, start + width) of the line."""

    prefix: tuple[int, ...]
    start: int
    width: int
    p: Fraction  # as the module docstring defines it
    product: Fraction  # of the integer distributions, unrounded
    carried: int  # tokens chosen by the carried code


def distributions(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distribution = distribution_of(table)
    return tuple(np.asarray(m).astype(object) for m in distribution)


def ends(masses: np.ndarray, width: int) -> list[int]:
    return [0, *(np.cumsum(masses) * width // 2**31)]


def children(node: Interval, distribution, num_samples: int) -> list[Interval]:
    block, token = (m[node.prefix[-1] if node.prefix else V] for m in distribution)
    size = token.shape[1]
    alone = num_samples * node.width <= LINE
    result = []
    block_ends = ends(block, node.width)
    for v in range(V):
        k, j = divmod(v, size)
        share = Fraction(int(block[k]) * int(token[k, j]), 2**62)
        token_ends = ends(token[k], block_ends[k + 1] - block_ends[k])
        width = token_ends[j + 1] - token_ends[j]
        if not share:
            assert not width
            continue
        if alone:
            new = (node.start, node.width, node.p * share, node.carried)
        else:
            start = node.start + block_ends[k] + token_ends[j]
            new = (start, width, Fraction(width, LINE), node.carried + 1)
        result.append(Interval((*node.prefix, v), *new[:3], node.product * share, new[3]))
    return result


def tree(table: np.ndarray, num_samples: int) -> list[Interval]:
    """Every prefix of up to STEPS tokens."""
    distribution = distributions(table)
    level = [Interval((), 0, LINE, Fraction(1), Fraction(1), 0)]
    result = []
    for _ in range(STEPS):
        level = [child for node in level for child in children(node, distribution, num_samples)]
        result += level
    return result


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "num_samples", [*(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 8)), 50]
)
def test_lattice_counts_are_the_floor_or_the_ceiling_at_every_prefix(num_samples) -> None:
    table = tables(ROWS, num_samples)
    tokens = np.asarray(decode(table, codes_of(num_samples, "lattice", num_samples))[0])
    for row in range(ROWS):
        counts: dict[tuple[int, ...], int] = {}
        for sample in tokens[row].tolist():
            for length in range(1, STEPS + 1):
                prefix = tuple(sample[:length])
                counts[prefix] = counts.get(prefix, 0) + 1
        for node in tree(table[row], num_samples):
            got = counts.pop(node.prefix, 0)
            expected = num_samples * node.p
            assert floor(expected) <= got <= ceil(expected)
            # The same holds for the unrounded product of the integer distributions at every node.
            product = num_samples * node.product
            assert abs(node.p - node.product) * LINE <= 2 * node.carried
            assert node.p == node.product or product.denominator > 1
            assert floor(product) <= got <= ceil(product)
        assert not counts  # no prefix of probability zero was drawn


@pytest.mark.parametrize("num_samples", [pytest.param(7, marks=pytest.mark.exhaustive), 50])
def test_marginals_are_exact_by_the_measure_of_the_codes(num_samples) -> None:
    # Every carried prefix owns the codes of an interval. Both ends of the interval decode to it,
    # and the intervals of each length follow one another from 0 to 2**64 without a gap. A point is
    # uniform, so the probability of the prefix is exactly width / 2**64. Later tokens draw fresh
    # bits with the distribution of `draw`, which test_cdf.py tests.
    table = tables(1, seed=9)
    table[0, V] = [0.3, -2, 1, 0.1, -9, 0.5]
    nodes = [n for n in tree(table[0], num_samples) if n.carried == len(n.prefix) and n.width]
    assert max(len(n.prefix) for n in nodes) >= 2
    points = [p for n in nodes for p in (n.start, n.start + n.width - 1)]
    points += points[-1:] * (-len(points) % ROWS)
    table = np.broadcast_to(table, (ROWS, V + 1, V))
    code = codes_of(0, "lattice", num_samples)
    tokens = []
    for i in range(0, len(points), ROWS):
        offset = np.stack([uint64.from_int(p) for p in points[i : i + ROWS]])[:, None]
        offset = np.broadcast_to(offset, (ROWS, num_samples, 2))
        same = codes.Code(offset, np.full_like(offset, 0xFFFFFFFF), code.keys)
        tokens += np.asarray(decode(table, same)[0])[:, 0].tolist()
    for i, node in enumerate(nodes):
        for got in tokens[2 * i : 2 * i + 2]:
            assert tuple(got[: len(node.prefix)]) == node.prefix
    for length in (1, 2):
        same_length = [n for n in nodes if len(n.prefix) == length]
        if length == 1:
            assert sum(n.width for n in same_length) == LINE
            assert all(n.p == n.product for n in same_length)
        for node, following in itertools.pairwise(sorted(same_length, key=lambda n: n.start)):
            assert node.start + node.width <= following.start
    for parent in (n for n in nodes if num_samples * n.width > LINE and len(n.prefix) < STEPS):
        inside = [n for n in nodes if n.prefix[:-1] == parent.prefix]
        assert sum(n.width for n in inside) == parent.width


@pytest.mark.exhaustive
def test_samples_follow_the_reference_token_by_token() -> None:
    # The whole decode in Python's integers: carried tokens from the code, later ones from the bits
    # of row, lane and position. The points are evenly spread (lattice) and random (iid).
    rows, num_samples = 4, 8
    table = tables(ROWS, seed=3)
    bits_at = jax.jit(random.bits_at)
    for name in ("lattice", "iid"):
        code = codes_of(1, name, num_samples)
        tokens = np.asarray(decode(table, code)[0])
        offsets = uint64.to_ints(code.offset)
        fresh = [uint64.to_ints(bits_at(code.keys, np.int32(t))) for t in range(STEPS)]
        for row in range(rows):
            distribution = distributions(table[row])
            for lane in range(num_samples):
                node, point = Interval((), 0, LINE, Fraction(1), Fraction(1), 0), offsets[row, lane]
                for t in range(STEPS):
                    if num_samples * node.width > LINE:
                        found = [
                            child
                            for child in children(node, distribution, num_samples)
                            if child.start <= point < child.start + child.width
                        ]
                    else:
                        # A draw applies the same rule to the whole line.
                        root = Interval(node.prefix, 0, LINE, Fraction(1), Fraction(1), 0)
                        bits = fresh[t][row, lane]
                        found = [
                            Interval(child.prefix, node.start, node.width, *node[3:])
                            for child in children(root, distribution, num_samples + 1)
                            if child.start <= bits < child.start + child.width
                        ]
                    (node,) = found
                    assert tokens[row, lane, t] == node.prefix[-1]


@pytest.mark.exhaustive
def test_uniform_text_stays_uniform_and_samples_distinct_for_2000_tokens() -> None:
    # 512 samples of 2,000 tokens from a uniform model of 256 tokens. Chi-square at level 1e-3: over
    # all 1,024,000 tokens, over the last 51,200, and in 64 bins over 32,768 disjoint pairs of
    # neighbours in time and as many of neighbouring lanes.
    num_samples, steps = 512, 2000
    logits = jnp.zeros((1, num_samples, 256))

    @jax.jit
    def run(code):
        def step(code, position):
            token, code = codes.choose(code, logits, position)
            return code, token[0]

        return jax.lax.scan(step, code, jnp.arange(steps))[1]

    code = codes_of(2, "lattice", num_samples, rows=1)
    tokens = np.asarray(run(code))
    assert np.all(np.bincount(tokens[0], minlength=256) == 2)
    for part in (tokens, tokens[-100:]):
        assert stats.chisquare(np.bincount(part.ravel(), minlength=256)).pvalue > 1e-3
    coarse = tokens[-128:] >> 5
    for pairs in (coarse[::2] * 8 + coarse[1::2], coarse[:, ::2] * 8 + coarse[:, 1::2]):
        assert stats.chisquare(np.bincount(pairs.ravel(), minlength=64)).pvalue > 1e-3
    for start in (0, steps - 8):
        assert len({tuple(sample) for sample in tokens[start : start + 8].T}) == num_samples


@pytest.mark.exhaustive
def test_steps_with_one_or_no_allowed_token_leave_the_code_unchanged() -> None:
    shape = (ROWS, 8, V)
    choose = jax.jit(codes.choose)
    _, code = choose(codes_of(1, "lattice", 8), np.zeros(shape, np.float32), 0)
    forced = np.where(np.arange(V) == 3, 1.5, -np.inf)
    for logits, expected in [(forced, 3), (np.full(V, -np.inf), 0), (np.full(V, np.nan), 0)]:
        token, after = choose(code, np.broadcast_to(logits, shape).astype(np.float32), 1)
        assert np.all(np.asarray(token) == expected)
        np.testing.assert_array_equal(after.offset, code.offset)
        np.testing.assert_array_equal(after.last, code.last)


@pytest.mark.exhaustive
def test_a_row_has_the_same_tokens_in_any_batch_and_on_any_device() -> None:
    table = tables(ROWS, seed=4)
    code = codes_of(3, "lattice", 8)
    tokens = np.asarray(decode(table, code)[0])
    keys = random.row_keys(jax.random.key(3), ROWS)
    alone = decode(table[5:6], jax.jit(lambda key: codes.start("lattice", key, 8))(keys[5:6]))[0]
    np.testing.assert_array_equal(alone[0], tokens[5])
    need_devices(8)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "lanes"))
    sharding = jax.NamedSharding(mesh, jax.P("rows", "lanes"))
    spread = jax.tree.map(lambda x: jax.device_put(x, sharding), code)
    table = jax.device_put(table, jax.NamedSharding(mesh, jax.P("rows")))
    np.testing.assert_array_equal(decode(table, spread)[0], tokens)


@pytest.mark.parametrize("num_samples", [1, 2, 3, 1000, 4096])
def test_alone_is_n_times_width_at_most_the_line(num_samples) -> None:
    widest = LINE // num_samples
    last = [w - 1 for w in (widest, widest + 1, 1, LINE) if w <= LINE]
    pairs = np.stack([uint64.from_int(x) for x in last])[:, None]
    pairs = np.broadcast_to(pairs, (len(last), num_samples, 2))
    alone = np.asarray(jax.jit(codes.is_alone)(pairs))[:, 0]
    assert alone.tolist() == [num_samples * (x + 1) <= LINE for x in last]
