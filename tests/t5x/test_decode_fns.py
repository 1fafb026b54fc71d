"""Decode functions on a network with T5X's contract: prompts, ends, scores, distributions."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from calls import EOS, LENGTH, PROMPTS, arguments, beam_score, log_probs, run, texts
from scipy.special import log_softmax

from decoding_jax import testing, transforms
from decoding_jax.t5x import decode_fns

FORMS = tiers.combinations(
    [(False, False), (True, True), (True, False), (False, True)], [(False, False), (True, True)]
)


def greedy_text(network, row):
    text = []
    while EOS not in text and len(text) + (PROMPTS[row] != 0).sum() < LENGTH:
        prompt = PROMPTS[row, : int((PROMPTS[row] != 0).sum()) + 1]
        path = np.concatenate([prompt, np.array(text, int)])
        text.append(int(network.path_logits(path)[-1].argmax()))
    return text


def test_arguments_by_position_come_in_the_order_of_t5x():
    inputs = ["inputs", "cache", "tokens_to_logits", "eos_id"]
    sampling = [*inputs, "decode_rng", "num_decodes", "temperature", "topk", "topp"]
    beams = [*inputs, "num_decodes", "alpha", "max_decode_len", "max_decode_step", "min_log_prob"]
    for fn, order in [
        (decode_fns.temperature_sample, sampling),
        (decode_fns.arithmetic_sample, sampling),
        (decode_fns.speculative_sample, sampling),
        (decode_fns.beam_search, beams),
        (decode_fns.best_k_search, inputs),
    ]:
        parameters = inspect.signature(fn).parameters
        assert list(parameters)[: len(order)] == order
        assert parameters["transform"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(("scanned", "prefilled"), FORMS)
def test_greedy_texts_scores_and_order(scanned, prefilled):
    given = arguments(scanned, prefilled)
    network = given["tokens_to_logits"]
    decodes, scores = run(decode_fns.temperature_sample, given, rescale_log_probs=False)
    for row in range(3):
        (text,) = texts(decodes, row)
        assert text == greedy_text(network, row)
        np.testing.assert_allclose(scores[row, 0], log_probs(network, row, text).sum(), rtol=1e-5)


@pytest.mark.release
@pytest.mark.parametrize(
    ("fn", "rescaled"),
    [(decode_fns.temperature_sample, True), (decode_fns.arithmetic_sample, False)],
)
def test_samples_come_in_rising_order_of_their_own_scores(fn, rescaled):
    given = arguments(prefilled=not rescaled)
    settings = {"temperature": 0.7, "topk": 0, "rescale_log_probs": rescaled}
    decodes, scores = run(fn, given, num_decodes=4, **settings)
    assert (np.diff(scores) >= 0).all()
    for row, lane in np.ndindex(3, 4):
        text = list(texts(decodes, row))[lane]
        temperature = 0.7 if rescaled else 1.0
        want = log_probs(given["tokens_to_logits"], row, text, temperature).sum()
        np.testing.assert_allclose(scores[row, lane], want, rtol=1e-4, atol=1e-4)


def test_the_distribution_of_samples_at_a_temperature_per_row():
    """Chi-square of the first two tokens of 3 rows of 4,000 samples, at level 1e-4 in all."""
    given = arguments(scanned=True)
    temperature = jnp.array([0.6, 1.0, 2.0])
    decodes, _ = run(
        decode_fns.temperature_sample,
        given | {"temperature": temperature},
        num_decodes=4000,
        topk=0,
        topp=0.95,
        max_decode_steps=2,
        decode_rng=jax.random.PRNGKey(7),
    )
    for row in range(3):
        counts, distribution = {}, {}
        for first, second in itertools.product(range(7), repeat=2):
            text = [first] if first == EOS else [first, second]
            distribution[tuple(text)] = nucleus(
                given["tokens_to_logits"], row, text, float(temperature[row])
            )
        for text in texts(decodes, row):
            counts[tuple(text[:2])] = counts.get(tuple(text[:2]), 0) + 1
        observed = np.array([counts.pop(text, 0) for text in distribution])
        assert not counts
        assert (
            testing.chi_square(observed, np.array(list(distribution.values()))).p_value > 1e-4 / 3
        )


def nucleus(network, row, text, temperature):
    """The probability of a text whose tokens are each drawn from the nucleus of 0.95."""
    prompt = PROMPTS[row, : int((PROMPTS[row] != 0).sum()) + 1]
    prob = 1.0
    for i, token in enumerate(text):
        logits = network.path_logits(np.concatenate([prompt, np.array(text[:i], int)]))[-1]
        p = np.exp(log_softmax(logits.astype(np.float64) / temperature))
        order = np.argsort(-p)
        kept = order[: int(np.searchsorted(np.cumsum(p[order]), 0.95)) + 1]
        prob *= p[token] / p[kept].sum() if token in kept else 0.0
    return prob


@pytest.mark.exhaustive
def test_codes_are_untouched_by_a_forced_prompt():
    """A token of probability p is the first of floor(8 p) or ceil(8 p) of 8 samples."""
    given = arguments()
    decodes, _ = run(decode_fns.arithmetic_sample, given, num_decodes=8)
    for row in range(3):
        first = [text[0] for text in texts(decodes, row)]
        for token in range(7):
            expected = 8 * np.exp(log_probs(given["tokens_to_logits"], row, [token])[0])
            assert abs(first.count(token) - expected) < 1 + 1e-3


@pytest.mark.exhaustive
def test_limits_count_from_the_prompt():
    given = arguments()
    settings = {"topk": 0, "max_decode_steps": 100, "max_decode_steps_hard_limit": 2}
    decodes, _ = run(decode_fns.temperature_sample, given, num_decodes=2, **settings)
    for decode, prompt in zip(decodes, (PROMPTS != 0).sum(1), strict=True):
        assert not decode[:, prompt + 2 :].any()
    with pytest.raises(ValueError, match="max_decode_steps: expected at most 8"):
        run(decode_fns.temperature_sample, given, max_decode_steps=9)


@pytest.mark.exhaustive
def test_settings_may_be_traced():
    given = arguments()
    plain = run(decode_fns.temperature_sample, given, temperature=0.8, topk=3, topp=0.9)
    traced = {"temperature": 0.8, "topk": 3, "topp": 0.9, "max_decode_steps": 8}
    traced = {name: jnp.asarray(value) for name, value in traced.items()}
    for got, want in zip(run(decode_fns.temperature_sample, given | traced), plain, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.exhaustive
def test_a_transform_applies_to_new_tokens_and_not_to_the_prompt():
    given = arguments()
    allowed = transforms.allowed_tokens(jnp.array([False, True, True, False, False, False, True]))
    decodes, _ = run(decode_fns.temperature_sample, given, num_decodes=4, topk=0, transform=allowed)
    for row in range(3):
        assert {token for text in texts(decodes, row) for token in text} <= {1, 2, 6}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("scanned", "prefilled"),
    [(True, True), pytest.param(False, False, marks=pytest.mark.exhaustive)],
)
def test_beams_wide_enough_find_the_best_of_all_texts(scanned, prefilled):
    """With at most 3 new tokens there are 43 texts that end, and at most 252 candidates."""
    given = arguments(scanned, prefilled, sharpness=0.5)
    decodes, scores = run(
        decode_fns.beam_search, given, num_decodes=126, alpha=0.6, max_decode_len=6
    )
    others = [0, 2, 3, 4, 5, 6]
    ended = [[*text, EOS] for size in range(3) for text in itertools.product(others, repeat=size)]
    score = {tuple(t): beam_score(given["tokens_to_logits"], 0, t, 0.6) for t in ended}
    want = sorted(score, key=score.__getitem__)
    assert [tuple(text) for text in texts(decodes, 0)][-43:] == want
    np.testing.assert_allclose(scores[0, -43:], [score[text] for text in want], rtol=1e-4)


@functools.cache
def four_beams():
    """A beam search that two tests need."""
    return run(decode_fns.beam_search, arguments(), num_decodes=4)


@pytest.mark.exhaustive
def test_unfinished_hypotheses_come_before_finished_ones():
    decodes, scores = four_beams()
    for row in range(3):
        ends = [text[-1] == EOS for text in texts(decodes, row)]
        assert ends == sorted(ends)
        for finished in (True, False):
            part = scores[row][np.array(ends) == finished]
            assert (np.diff(part) >= 0).all()


def test_a_row_of_nan_reaches_no_other():
    given = arguments()
    network = given["tokens_to_logits"]

    def poisoned(state):
        logits, cache = network(state)
        return logits.at[:4].set(jnp.nan), cache

    want = four_beams()
    got = run(decode_fns.beam_search, given | {"tokens_to_logits": poisoned}, num_decodes=4)
    np.testing.assert_array_equal(got[0][1:], want[0][1:])
    np.testing.assert_array_equal(got[1][1:], want[1][1:])


@pytest.mark.exhaustive
@pytest.mark.parametrize("rescaled", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_callbacks_may_force_tokens_and_change_logits(rescaled):
    """The state callback ends every text at its third new token; the other bans token 2."""
    given = arguments()

    def end_third(state):
        places = jnp.arange(state.sequences.shape[1])[None]
        prompt = jnp.asarray((PROMPTS != 0).sum(1))[:, None]
        is_third = (places == prompt + 3) & (state.cur_index[:, None] == prompt + 2)
        return state.replace(sequences=jnp.where(is_third, EOS, state.sequences))

    def ban(logits, state):
        assert state.sequences.shape == (3, LENGTH + 2)
        assert state.log_prob.shape == (3,)
        return logits.at[:, 2].set(-1e9).at[:, EOS].set(-1e9)

    decodes, scores = run(
        decode_fns.temperature_sample,
        given,
        topk=0,
        rescale_log_probs=rescaled,
        state_callback_fn=end_third,
        logit_callback_fn=ban,
    )
    assert (scores < 0).all()
    for row in range(3):
        (text,) = texts(decodes, row)
        assert len(text) == 3
        assert text[-1] == EOS
        assert 2 not in text


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fn", "settings"),
    [
        (decode_fns.diverse_beam_search, {"num_groups": 2, "alpha": 0.0}),
        pytest.param(
            decode_fns.beam_sample, {"alpha": 0.0, "topk": 5}, marks=pytest.mark.exhaustive
        ),
        pytest.param(decode_fns.stochastic_beam_search, {}, marks=pytest.mark.exhaustive),
    ],
)
def test_the_other_searches(fn, settings):
    given = arguments(scanned=True)
    decodes, scores = run(fn, given, num_decodes=4, **settings)
    assert (np.diff(scores) >= 0).all()
    for row in range(3):
        found = list(texts(decodes, row))
        for text, score in zip(found, scores[row], strict=True):
            want = log_probs(given["tokens_to_logits"], row, text).sum()
            if fn is decode_fns.stochastic_beam_search:
                np.testing.assert_allclose(score, want, rtol=1e-4, atol=1e-4)
            else:  # A diversity penalty can only lower the score.
                assert score <= want + 1e-4
        if fn is decode_fns.stochastic_beam_search:
            assert len({tuple(text) for text in found}) == 4
