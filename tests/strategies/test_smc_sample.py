"""Particles, against the target that is enumerated: texts, weights, and the normaliser."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from scipy import stats

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution, same_bits
from decoding_jax.testing.certificate.comparisons import outcome_index

LENGTH, ROWS, LEVEL = 4, 2_000, 1e-3
MODEL = TableLM.random(jax.random.key(3), 4, sharpness=1.5)
PROMPT = Prompt(np.array([[1, 2, 3], [3, 0, 0]], np.int32), np.array([3, 1], np.int32))
DRAFT = TableLM.random(jax.random.key(4), 4)
STOP = Stop(eos_ids=(1,))
TRIE = transforms.Trie.from_sequences(
    [(0,), (0, 2), (0, 2, 3), (3, 3, 0), (2, 2), (2, 0, 3), (3, 0, 2, 2)], eos_ids=1
)
LANGUAGE = transforms.prefix_allowed_tokens(TRIE)
WARM = transforms.temperature(1.3)


def repeat(prompt, times):
    return Prompt(*(np.tile(x, (times, *[1] * (x.ndim - 1))) for x in prompt))


def run(name="smc_sample", prompt=PROMPT, key=1, model=MODEL, **settings):
    settings = {"num_samples": 4, "max_new_tokens": LENGTH, "stop": STOP, **settings}
    function = getattr(decoding_jax, name)
    return jax.device_get(function(model, prompt, jax.random.key(key), **settings))


def potential(prefix, done):
    """More tokens 2 and 3 count more; whole texts that begin with a 3 are excluded."""
    place = jnp.arange(prefix.tokens.shape[-1], dtype=jnp.int32)[None, None, None]
    real = place < prefix.length[..., None]
    bonus = jnp.where(real & (prefix.tokens >= 2), jnp.float32(0.7), 0.0).sum(-1)
    return jnp.where(done & (prefix.tokens[..., 0] == 3), -jnp.inf, bonus)


def potential_of(tokens):
    if tokens[:1] == (3,):
        return 0.0
    return np.exp(0.7 * sum(t >= 2 for t in tokens))


@functools.cache
def target(row, language=False, weigh=None, alpha=1.0, finished=False):
    """All texts of a row, with the unnormalised target in the place of their probability."""
    found = enumerate_distribution(
        MODEL, PROMPT, row, max_new_tokens=LENGTH, transform=WARM, stop=STOP
    )
    mass = found.prob**alpha
    for k, (tokens, n) in enumerate(zip(found.tokens, found.length, strict=True)):
        text = tuple(tokens[:n].tolist())
        if finished and not found.finished[k]:
            mass[k] = 0
        if language and text not in TEXTS:
            mass[k] = 0
        if weigh is not None:
            mass[k] *= weigh(text)
    return found._replace(prob=mass)


def texts_of(trie):
    found, open_ = set(), [((), 0)]
    while open_:
        text, state = open_.pop()
        for edge in range(trie.first_edge[state], trie.first_edge[state + 1]):
            longer = (*text, int(trie.token[edge]))
            found.add(longer)
            open_.append((longer, edge + 1))
    return {text for text in found if text[-1] == 1 and len(text) <= LENGTH}


TEXTS = texts_of(TRIE)
CASES = {
    "language": ("smc_sample", {"language": LANGUAGE}, {"language": True, "finished": True}),
    "potential": (
        "smc_sample",
        {"potential": potential, "proposal": transforms.temperature(2.0)},
        {"weigh": potential_of},
    ),
    "both": (
        "smc_sample",
        {"language": LANGUAGE, "potential": potential, "resampling": "stratified"},
        {"language": True, "finished": True, "weigh": potential_of},
    ),
    "finished": ("smc_sample", {"finished_only": True, "proposal": DRAFT}, {"finished": True}),
    "power": ("power_sample", {"alpha": 2.5, "resampling": "multinomial"}, {"alpha": 2.5}),
}


def weighted(name, threshold, num_samples=4, key=7):
    """Particles of many rows, half of each prompt, with the target's outcome of each."""
    function, settings, about = CASES[name]
    lockstep = MODEL.lockstep() if num_samples > 4 else MODEL
    output = run(
        function,
        prompt=repeat(PROMPT, ROWS // 2),
        key=key,
        model=lockstep,
        transform=WARM,
        num_samples=num_samples,
        ess_threshold=np.float32(threshold),
        weighted=True,
        **settings,
    )
    return output, [target(row, **about) for row in range(2)]


@pytest.mark.parametrize(
    ("name", "threshold"),
    tiers.combinations(itertools.product(CASES, (0.0, 0.5, 1.0)), [("both", 0.5)]),
)
def test_weighted_particles_have_the_mean_of_the_target(name, threshold):
    """E[Z W_x] is the target's mass at every text x, and E[Z] the normaliser.

    W_x is the share of the particles that are x. 1,000 rows of each prompt, four particles in each;
    a z-test for every text and one for the sum share the level 0.001.
    """
    output, targets = weighted(name, threshold)
    for row, want in enumerate(targets):
        rows = slice(row, None, 2)
        normaliser = np.exp(np.asarray(output.info.log_normaliser[rows], np.float64))
        share = np.exp(np.asarray(output.info.log_weight[rows], np.float64))
        tokens, length = output.tokens[rows], output.length[rows]
        assert not length[share == 0].any()
        index = outcome_index(want, tokens.reshape(-1, LENGTH), length.ravel())
        index = np.where(share > 0, index.reshape(share.shape), -1)
        assert (index[share > 0] >= 0).all()
        mass = np.zeros((len(share), len(want.prob) + 1))
        np.add.at(mass, (np.arange(len(share))[:, None], index), share * normaliser[:, None])
        assert not mass[:, :-1][:, want.prob == 0].any()
        sums = np.column_stack([mass[:, :-1][:, want.prob > 0], normaliser])
        expected = np.append(want.prob[want.prob > 0], want.prob.sum())
        spread = sums.std(0) / np.sqrt(len(sums))
        seen = (sums > 0).sum(0) >= 20  # where the mean is nearly normal
        score = np.abs(sums.mean(0) - expected)[seen] / spread[seen]
        assert 2 * stats.norm.sf(score).min() * len(score) > LEVEL / 2


def total_variation(output, row, want):
    """Of a text drawn by its weight, from the target; over the rows of one prompt."""
    share = np.exp(np.asarray(output.info.log_weight[row::2], np.float64)).ravel()
    tokens, length = output.tokens[row::2], output.length[row::2]
    index = outcome_index(want, tokens.reshape(-1, LENGTH), length.ravel())
    probs = np.bincount(index[share > 0], share[share > 0], len(want.prob))
    return np.abs(probs / probs.sum() - want.prob / want.prob.sum()).sum() / 2


@pytest.mark.release
def test_more_particles_come_closer_to_the_target():
    """One particle is the masked distribution; the error of 16 is below a third of it."""
    far, near = (weighted("language", 0.5, n) for n in (1, 16))
    for row in range(2):
        errors = [total_variation(output, row, want[row]) for output, want in (far, near)]
        assert errors[1] < errors[0] / 3


@pytest.mark.exhaustive
def test_resampled_texts_are_drawn_by_weight():
    """The texts without weights follow the mean shares: chi-square, 2,000 rows, level 0.001."""
    settings = {"language": LANGUAGE, "transform": WARM, "key": 9, "num_samples": 2}
    prompt = repeat(Prompt(PROMPT.tokens[:1], PROMPT.length[:1]), ROWS)
    want = target(0, language=True, finished=True)
    plain, kept = (run(prompt=prompt, weighted=w, **settings) for w in (False, True))
    assert same_bits(plain.info.log_normaliser, kept.info.log_normaliser)
    exists = plain.info.log_weight > -np.inf
    alive = exists.any(-1)
    np.testing.assert_allclose(plain.info.log_weight[alive], -np.log(2), rtol=1e-6)
    share = np.exp(np.asarray(kept.info.log_weight[alive], np.float64))
    index = outcome_index(want, kept.tokens[alive].reshape(-1, LENGTH), kept.length[alive].ravel())
    mean = np.bincount(index[share.ravel() > 0], share[share > 0], len(want.prob)) / alive.sum()
    index = outcome_index(want, plain.tokens[alive][:, 0], plain.length[alive][:, 0])
    cells = np.bincount(index, minlength=len(want.prob))
    # Given the particles, a text is drawn by their shares: counts vary less than multinomial ones.
    assert chi_square(cells, mean / mean.sum()).p_value > LEVEL


@pytest.mark.release
def test_without_a_target_of_its_own_it_is_sampling():
    output = run(num_samples=6, weighted=True)
    np.testing.assert_array_equal(output.info.log_normaliser, 0.0)
    np.testing.assert_array_equal(output.info.effective_sample_size, 6.0)
    np.testing.assert_array_equal(output.info.num_resamplings, 0)
    assert same_bits(output.tokens, run(num_samples=6).tokens)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("row", "most"), [(0, 1), (1, 0)])
def test_a_language_that_cannot_be_reached_leaves_nothing(row, most):
    """Row ``row`` is limited to fewer tokens than the shortest text of its language has."""
    limit = np.where(np.arange(2) == row, most, LENGTH).astype(np.int32)
    stop = Stop(eos_ids=(1,), max_new_tokens=limit)
    output = run(language=LANGUAGE, stop=stop, num_samples=8)
    assert not output.length[row].any()
    assert not output.finished[row].any()
    assert (output.log_prob[row] == -np.inf).all()
    assert (output.info.log_weight[row] == -np.inf).all()
    assert output.info.log_normaliser[row] == -np.inf
    assert output.info.effective_sample_size[row] == 0
    assert output.finished[1 - row].all()
    pairs = zip(output.tokens[1 - row].tolist(), output.length[1 - row], strict=True)
    text = [tuple(tokens[:n]) for tokens, n in pairs]
    assert set(text) <= TEXTS


@pytest.mark.exhaustive
def test_caches_of_both_kinds_agree():
    settings = {"language": LANGUAGE, "ess_threshold": np.array([0.9, 0.4], np.float32)}
    assert same_bits(run(**settings), run(model=MODEL.lockstep(), **settings))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"potential": lambda prefix, done: jnp.zeros(3)},
            r"potential: expected float32 \[B, N, 1\]",
        ),
        ({"potential": 3}, r"potential: expected a function of \(prefix, done\), got 3"),
        ({"language": TRIE}, "language: expected one transform"),
        (
            {"proposal": TableLM.random(jax.random.key(1), 9)},
            "proposal: expected a model of the target's",
        ),
    ],
)
def test_bad_settings_get_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        run(**change)
    assert "\n" not in str(caught.value)
