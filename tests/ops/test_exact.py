import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.ops import exact

pytestmark = pytest.mark.optimized

# Operation by operation, a sum is a program for each of its levels.
exp, divide, sum_last, sum_exp = map(
    jax.jit, (exact.exp, exact.divide, exact.sum_last, exact.sum_exp)
)


def test_exp_is_within_2e_7_of_the_exponential() -> None:
    x = np.concatenate([-np.logspace(-9, np.log10(87), 200_000), np.linspace(-87, 0, 300_000)])
    x = x.astype(np.float32)
    result = np.asarray(exp(x), np.float64)
    assert np.max(np.abs(result / np.exp(x.astype(np.float64)) - 1)) < 2e-7


def test_exp_is_zero_below_its_range_and_for_nan() -> None:
    ends = np.array([0.0, -87.5, -1e30, -np.inf, np.nan], np.float32)
    assert exp(ends).tolist() == [1, 0, 0, 0, 0]


def test_log_is_within_3e_7_of_the_logarithm() -> None:
    x = np.concatenate([np.linspace(1, 4, 200_000), np.geomspace(1, 3e38, 300_000)])
    x = x.astype(np.float32)
    want = np.log(x.astype(np.float64))
    got = np.asarray(jax.jit(exact.log)(x), np.float64)
    assert got[0] == want[0] == 0
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-12)
    np.testing.assert_array_equal(got, exact.log(jnp.asarray(x)))


@pytest.mark.parametrize("off", [-2, -1, 0, 1, 2])
def test_a_quotient_with_an_error_in_its_last_places_is_corrected(off) -> None:
    draw = np.random.default_rng(0)
    x, y = np.exp(draw.uniform(-20, 20, (2, 300_000))).astype(np.float32)
    y[::2] = draw.integers(1, 5000, y[::2].shape)
    want = x / y
    rough = (want.view(np.int32) + off).view(np.float32)
    np.testing.assert_array_equal(jax.jit(exact._corrected)(rough, x, y), want)
    np.testing.assert_array_equal(divide(-x, y), -want)
    ends = np.array([0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(divide(ends, np.float32(3)), ends)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.7])
def test_inverse_power_is_within_its_bound_and_never_rises(exponent) -> None:
    base = np.arange(1, 5000)
    got = np.asarray(exact.inverse_power(jnp.asarray(base), exponent), np.float64)
    assert (np.abs(got * base**exponent - 1) <= 3e-7 * (1 - np.log(got))).all()
    assert (np.diff(got) <= 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 250, 1733])
def test_sum_last_is_the_sum_to_a_few_units_in_the_last_place(size) -> None:
    x = np.random.default_rng(size).exponential(size=(3, size)).astype(np.float32)
    expected = x.astype(np.float64).sum(-1)
    np.testing.assert_allclose(sum_last(x), expected, rtol=1e-6)


def test_sum_last_does_not_lose_small_terms_beside_a_large_one() -> None:
    # In a sequential sum, every small term would round away, which is 0.3% of the sum.
    x = np.full(50_000, 5.5e-8, np.float32)
    x[0] = 1
    assert abs(sum_last(x).item() - (1 + 49_999 * 5.5e-8)) < 2e-6


def test_a_sum_of_exponentials_has_the_same_bits_with_and_without_an_array_of_them() -> None:
    x = np.random.default_rng(0).normal(size=(3, 5000)).astype(np.float32)
    x[1, 7], x[2] = -np.inf, -np.inf
    peak = np.array([[5], [4.5], [0]], np.float32)
    want = jax.jit(lambda x: exact.sum_last(exact.exp(x - peak)))(x)
    np.testing.assert_array_equal(sum_exp(x, peak), want)
    x[1, 7] = np.inf  # as the peak
    np.testing.assert_allclose(sum_exp(x[1], np.float32(4.5)), want[1] + 1, rtol=1e-6)


@pytest.mark.exhaustive
def test_results_do_not_depend_on_the_program_around_them() -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(-rng.exponential(size=(5, 3, 37)).astype(np.float32) * 9)

    def run(x):
        # The compiler could fuse the product before and the sum after.
        weights = exact.exp(x * 0.7)
        return exact.sum_last(weights), weights + 1

    whole = jax.jit(run)(x)
    for got, step_by_step in zip(whole, run(x), strict=True):
        np.testing.assert_array_equal(got, step_by_step)
    for got, alone in zip(whole, jax.jit(run)(x[3, 1]), strict=True):
        np.testing.assert_array_equal(got[3, 1], alone)


@pytest.mark.optimized
def test_a_running_sum_stays_next_to_the_sum() -> None:
    """50,000 numbers near -2, whose plain sum is off by hundreds of units in the last place."""
    x = np.random.default_rng(0).normal(-2, 1, 50_000).astype(np.float32)

    def step(carry, number):
        return exact.add(*carry, number), carry[0]

    zero = jnp.float32(0)
    (total, _), so_far = jax.jit(lambda x: jax.lax.scan(step, (zero, zero), x))(x)
    sums = np.cumsum(x.astype(np.float64))
    assert abs(float(total) - sums[-1]) <= np.spacing(np.float32(1e5))
    assert np.max(np.abs(so_far[1:] - sums[:-1]) / np.spacing(np.abs(so_far[1:]))) <= 1


def test_a_running_sum_of_infinities_is_no_nan() -> None:
    for numbers in ([-np.inf, -1.0], [-1.0, -np.inf, -np.inf]):
        total = lost = jnp.float32(0)
        for number in numbers:
            total, lost = exact.add(total, lost, jnp.float32(number))
        assert (total.item(), lost.item()) == (-np.inf, 0)
