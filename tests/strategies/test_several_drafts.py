"""Verification of several drafts, summed over all drafts and all choices of their path."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from decoding_jax.strategies.speculative import distributions, stages
from decoding_jax.strategies.speculative.verifiers.block import prefix_probs
from decoding_jax.strategies.speculative.verifiers.select_path import bounds, select_path
from experiments import verification_bounds

HIGH = np.float32(1 - 2**-24)


def tables(rng, vocab_size, size, kind):
    """Logits of target and draft after each path of up to K tokens."""
    found = []
    for _ in range(2):
        shape = [(*[vocab_size] * i, vocab_size) for i in range(size + 1)]
        logits = [rng.normal(size=s) * 2 for s in shape]
        if kind == "zeros":
            spare = [rng.integers(0, vocab_size, s[:-1]) for s in shape]
            index = np.arange(vocab_size)
            logits = [
                np.where((rng.random(x.shape) < 0.4) & (index != n[..., None]), -np.inf, x)
                for x, n in zip(logits, spare, strict=True)
            ]
        if kind == "ties":
            logits = [np.round(x / 3) for x in logits]
        found.append([x.astype(np.float32) for x in logits])
    return [found[0], found[0]] if kind == "equal" else found


@functools.partial(jax.jit, static_argnums=4)
def select(tokens, logits, target, uniforms, length):
    lengths = jnp.full(tokens.shape[:2], length, jnp.int32)
    selection = select_path(stages.Drafts(tokens, logits), lengths, target, uniforms)
    candidate = prefix_probs(selection.joint, selection.mass[..., 1:], lengths)
    scale = jnp.pad(selection.joint, ((0, 0), (0, 0), (1, 0)), constant_values=1.0)
    return selection, candidate, scale


@jax.jit
def residual_of(target, draft, scale):
    return distributions.residual(target, draft, scale)


def every_outcome(p, q, num_drafts, length=None):
    """All drafts with all choices of which tokens are preferred.

    Returns:
      The expected number of accepted tokens, and the distribution of the first K + 1 tokens where
      the target continues what a block gives.
    """
    vocab_size, size = p[0].shape[-1], len(p) - 1
    length = size if length is None else length
    probs = [[special.softmax(x.astype(np.float64), -1) for x in table] for table in (p, q)]
    places = size * num_drafts
    all_tokens = np.array(list(itertools.product(range(vocab_size), repeat=places)), np.int32)
    choices = np.array(list(itertools.product([0, 1], repeat=places)), np.int32)
    tokens = np.repeat(all_tokens.reshape(-1, size, num_drafts), len(choices), 0)
    choice = np.tile(choices.reshape(-1, size, num_drafts), (len(all_tokens), 1, 1))
    paths = [tuple(tokens[:, j] for j in range(i)) for i in range(size + 1)]
    logits = np.stack([q[i][paths[i]] for i in range(1, size)], 1) if size > 1 else None
    first = np.broadcast_to(q[0], (len(tokens), 1, num_drafts, vocab_size))
    logits = first if logits is None else np.concatenate([first, logits], 1)
    nodes = [np.broadcast_to(p[0], (len(tokens), 1, vocab_size))]
    nodes += [p[i][paths[i]] for i in range(1, size + 1)]
    target = np.concatenate(nodes, 1)
    uniforms = np.where(choice == 1, np.float32(0), HIGH)
    given = (tokens, logits, target, uniforms)
    found, candidate, scale = jax.device_get(select(*(x[:, None] for x in given), length))
    found = jax.tree.map(lambda x: x[:, 0].astype(np.float64), found)
    candidate, scale = candidate[:, 0].astype(np.float64), scale[:, 0]
    weight = np.ones(len(tokens))
    for i in range(size):
        drawn = probs[1][i][paths[i]] if i else np.broadcast_to(probs[1][0], first[:, 0].shape)
        weight *= np.take_along_axis(drawn, tokens[:, i, :, None], -1)[..., 0].prod(-1)
    preferred = np.where(np.arange(size)[None, :, None] < length, found.preferred, 0)
    weight *= np.where(choice == 1, preferred, 1 - preferred).prod((1, 2))
    accepted, joint = 0.0, np.zeros((vocab_size,) * (length + 1))
    path = found.tokens.astype(int)
    # No draft is preferred after it has left the path, not even by a uniform number of 0.
    is_path = tokens[:, :length] == path[:, :length, None]
    assert is_path.all(1).any(-1).all()
    for count in range(length, -1, -1):
        chance = weight * (candidate[:, count - 1] if count else 1.0)
        weight = weight - chance
        accepted += (chance * count).sum()
        before = tuple(path[:, j] for j in range(count))
        after = probs[0][count][before] if count else np.tile(probs[0][0], (len(tokens), 1))
        if count < length:
            draft = probs[1][count][before] if count else np.tile(probs[1][0], (len(tokens), 1))
            draft = np.float32(found.ceiling[:, count, None] * draft)
            after = residual_of(np.float32(after), draft, scale[:, count, None])
            after = np.asarray(after, np.float64)
            after /= after.sum(-1, keepdims=True)
        part = np.zeros((vocab_size,) * (count + 1))
        mass = chance[:, None] * after
        np.add.at(part, before or np.index_exp[...], mass if count else mass.sum(0))
        for i in range(count + 1, length + 1):
            part = part[..., None] * probs[0][i]
        joint += part
    return accepted, joint, probs[0]


def joint_of(probs, length):
    joint = probs[0]
    for i in range(1, length + 1):
        joint = joint[..., None] * probs[i]
    return joint


@pytest.mark.parametrize("kind", ["any", "zeros", "ties", "equal"])
@pytest.mark.parametrize(
    ("vocab_size", "size", "num_drafts"),
    [(3, 2, 2), *(pytest.param(*c, marks=pytest.mark.exhaustive) for c in [(2, 3, 2), (2, 2, 3)])],
)
def test_the_selected_path_keeps_the_joint_distribution(kind, vocab_size, size, num_drafts):
    """For all trees of C drafts of K tokens, and for drafts that are cut, to 2e-6."""
    rng = np.random.default_rng([vocab_size, size, num_drafts])
    p, q = tables(rng, vocab_size, size, kind)
    for length in (size, 1):
        accepted, joint, probs = every_outcome(p, q, num_drafts, length)
        np.testing.assert_allclose(joint, joint_of(probs, length), atol=2e-6)
        if kind == "equal":
            np.testing.assert_allclose(accepted, length, atol=1e-6)


def pair_of(p, q):
    """The same distributions, as the experiment takes them."""
    size, vocab_size = len(p) - 1, p[0].shape[-1]
    pair = verification_bounds.Pair({}, {}, vocab_size, size)
    for length in range(size + 1):
        for path in pair.paths(length):
            for given, table in ((pair.p, p), (pair.q, q)):
                given[path] = special.softmax(table[length][path].astype(np.float64))
    return pair


def test_as_many_tokens_are_accepted_as_the_definition_says_and_no_more_than_the_optimum():
    """Every rule keeps the distribution; ``block`` is the best of them here, and 0.97 of the bound.

    Traversal verification accepts at least as many tokens as recursive rejection.
    """
    p, q = tables(np.random.default_rng(4), 2, 2, "any")
    pair = pair_of(p, q)
    means = {}
    for name, rule in verification_bounds.RULES.items():
        means[name], joint = verification_bounds.summed(rule, pair, 2)
        for tokens, probability in joint.items():
            want = verification_bounds.probability(pair.p, tokens)
            assert abs(probability - want) < 1e-9, name
    optimum = verification_bounds.optimum(pair, 2)
    accepted, _, _ = every_outcome(p, q, 2)
    np.testing.assert_allclose(accepted, means["block"], atol=2e-6)
    assert max(means.values()) <= optimum + 1e-9
    assert means["token"] <= means["traversal"] + 1e-12
    assert means["block"] > means["traversal"]
    assert means["block"] > 0.97 * optimum


def test_the_bounds_take_a_distribution_from_several_draws():
    """s sums to 1, is q for one draft, and is p where the draws can give it."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, 64, 50)).astype(np.float32)
    p, q = np.asarray(jax.jit(distributions.softmax)(logits).probs())
    count = np.repeat(np.int32([1, 2, 3, 4]), 16)
    scaled = p * np.float32([1, 0.7])[np.arange(64) % 2][:, None]
    low, high = map(np.asarray, jax.jit(bounds, static_argnums=3)(scaled, q, count, 4))
    s = np.clip(scaled, low[:, None] * q, high[:, None] * q)
    np.testing.assert_allclose(s.sum(-1), 1, atol=1e-6)
    np.testing.assert_array_equal(s[:16], q[:16])
    for row in range(64):
        want = verification_bounds.bounds(np.float64(scaled[row]), np.float64(q[row]), count[row])
        np.testing.assert_allclose((low[row], high[row]), want, atol=2e-6)
    near = q * np.float32(1 + 0.2 * np.cos(np.arange(50)))
    near /= near.sum(-1, keepdims=True)
    low, high = map(np.asarray, jax.jit(bounds, static_argnums=3)(near, q, count, 4))
    many = count > 1
    s = np.clip(near, low[:, None] * q, high[:, None] * q)
    np.testing.assert_allclose(s[many], near[many], atol=1e-6)
