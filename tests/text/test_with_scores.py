"""``with_scores``: log-probabilities, entropies and alternatives of tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from text_fakes import TABLE, VOCABULARY, Digits

import decoding_jax
from decoding_jax import transforms
from decoding_jax.loop import model_calls
from decoding_jax.models import Llama, LlamaConfig
from decoding_jax.text import token_scores
from decoding_jax.text.token_scores import _OF_TEXTS, CHUNK, compiled_scores

KEY = jax.random.key(0)
TEXTS = ["1 2 3", "4", "5 6 1 2"]


@jax.jit
def every_prefix(tokens, length):
    """The log-probabilities after each of the rows, by a prefill and no call more."""
    output, _ = TABLE.prefill(tokens, length, lanes=1, slots=0)
    return jax.nn.log_softmax(output.logits[:, 0, 0])


def distribution(prompt, tokens):
    """The log-probabilities ``[L, V]`` before each token of one sequence."""
    sequence = np.zeros(40, np.int32)
    sequence[: len(prompt) + len(tokens)] = [*prompt, *tokens]
    length = np.minimum(len(prompt) + np.arange(40, dtype=np.int32), 40)
    return np.asarray(every_prefix(np.tile(sequence, (40, 1)), length))[: len(tokens)]


def check(scores, log_probs, tokens, n):
    """Compares the figures of one sequence with its distributions ``[L, V]``."""
    want = log_probs[np.arange(len(tokens)), tokens]
    np.testing.assert_allclose(scores.log_prob, want, atol=2e-6)
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)
    np.testing.assert_allclose(scores.entropy, entropy, atol=2e-6)
    certainty = -log_probs.mean(-1) - np.log(VOCABULARY)
    np.testing.assert_allclose(scores.self_certainty, certainty, atol=2e-6)
    order = np.argsort(-log_probs, -1, kind="stable")[:, :n]
    np.testing.assert_array_equal(scores.top_tokens, order)
    np.testing.assert_allclose(
        scores.top_log_probs, np.take_along_axis(log_probs, order, 1), atol=2e-6
    )


def equal(a, b):
    assert len(a) == len(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.release
def test_each_number_is_the_table_s():
    """Three chunks, of which the last has one token; and nothing is computed after ``end``."""
    prompt = decoding_jax.Prompt(jnp.array([[1, 2, 0], [3, 4, 5]]), jnp.array([2, 3]))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, 2, 34))
    got = jax.device_get(compiled_scores(TABLE, prompt, tokens, np.int32(34), num_alternatives=3))
    for b, n in np.ndindex(2, 2):
        row = np.asarray(prompt.tokens)[b, : prompt.length[b]].tolist()
        of_table = distribution(row, tokens[b, n].tolist())
        check(jax.tree.map(lambda x: x[b, n], got), of_table, tokens[b, n], 3)  # noqa: B023
    part = jax.device_get(compiled_scores(TABLE, prompt, tokens, np.int32(17), num_alternatives=3))
    np.testing.assert_array_equal(part.log_prob[:, :, :17], got.log_prob[:, :, :17])
    assert not part.log_prob[:, :, 17:].any()


def test_the_mass_that_a_transform_kept():
    """Three chunks, with states that are carried from one to the next, and one without any."""
    prompt = decoding_jax.Prompt(np.array([[1, 2, 0], [3, 1, 5]], np.int32), np.array([2, 3]))
    tokens = np.random.default_rng(1).integers(0, 4, (2, 2, 34), np.int32)
    transform = transforms.chain(
        transforms.thinking_budget((1,), (2,), max_tokens=3), transforms.no_repeat_ngram(2)
    )
    got = jax.device_get(
        compiled_scores(
            TABLE, prompt, tokens, np.int32(34), num_alternatives=0, transform=transform
        )
    )
    of_paths = np.broadcast_to(tokens[:, :, None], (2, 2, 34, 34))
    length = np.broadcast_to(np.arange(34, dtype=np.int32), (2, 2, 34))
    log_probs = np.stack(
        [
            [distribution(p[:n].tolist(), row.tolist()) for row in rows]
            for p, n, rows in zip(*prompt, tokens, strict=True)
        ]
    )
    path = decoding_jax.Prefix(*prompt, of_paths, length)
    allowed = np.asarray(jax.jit(transform)(log_probs, path)) > -np.inf
    assert 0.1 < allowed.mean() < 0.9
    want = (np.exp(log_probs) * allowed).sum(-1)
    np.testing.assert_allclose(got.kept, want, atol=1e-5)


@pytest.mark.release
def test_a_text_and_its_prompt_are_read_by_one_call():
    """As by chunks, to the model's last position; texts of a few lengths share one program."""
    model = Llama.init(LlamaConfig(VOCABULARY, 8, 1, 1, 8, 8, 1, max_positions=40), KEY)
    prompt = decoding_jax.Prompt(np.array([[1, 2, 0], [3, 4, 5]]), np.array([2, 3]))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, 1, 37), np.int32)
    got = token_scores(model, prompt, tokens, num_alternatives=2)
    want = compiled_scores(model, prompt, tokens, np.int32(37), num_alternatives=2)
    equal(got, want)
    before = _OF_TEXTS.cache_size()
    for size, end in ((37, 5), (34, 34), (31, 0)):
        part = token_scores(model, prompt, tokens[:, :, :size], end, num_alternatives=2)
        np.testing.assert_allclose(part.log_prob[..., :end], got.log_prob[..., :end], atol=1e-5)
        assert part.log_prob.shape == (2, 1, size)
        assert not np.asarray(part.log_prob)[..., end:].any()
    assert _OF_TEXTS.cache_size() == before + 1  # The text of 5 tokens is of another width.


def test_several_sequences_of_a_prompt_share_a_few_programs():
    prompt = decoding_jax.Prompt(np.array([[1, 2, 0], [3, 4, 5]]), np.array([2, 3]))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, 2, 17), np.int32)
    got = token_scores(TABLE, prompt, tokens)
    before = compiled_scores.cache_size()
    for size in range(3, 17, 4):
        part = token_scores(TABLE, prompt, tokens[:, :, :size])
        np.testing.assert_array_equal(part.log_prob, got.log_prob[:, :, :size])
    assert compiled_scores.cache_size() == before


def test_a_text_to_the_last_position_takes_few_calls(monkeypatch):
    """A chunk, and what is left: a prime number of tokens is no chunks of one length."""
    prompt = decoding_jax.Prompt(np.array([[1, 2, 0], [3, 4, 5]]), np.array([2, 3]))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, 2, 18), np.int32)
    extend, calls = model_calls.extend, []

    def counted(model, cache, fed, start):
        calls.append(fed.shape[2])
        return extend(model, cache, fed, start)

    monkeypatch.setattr(model_calls, "extend", counted)
    limited = dataclasses.replace(TABLE, max_positions=20)
    got = jax.device_get(token_scores(limited, prompt, tokens))
    assert set(calls) == {CHUNK, 1}
    for b, n in np.ndindex(2, 2):
        own = prompt.tokens[b, : prompt.length[b]].tolist()
        want = distribution(own, tokens[b, n].tolist())[np.arange(18), tokens[b, n]]
        np.testing.assert_allclose(got.log_prob[b, n], want, atol=2e-6)
    part = token_scores(limited, prompt, tokens, 17)
    np.testing.assert_array_equal(part.log_prob[..., :17], got.log_prob[..., :17])
    assert not np.asarray(part.log_prob)[..., 17:].any()
    short = token_scores(dataclasses.replace(TABLE, max_positions=10), prompt, tokens[:, :, :8])
    np.testing.assert_array_equal(short.log_prob, got.log_prob[..., :8])


@pytest.mark.exhaustive
def test_the_scores_of_completions():
    """Ragged texts with several samples each; the transform does not show in the scores."""
    settings = {"strategy": "sample", "num_samples": 2, "max_new_tokens": 20}
    settings |= {"key": jax.random.key(0), "transform": decoding_jax.transforms.temperature(2.0)}
    settings |= {"batch_size": 2}
    plain = decoding_jax.generate(TABLE, Digits(), TEXTS, **settings)
    rows = decoding_jax.generate(TABLE, Digits(), TEXTS, with_scores=3, **settings)
    for text, row, plain_row in zip(TEXTS, rows, plain, strict=True):
        for completion, plain_completion in zip(row, plain_row, strict=True):
            assert completion._replace(scores=None) == plain_completion
            assert plain_completion.scores is None
            of_table = distribution(Digits().encode(text), completion.tokens)
            check(completion.scores, of_table, completion.tokens, 3)
            assert completion.scores.log_prob.sum() == pytest.approx(completion.log_prob, abs=1e-5)


def test_a_stream_scores_what_it_has_so_far():
    """By the programs of a greedy stream of one text."""
    settings = {"max_new_tokens": 20, "with_scores": 3}
    items = list(decoding_jax.stream(TABLE, Digits(), TEXTS[2:], chunk=9, **settings))
    for [[completion]] in items:
        log_probs = distribution([5, 6, 1, 2], completion.tokens)
        check(completion.scores, log_probs, completion.tokens, 3)


@pytest.mark.release
@pytest.mark.parametrize("strategy", ["sample", "beam_search"])
def test_streams_score_what_they_have_so_far(strategy):
    """Tokens that a beam search takes back are scored anew; the last item is ``generate``'s."""
    settings = {"strategy": strategy, "max_new_tokens": 20, "with_scores": 3}
    if strategy == "sample":
        settings |= {"num_samples": 2, "key": jax.random.key(0)}
    else:
        settings |= {"beam_size": 2}
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, **settings)
    items = list(decoding_jax.stream(TABLE, Digits(), TEXTS, chunk=3, **settings))
    for completions in items:
        for row in completions:
            for completion in row:
                assert len(completion.scores.log_prob) == len(completion.tokens)
    middle = items[len(items) // 2][2][0]
    check(middle.scores, distribution([5, 6, 1, 2], middle.tokens), middle.tokens, 3)
    for row, other in zip(items[-1], want, strict=True):
        equal([c.scores for c in row], [c.scores for c in other])
    pieces = decoding_jax.stream_text(TABLE, Digits(), TEXTS, chunk=3, **settings)
    list(pieces)
    for row, other in zip(pieces.output, want, strict=True):
        equal([c.scores for c in row], [c.scores for c in other])


@pytest.mark.parametrize("given", [-1, 8, 2.0, "all"])
def test_what_with_scores_takes(given):
    expected = "True, False, or the number of alternatives of each token, 0 to 7"
    with pytest.raises(ValueError, match=f"with_scores: expected {expected}, got "):
        decoding_jax.generate(TABLE, Digits(), TEXTS, with_scores=given)


@pytest.mark.release
def test_a_cache_to_which_tokens_can_only_be_appended():
    """It cannot rewind, so a stream reads everything anew."""

    def init(size):
        return jnp.zeros(VOCABULARY)

    def step(weights, state, tokens):
        state = jnp.tanh(state @ weights + jax.nn.one_hot(tokens[0, 0], VOCABULARY))
        return 3 * state[None, None], state

    weights = np.random.default_rng(2).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    model = decoding_jax.adapters.from_cache(
        init, step, VOCABULARY, parameters=weights, max_positions=50
    )
    assert not model.rewinds
    settings = {"max_new_tokens": 20, "with_scores": 2, "strategy": "greedy"}
    want = decoding_jax.generate(model, Digits(), TEXTS, **settings)
    *_, last = decoding_jax.stream(model, Digits(), TEXTS, chunk=7, **settings)
    for row, other in zip(last, want, strict=True):
        equal([c.scores for c in row], [c.scores for c in other])
        assert row[0].scores.log_prob.sum() == pytest.approx(row[0].log_prob, abs=1e-5)


@pytest.mark.release
def test_an_encoder_decoder():
    """Texts of several lengths; the scores of a text alone are those that it has in a batch."""
    model, tokenizer = decoding_jax.load("translation-en-fr-draft")
    texts = ["I am here.", "Where is the station?", "Good morning!"]
    settings = {"strategy": "beam_search", "beam_size": 2, "max_new_tokens": 12, "with_scores": 2}
    rows = decoding_jax.generate(model, tokenizer, texts, **settings)
    for row in rows:
        for completion in row:
            scores = completion.scores
            assert scores.log_prob.sum() == pytest.approx(completion.log_prob, abs=1e-4)
            assert (scores.top_log_probs[:, 0] >= scores.log_prob - 1e-5).all()
            best = scores.top_tokens[:, 0] == completion.tokens
            np.testing.assert_array_equal(scores.log_prob[best], scores.top_log_probs[best, 0])
    [alone] = decoding_jax.generate(model, tokenizer, texts[1:2], **settings)
    for one, other in zip(alone, rows[1], strict=True):
        np.testing.assert_allclose(one.scores.entropy, other.scores.entropy, atol=1e-4)
