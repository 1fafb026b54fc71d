"""Texts end where the model is not confident, with the distribution that enumeration gives."""

import jax
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt, Stop, models
from decoding_jax.estimators import confidence
from decoding_jax.testing import TableLM, check_model, chi_square, log_probs

VOCAB, LENGTH, K = 4, 4, 2
TABLE, DRAFT = (TableLM.random(jax.random.key(i), VOCAB, sharpness=1.5) for i in range(2))
LISTS = [[1, 2, 3], [3], [0, 2]]
PROMPT = Prompt(
    np.array([[1, 2, 3], [3, 0, 0], [0, 2, 0]], np.int32), np.array([3, 1, 2], np.int32)
)
END, WINDOWS, THRESHOLDS = 3, np.array([2, 1, 3], np.int32), (1.0, 0.97, 1.0)
MODEL = models.confident(TABLE, END, THRESHOLDS, window=WINDOWS, num_tokens=K)
STOP = Stop(eos_ids=(0, END))
KEY = jax.random.key(7)


def texts_of(row):
    """The log-probability of each text, and whether it was ended, in plain Python."""
    found, ended = {}, set()

    def walk(path, total, confidences):
        if len(path) == LENGTH or (path and path[-1] in (0, END)):
            found[path] = total
            return
        log_p = log_probs(TABLE, [*LISTS[row], *path])
        confidences = [*confidences, -np.sort(log_p)[-K:].mean()]
        last = confidences[-WINDOWS[row] :]
        if len(last) == WINDOWS[row] and np.mean(last) < THRESHOLDS[row]:
            ended.add((*path, END))
            walk((*path, END), total, confidences)
            return
        for token in range(VOCAB):
            walk((*path, token), total + log_p[token], confidences)

    walk((), 0.0, [])
    return found, ended


def counted(output, row, texts):
    made = [tuple(t[:n]) for t, n in zip(output.tokens[row], output.length[row], strict=True)]
    index = {text: i for i, text in enumerate(texts)}
    return np.bincount([index[tuple(map(int, text))] for text in made], minlength=len(texts))


def check_samples(output):
    """Chi-square, 4,096 samples of each row, level 1e-3; log-probabilities to 2e-6."""
    output = jax.device_get(output)
    for row in range(3):
        found, ended = texts_of(row)
        assert 0 < len(ended) < len(found)
        prob = np.exp(list(found.values()))
        assert prob.sum() == pytest.approx(1)
        assert chi_square(counted(output, row, found), prob).p_value > 1e-3
        for tokens, length, got in zip(
            output.tokens[row], output.length[row], output.log_prob[row], strict=True
        ):
            assert got == pytest.approx(found[tuple(tokens[:length].tolist())], abs=4e-6)


def test_the_greedy_text_ends_where_the_confidence_is_low():
    output = jax.device_get(
        decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=LENGTH, stop=Stop(eos_ids=END))
    )
    for row, start in enumerate(LISTS):
        path, confidences, window = [], [], WINDOWS[row]
        while len(path) < LENGTH and END not in path:
            log_p = log_probs(TABLE, [*start, *path])
            confidences.append(-np.sort(log_p)[-K:].mean())
            full = len(confidences) >= window
            low = full and np.mean(confidences[-window:]) < THRESHOLDS[row]
            path.append(END if low else int(np.argmax(log_p)))
        assert output.tokens[row, 0, : output.length[row, 0]].tolist() == path


@pytest.mark.exhaustive
def test_samples_follow_the_enumerated_distribution():
    """With another window, threshold and number of tokens for each row."""
    given = {"num_samples": 4096, "max_new_tokens": LENGTH, "stop": STOP}
    check_samples(decoding_jax.sample(MODEL, PROMPT, KEY, **given))


@pytest.mark.exhaustive
def test_speculation_follows_it():
    """Chains, in which several tokens are read at once, and a draft that is not ended."""
    given = {"num_samples": 4096, "max_new_tokens": LENGTH, "stop": STOP, "num_draft_tokens": 2}
    check_samples(decoding_jax.speculative_sample(MODEL, DRAFT, PROMPT, KEY, **given))


@pytest.mark.exhaustive
def test_the_beams_of_all_texts_have_its_log_probs():
    """Trees: there are enough beams for every text."""
    found = [texts_of(row)[0] for row in range(3)]
    output = jax.device_get(
        decoding_jax.beam_search(
            MODEL, PROMPT, beam_size=64, max_new_tokens=LENGTH, stop=STOP, length_penalty=0.0
        )
    )
    for row, want in enumerate(found):
        got = {
            tuple(tokens[:length].tolist()): log_prob
            for tokens, length, log_prob in zip(
                output.tokens[row], output.length[row], output.log_prob[row], strict=True
            )
            if log_prob > -np.inf
        }
        assert got == pytest.approx(want, abs=4e-6)


@pytest.mark.exhaustive
def test_the_methods_keep_the_protocol():
    def alone(row):
        return decoding_jax.rows.take_rows({"model": MODEL}, [row], 3)["model"]

    ran = check_model(MODEL, tolerance=2e-6, row_model=alone)
    assert {"check_tree", "check_keep", "check_select", "check_ragged", "check_widens"} <= set(ran)


@pytest.mark.exhaustive
def test_scores_tell_where_a_text_is_ended():
    """The groups of a text's scores are those of the rule."""
    output = jax.device_get(
        decoding_jax.sample(MODEL, PROMPT, KEY, num_samples=4096, max_new_tokens=LENGTH, stop=STOP)
    )
    row = 0
    scores = decoding_jax.text.token_scores(
        TABLE, jax.tree.map(lambda x: x[:1], PROMPT), output.tokens[:1, :64], num_alternatives=K
    )
    ends = texts_of(row)[1]
    for i, (tokens, length) in enumerate(
        zip(output.tokens[0, :64].tolist(), output.length[0, :64].tolist(), strict=True)
    ):
        groups = confidence.of_groups(
            confidence.of_tokens(scores.top_log_probs[0, i, :length]), WINDOWS[row]
        )
        is_ended = tuple(tokens[:length]) in ends
        assert is_ended == (length >= WINDOWS[row] and groups[-1] < THRESHOLDS[row])
    log_p = log_probs(TABLE, LISTS[row])
    assert scores.self_certainty[0, 0, 0] == pytest.approx(-log_p.mean() - np.log(VOCAB), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"end": VOCAB}, "confident.end: expected a token id below 4, got 4"),
        ({"num_tokens": VOCAB + 1}, "confident.num_tokens: expected an int from 1 to 4"),
        ({"window": 0}, "confident.window: expected an int of 1 or more"),
        ({"threshold": float("nan")}, "confident.threshold: expected a number"),
    ],
)
def test_mistakes(settings, said):
    given = {"end": END, "threshold": 1.0, "num_tokens": K, **settings}
    with pytest.raises(ValueError, match=said):
        models.confident(TABLE, **given)
