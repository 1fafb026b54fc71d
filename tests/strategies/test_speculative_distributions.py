"""Speculative decoding follows the target's distribution: by exact sums, or by chi-square tests.

The statistical cases are the certificate's, with 512 rows for each prompt; at most 48 tests of a
case share a level of 1e-3. A case has several drafters, and the prompt selects one of them.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from decoding_jax import codes, transforms
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import (
    VERIFIERS,
    Heuristic,
    Measured,
    ModelDrafter,
    distributions,
    stages,
)
from decoding_jax.strategies.speculative.verifiers.block import candidate_probs, joint_ratio
from decoding_jax.strategies.speculative.verifiers.token import draft_probs
from decoding_jax.testing.certificate import problems, running
from decoding_jax.testing.certificate.problems import VOCAB, Problem
from decoding_jax.testing.certificate.strategies import DRAFTS, DraftCase, find


def few(rows):
    """Truncations that compile quickly; the certificate covers all of them."""
    low, share = np.float32([0.5, 0.0, 1.0, 2.0, 0.7, 1.0, 1.5, 1.0]), np.float32([0.1, 0.3] * 4)
    return transforms.chain(transforms.temperature(low[rows]), transforms.min_p(share[rows]))


def smallest_sets(rows):
    """Truncations to smallest sets, for drafters whose drafts are not transformed."""
    high, count = np.float32([0.6, 0.9, 1, 1] * 2), np.int32([4, 4, 2, 3] * 2)
    return transforms.chain(transforms.top_k(count[rows]), transforms.top_p(high[rows]))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(problems.TRANSFORMS, "few", few)
    monkeypatch.setitem(problems.TRANSFORMS, "smallest sets", smallest_sets)
    monkeypatch.setattr(running, "REPEATS", 512)


@pytree
@dataclasses.dataclass(frozen=True)
class Mixed:
    """Several drafters with distributions; a row's prompt determines which one it uses."""

    parts: Any

    vocab_size = VOCAB

    def init(self, prompt, *, lanes, max_new_tokens):
        which = (prompt.tokens[:, 0] + 2 * prompt.length) % len(self.parts)
        made = [p.init(prompt, lanes=lanes, max_new_tokens=max_new_tokens) for p in self.parts]
        return which, made

    def _choose(self, which, results):
        logits = jnp.stack([logits for logits, _ in results], axis=1)
        chosen = jnp.take_along_axis(logits, which[:, None, None, None], axis=1)[:, 0]
        return chosen, (which, [state for _, state in results])

    def begin(self, state, path):
        pairs = zip(self.parts, state[1], strict=True)
        return self._choose(state[0], [p.begin(s, path) for p, s in pairs])

    def next(self, state, token, slot):
        pairs = zip(self.parts, state[1], strict=True)
        return self._choose(state[0], [p.next(s, token, slot) for p, s in pairs])


@pytree
@dataclasses.dataclass(frozen=True)
class MixedGuesses:
    """Several guessers; a row's prompt determines which one it uses."""

    parts: Any

    def init(self, prompt, *, lanes, max_new_tokens):
        return (prompt.tokens[:, 0] + 2 * prompt.length) % len(self.parts)

    def guess(self, state, path, count):
        guesses = jnp.stack([p.guess((), path, count) for p in self.parts], axis=1)
        return jnp.take_along_axis(guesses, state[:, None, None, None], axis=1)[:, 0]


def drafts_distributions(num_draft_tokens):
    names = ("itself, 4", "another, 3", "with zeros, 2", "bigram, up to 6")
    as_drafter = lambda made: made if hasattr(made, "begin") else ModelDrafter(made)  # noqa: E731
    return DraftCase(
        lambda model: Mixed([as_drafter(DRAFTS[name].make(model)) for name in names]),
        num_draft_tokens,
    )


def drafts_guesses(num_draft_tokens):
    names = ("next token, 1", "prompt lookup, 7")
    make = lambda model: MixedGuesses([DRAFTS[name].make(model) for name in names])  # noqa: E731
    return DraftCase(make, num_draft_tokens)


def drafts_by(name, num_draft_tokens, **rules):
    return DraftCase(
        lambda model: ModelDrafter(DRAFTS[name].make(model), **rules), num_draft_tokens
    )


CONFIDENT = drafts_by("another, 3", Heuristic(None, first=2), min_confidence=0.5)
CASES = [
    ("token", drafts_distributions(2), Problem("zeros", "history", "end tokens"), "as is"),
    ("block", drafts_distributions(3), Problem("smooth", "few", "sequences"), "as is"),
    ("gumbel", drafts_distributions(1), Problem("smooth", "constraints", "sequences"), "as is"),
    (
        "code",
        drafts_distributions(Heuristic(max_draft_tokens=4, first=2)),
        Problem("ties", "none", "end tokens"),
        "as is",
    ),
    ("coded_token", drafts_distributions(3), Problem("zeros", "none", "sequences"), "as is"),
    (
        "greedy",
        drafts_distributions(Measured(5)),
        Problem("zeros", "none", "one token"),
        "as is",
    ),
    ("token", drafts_guesses(8), Problem("ties", "none", "sequences"), "one key"),
    ("token", DRAFTS["another, 3 of 2"], Problem("zeros", "history", "sequences"), "as is"),
    ("block", drafts_guesses(3), Problem("zeros", "smallest sets", "end tokens"), "as is"),
    ("coded_token", drafts_guesses(2), Problem("smooth", "none", "none"), "as is"),
    ("token", drafts_by("another, 3", 3, greedy=True), Problem("zeros", "few", "none"), "as is"),
    ("block", CONFIDENT, Problem("smooth", "few", "sequences"), "as is"),
    ("block", DRAFTS["another, 3 of 2"], Problem("zeros", "history", "end tokens"), "as is"),
    ("token", DRAFTS["eagle, 3"], Problem("zeros", "history", "sequences"), "as is"),
    ("block", DRAFTS["eagle, 3 of 2"], Problem("smooth", "few", "end tokens"), "as is"),
    ("block", DRAFTS["multi-token, 3"], Problem("zeros", "history", "end tokens"), "as is"),
    ("token", DRAFTS["multi-token, 2 of 3"], Problem("smooth", "few", "sequences"), "as is"),
    ("block", DRAFTS["another, up to 3 of 2"], Problem("zeros", "few", "end tokens"), "as is"),
    ("token", DRAFTS["eagle, trees of 6"], Problem("zeros", "history", "end tokens"), "as is"),
    ("token", DRAFTS["dflash, 3 of 2"], Problem("smooth", "few", "sequences"), "as is"),
    ("coded_token", DRAFTS["another, tree of 5"], Problem("smooth", "few", "none"), "as is"),
    ("block", DRAFTS["assistant, 3"], Problem("zeros", "history", "end tokens"), "as is"),
]


# Every other verifier has a case of its own, which each run takes.
CASES += [
    (name, drafts_distributions(3), Problem("smooth", "few", "sequences"), "as is")
    for name in VERIFIERS
    if name not in {case[0] for case in CASES}
]


# Other tests compare the verifiers of 2, 3 and 5, and the guesses of 6, 8 and 9, to the bit.
# The block verifier, 1, and the trees of drafts, 7, 12, 14 and 16 to 19, take longest.
def tier_of(i):
    if i == 0 or i > 21:
        return ()
    return pytest.mark.exhaustive if i in (1, 7, 17, 21) else pytest.mark.release


@pytest.mark.parametrize(
    ("verifier", "draft", "problem", "run"),
    [pytest.param(*case, id=f"{case[0]}-{i}", marks=tier_of(i)) for i, case in enumerate(CASES)],
)
def test_the_distribution_is_the_targets(verifier, draft, problem, run):
    (strategy,) = find([f"speculative_sample/{verifier}"])
    strategy = dataclasses.replace(strategy, draft=draft)
    result = running.certify_case(strategy, problem, run)
    assert result.failure is None
    assert min(result.p_values, default=1.0) > 1e-3 / 48


softmax = jax.jit(distributions.softmax)
residual_of = jax.jit(distributions.residual)
weighted = jax.jit(codes.weighted_distribution)


@jax.jit
def probs_of(logits):
    return distributions.softmax(logits).probs()


def integers(weights):
    """The distribution of a draw by ``weights [..., V]``, float64."""
    distribution = weighted(weights)
    inside = np.asarray(distribution.token_mass, np.float64) / 2**31
    mass = np.asarray(distribution.block_mass, np.float64)[..., None] / 2**31 * inside
    return mass.reshape(*mass.shape[:-2], -1)[..., : np.shape(weights)[-1]]


def random_distributions(rng, shape, zeros):
    """Float32 logits of distributions of any sharpness, with zeros."""
    logits = np.exp(rng.normal(size=(*shape[:-1], 1))) * rng.normal(size=shape)
    banned = rng.random(shape) < zeros
    spare = rng.integers(0, shape[-1], shape[:-1])
    banned &= np.arange(shape[-1]) != spare[..., None]
    return np.where(banned, -np.inf, logits).astype(np.float32)


@pytest.mark.parametrize("zeros", [0.0, 0.5])
@pytest.mark.parametrize("size", [3, 1009])
def test_a_token_accepted_or_replaced_has_the_targets_distribution(size, zeros):
    """Summed over all drafts, to 1e-6 for each token; sum(min(p, q)) of them are accepted."""
    rng = np.random.default_rng(size)
    target, draft = (probs_of(random_distributions(rng, (40, size), zeros)) for _ in range(2))
    p, q = np.asarray(target, np.float64), np.asarray(draft, np.float64)
    # A drafted token is accepted if u q < p, where u is one of 2**24 numbers.
    with np.errstate(divide="ignore", invalid="ignore"):
        acceptance = np.where(q > 0, np.minimum(np.ceil(p / q * 2**24) / 2**24, 1), 0)
    drawn = integers(q.astype(np.float32))
    accepted = (drawn * acceptance).sum(-1)
    residual = integers(residual_of(target, draft))
    distribution = drawn * acceptance + (1 - accepted)[:, None] * residual
    np.testing.assert_allclose(distribution, p, atol=1e-6)
    np.testing.assert_allclose(accepted, np.minimum(p, q).sum(-1), atol=1e-6)


def test_equal_distributions_have_no_residual_and_are_never_rejected():
    logits = random_distributions(np.random.default_rng(0), (40, 1009), 0.3)
    one, other = probs_of(logits), probs_of(logits[:, None])
    assert (np.asarray(one) == np.asarray(other)[:, 0]).all()
    assert (np.asarray(jax.jit(distributions.excess)(one, one)) == 0).all()
    np.testing.assert_array_equal(integers(residual_of(one, one)), integers(one))
    assert (distributions.uniform(jnp.full((1, 2), 2**32 - 1, jnp.uint32)) < 1).all()


@pytest.mark.exhaustive
def test_codes_of_accepted_tokens_stay_spread_evenly():
    """Of 64 lanes whose draft is its target, a pair of tokens has 64 p, rounded up or down."""
    rows, lanes = 4, 64
    rng = np.random.default_rng(6)
    first, second = (random_distributions(rng, (rows, *shape), 0) for shape in ((3,), (3, 3)))

    @jax.jit
    def block(first, second):
        verifier, zero = VERIFIERS["coded_token"], jnp.zeros((rows, lanes), jnp.int32)
        keys, state = verifier.init(jax.random.key(7), rows, lanes)
        logits = jnp.broadcast_to(first[:, None], (rows, lanes, 3))
        token, after = verifier.draw(keys, state, distributions.softmax(logits), zero, zero)
        states = jax.tree.map(lambda x: x[None], after)
        drafted = distributions.softmax(logits[:, :, None])
        draft = stages.Draft(token[..., None], zero + 1, drafted, states)
        following = jnp.take_along_axis(second, token[..., None], axis=1)
        target = distributions.softmax(jnp.stack([logits, following], axis=2))
        return verifier.verify(keys, state, draft, target, zero, zero)

    found = jax.device_get(block(first, second))
    assert (found.accepted == 1).all()
    count = np.zeros((rows, 3, 3))
    np.add.at(count, (np.arange(rows)[:, None], *np.moveaxis(found.tokens, -1, 0)), 1)
    p, following = (special.softmax(x.astype(np.float64), -1) for x in (first, second))
    assert (np.abs(count - lanes * p[..., None] * following) < 1.001).all()


def block_of_two(p, q, drafts):
    """A block whose rows are all drafts of two tokens, with distributions given the path."""
    first, second = drafts[:, 0], drafts[:, 1]
    with np.errstate(divide="ignore"):
        p, q = ([np.log(x) for x in distribution] for distribution in (p, q))
    logits = lambda x: np.stack([x[0][first * 0], x[1][first]], 1)[:, None]  # noqa: E731
    target = np.concatenate([logits(p), p[2][first, second][:, None, None]], axis=2)
    count = np.full((len(drafts), 1), 2, np.int32)
    return stages.Draft(drafts[:, None], count, softmax(logits(q)), ()), target


@jax.jit
def ratio_and_candidates(block, target):
    target = distributions.softmax(target)
    joint = joint_ratio(*draft_probs(block, target))
    return joint, candidate_probs(block, target, joint)


def distributions_of_paths(rng, size):
    """Distributions of a first token, of a second given it, and of a third given both."""
    made = [
        special.softmax(random_distributions(rng, (*[size] * i, size), 0.2), -1) for i in range(3)
    ]
    return [made[0][None], made[1], made[2]]


def test_block_verification_keeps_the_joint_distribution():
    """Summed over all drafts of two tokens of three and all continuations, to 1e-6."""
    rng = np.random.default_rng(3)
    p, q = distributions_of_paths(rng, 3), distributions_of_paths(rng, 3)
    drafts = np.array(list(itertools.product(range(3), repeat=2)), np.int32)
    joint, candidate = map(np.asarray, ratio_and_candidates(*block_of_two(p, q, drafts)))
    candidate = candidate[:, 0].astype(np.float64)
    scale = np.concatenate([np.ones((9, 1)), joint[:, 0]], 1)
    p, q = ([np.asarray(x, np.float64) for x in distribution] for distribution in (p, q))
    got = np.zeros((3, 3, 3))
    for (a, b), one, ratio in zip(drafts, candidate, scale, strict=True):
        drafted = q[0][0, a] * q[1][a, b]
        whole, part = one[1], (1 - one[1]) * one[0]
        got[a, b] += drafted * whole * p[2][a, b]
        for count, weight in ((1, part), (0, 1 - whole - part)):
            residual = np.maximum(ratio[count] * p[count][a * count] - q[count][a * count], 0)
            if weight > 1e-9:
                residual = residual / residual.sum()
                if count == 1:
                    got[a] += drafted * weight * residual[:, None] * p[2][a]
                else:
                    got += drafted * weight * residual[:, None, None] * p[1][:, :, None] * p[2]
    want = p[0][0][:, None, None] * p[1][:, :, None] * p[2]
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_block_verification_accepts_eleven_ninths_where_token_verification_accepts_ten():
    """Sun et al. 2024, section 2: K = 2, target (1/3, 2/3), draft (2/3, 1/3), whatever the path."""
    p, q = np.array([1 / 3, 2 / 3], np.float32), np.array([2 / 3, 1 / 3], np.float32)
    drafts = np.array(list(itertools.product(range(2), repeat=2)), np.int32)
    spread = lambda x: [x[None], np.tile(x, (2, 1)), np.tile(x, (2, 2, 1))]  # noqa: E731
    block, target = block_of_two(spread(p), spread(q), drafts)
    drafted = q[drafts].prod(-1)
    one, two = np.asarray(ratio_and_candidates(block, target)[1])[:, 0].T
    np.testing.assert_allclose((drafted * (2 * two + (1 - two) * one)).sum(), 11 / 9, rtol=1e-6)
    one, two = np.minimum(p[drafts] / q[drafts], 1).T
    np.testing.assert_allclose((drafted * (one + one * two)).sum(), 10 / 9, rtol=1e-6)
    # The verifiers accept as many tokens on 2**12 lanes of each of the four drafts.
    lanes = 2**12

    @functools.partial(jax.jit, static_argnums=0)
    def accepted(name, block, target):
        repeated = jax.tree.map(
            lambda x: jnp.tile(x, (1, lanes) + (1,) * (x.ndim - 2)),
            (block, distributions.softmax(target)),
        )
        keys, state = VERIFIERS[name].init(jax.random.key(5), 4, lanes)
        position, counter = jnp.zeros((4, lanes), jnp.int32), jnp.ones((4, lanes), jnp.int32)
        return VERIFIERS[name].verify(keys, state, *repeated, position, counter).accepted

    for name, mean in (("block", 11 / 9), ("token", 10 / 9)):
        got = (drafted * np.asarray(accepted(name, block, target)).mean(-1)).sum()
        assert abs(got - mean) < 5 * 1 / np.sqrt(4 * lanes)  # Five standard errors.
