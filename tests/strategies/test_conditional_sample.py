"""Exact draws from a language, against the conditional distribution that is enumerated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.strategies.conditional import failures
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution, same_bits
from decoding_jax.testing.certificate.comparisons import independent, outcome_index

LENGTH, ROWS, LEVEL = 4, 4_000, 1e-3
MODEL = TableLM.random(jax.random.key(3), 4, sharpness=1.5)
PROMPT = Prompt(np.array([[1, 2, 3], [3, 0, 0]], np.int32), np.array([3, 1], np.int32))
STOP = Stop(eos_ids=(1,))
SEQUENCES = [(0,), (0, 2), (0, 2, 3), (3, 3, 0), (2, 2), (2, 0, 3), (3, 0, 2, 2)]
TEXTS = {(*s, 1) for s in SEQUENCES if len(s) < LENGTH}
LANGUAGE = transforms.prefix_allowed_tokens(transforms.Trie.from_sequences(SEQUENCES, eos_ids=1))
EVEN = transforms.prefix_allowed_tokens(
    # An even number of tokens 2; only then may the text end.
    transforms.Automaton([[0, 0, 1, 0], [1, -1, 0, 1]])
)
WARM = transforms.temperature(1.3)


def run(prompt=PROMPT, key=1, model=MODEL, **settings):
    settings = {
        "num_samples": 2,
        "max_new_tokens": LENGTH,
        "stop": STOP,
        "budget": 24,
        "max_prefixes": 24,
        **settings,
    }
    key = jax.random.key(key) if isinstance(key, int) else key
    return jax.device_get(decoding_jax.conditional_sample(model, prompt, key, **settings))


def many(rows, **settings):
    prompt = Prompt(*(np.tile(x, (rows // 2, *[1] * (x.ndim - 1))) for x in PROMPT))
    return run(prompt=prompt, transform=WARM, **settings)


def is_even(text):
    return text[-1:] == (1,) and text.count(2) % 2 == 0


ALLOWS = {
    "trie": (LANGUAGE, lambda text: text in TEXTS, {}),
    "automaton": (EVEN, is_even, {}),
    "unfinished": (EVEN, lambda text: 1 not in text or is_even(text), {"finished_only": False}),
    "sequences": (LANGUAGE, lambda text: text in TEXTS, {"stop": Stop(sequences=((1,),))}),
}


@functools.cache
def conditional(row, name):
    """The texts of a row's language, and the language's probability."""
    found = enumerate_distribution(
        MODEL, PROMPT, row, max_new_tokens=LENGTH, transform=WARM, stop=STOP
    )
    texts = [tuple(t[:n].tolist()) for t, n in zip(found.tokens, found.length, strict=True)]
    mass = found.prob * [ALLOWS[name][1](text) for text in texts]
    return found._replace(prob=mass / mass.sum()), mass.sum()


@functools.cache
def drawn(name, budget=24, max_prefixes=24):
    language, _, settings = ALLOWS[name]
    return many(ROWS, language=language, budget=budget, max_prefixes=max_prefixes, **settings)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "budget", "max_prefixes"),
    [
        ("trie", 24, 24),
        ("automaton", 24, 24),
        ("trie", 6, 24),
        ("trie", 24, 3),
        ("unfinished", 24, 24),
        ("sequences", 24, 24),
    ],
)
def test_accepted_samples_are_independent_draws_of_the_conditional(name, budget, max_prefixes):
    """Chi-square of each lane and of the pairs where both are accepted; 2,000 rows a prompt.

    The six tests share the level 0.001. Whether lane 1 is accepted does not depend on the sample of
    lane 0, so both are exact given the pair.
    """
    output = drawn(name, budget, max_prefixes)
    accepted = output.info.accepted
    assert (output.length[~accepted] == 0).all()
    assert (output.log_prob[~accepted] == -np.inf).all()
    assert not output.tokens[~accepted].any()
    p_values = []
    for row in range(2):
        want, _ = conditional(row, name)
        kept = accepted[row::2]
        index = outcome_index(
            want, output.tokens[row::2].reshape(-1, LENGTH), output.length[row::2].ravel()
        ).reshape(kept.shape)
        assert (index[kept] >= 0).all()
        for lane in range(2):
            cells = np.bincount(index[kept[:, lane], lane], minlength=len(want.prob))
            p_values.append(chi_square(cells, want.prob).p_value)
        both = index[kept.all(-1)]
        p_values.append(independent(both[:, 0], both[:, 1], want.prob).p_value)
        np.testing.assert_allclose(
            output.log_prob[row::2][kept], want.log_prob[index[kept]], atol=1e-5
        )
    assert min(p_values) * len(p_values) > LEVEL


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["trie", "automaton"])
def test_the_probability_of_the_language_is_estimated_and_bounded(name):
    """Over 2,000 rows together, the estimate is within five of its stated standard errors."""
    output = drawn(name)
    for row in range(2):
        _, mass = conditional(row, name)
        info = output.info._replace(
            **{k: x[row::2] for k, x in output.info._asdict().items() if np.ndim(x)}
        )
        assert (np.exp(info.log_bound) >= mass * (1 - 1e-5)).all()
        count = info.accepted.sum(-1)
        known = count > 0
        trials = count[known] / np.exp(np.float64(info.log_language_prob[known]))
        estimate = count[known].sum() / trials.sum()
        error = np.sqrt((1 - count.sum() / info.num_attempts.sum()) / count.sum())
        assert abs(estimate / mass - 1) < 5 * error + (~known).mean()
        np.testing.assert_allclose(info.acceptance, count / info.num_attempts, rtol=1e-6)


@pytest.mark.release
def test_learning_raises_acceptance_and_a_longer_budget_accepts_all():
    short, long, deaf = drawn("trie", 6), drawn("trie"), drawn("trie", 24, 1)
    assert long.info.accepted.mean() > 0.99
    assert short.info.accepted.mean() < long.info.accepted.mean()
    assert deaf.info.num_attempts.mean() > long.info.num_attempts.mean()


@pytest.mark.exhaustive
def test_a_language_that_cannot_be_reached_ends_in_one_mark():
    """Row 0 is limited to one token, which is shorter than every text of the language."""
    stop = Stop(eos_ids=(1,), max_new_tokens=np.array([1, LENGTH], np.int32))
    output = run(language=LANGUAGE, stop=stop, budget=200)
    assert not output.info.accepted[0].any()
    assert not output.length[0].any()
    assert output.info.log_bound[0] == -np.inf
    assert output.info.log_language_prob[0] == -np.inf
    assert output.info.accepted[1].all()
    assert output.info.model_calls < 200


@pytest.mark.release
def test_without_a_language_every_text_is_a_sample():
    output = run(num_samples=6)
    assert output.info.accepted.all()
    np.testing.assert_array_equal(output.info.num_attempts, 6)
    np.testing.assert_array_equal(output.info.log_language_prob, 0.0)
    np.testing.assert_array_equal(output.info.relative_error, 0.0)


@pytest.mark.exhaustive
def test_a_row_alone_and_in_another_order_is_the_row_in_its_batch():
    keys = jax.random.split(jax.random.key(5), 2)
    batch = run(key=keys, language=LANGUAGE)
    back = Prompt(PROMPT.tokens[::-1], PROMPT.length[::-1])
    turned = run(prompt=back, key=keys[::-1], language=LANGUAGE)
    for got, want in zip(
        (*turned[:5], *turned.info[1:]), (*batch[:5], *batch.info[1:]), strict=True
    ):
        assert same_bits(got[::-1], want)


@pytest.mark.release
def test_rare_languages_are_drawn_with_the_right_odds():
    """Two texts behind tokens of 1e-9: their odds, 2 to 1, by 2,000 rows at level 0.001."""
    table = np.full((11, 5, 4, 4), -40.0, np.float32)
    table[..., 1] = 0.0
    table[..., 2] = np.log(2e-9)
    table[..., 3] = np.log(1e-9)
    model = TableLM(jnp.asarray(table), MODEL.features)
    trie = transforms.Trie.from_sequences([(2, 2), (3, 3)], eos_ids=1)
    prompt = Prompt(np.ones((2_000, 1), np.int32), np.ones(2_000, np.int32))
    output = run(
        prompt=prompt,
        model=model,
        language=transforms.prefix_allowed_tokens(trie),
        budget=40,
    )
    # (2, 2, 1) has 4e-18 and (3, 3, 1) has 1e-18.
    accepted = output.info.accepted
    assert accepted.mean() > 0.9
    hits = (output.tokens[..., 0] == 2)[accepted]
    assert stats.binomtest(int(hits.sum()), hits.size, 0.8).pvalue > LEVEL


def test_bounds_fall_along_a_text_and_a_text_without_room_is_not_stored():
    """Two lanes fail after (2, 3) and (2,); a second text with three tokens has no room."""
    nodes = failures.empty(1, 4)
    tokens = np.array([[[2, 3, 0], [2, 0, 0]]], np.int32)
    half = np.log(np.full((1, 2, 3), 0.5, np.float32))
    met = failures.Attempts(half, half)
    zero = np.full((1, 2), -np.inf, np.float32)
    both = np.ones((1, 2), bool)
    learn = jax.jit(failures.learn)
    nodes = learn(nodes, met, tokens, np.array([[2, 1]], np.int32), zero, both)
    assert nodes.used.tolist() == [3]
    np.testing.assert_allclose(np.exp(nodes.log_bound[0, :3]), [0.5, 0.0, 0.0], rtol=1e-6)
    longer = np.array([[[1, 1, 1], [2, 0, 0]]], np.int32)
    after = learn(nodes, met, longer, np.array([[3, 1]], np.int32), zero, both)
    assert same_bits(jax.device_get(after), jax.device_get(nodes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": 4}, "budget: expected an int above max_new_tokens, which is 4, got 4"),
        ({"language": 3}, "language: expected one transform"),
        ({"model": MODEL.lockstep()}, "model: expected one with ragged=True"),
    ],
)
def test_bad_settings_get_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        run(**change)
    assert "\n" not in str(caught.value)
