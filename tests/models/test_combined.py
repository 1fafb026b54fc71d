"""Guided, contrasted and mixed models have the distributions of their formulas, in every strategy.

The reference computes each part's log-probabilities without a cache, in float64, and combines them
by the formula, for every text of a small vocabulary.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from networks import drawn

import decoding_jax
from decoding_jax import Prompt, adapters, models
from decoding_jax.models import GPT2, GPT2Config, Llama, LlamaConfig, with_shared_prefix
from decoding_jax.models.shared_prefix import prefix_of
from decoding_jax.models.stack import with_scanned_layers
from decoding_jax.testing import TableLM, check_model, chi_square, log_probs
from decoding_jax.testing.certificate.enumeration import exact_log_softmax
from decoding_jax.text import shared_prefix
from decoding_jax.text.inputs import check_tokens
from decoding_jax.text.shared_prefix import with_common_prefix

VOCAB, LENGTH = 4, 3
ONE, OTHER = (TableLM.random(jax.random.key(i), VOCAB) for i in range(2))
HOLES = TableLM.random(jax.random.key(2), VOCAB, zeros=0.2)  # in which some tokens are banned
LISTS = [[1, 2, 3, 2], [3], [0, 2]]
PROMPT = Prompt(
    np.array([[1, 2, 3, 2], [3, 0, 0, 0], [0, 2, 0, 0]], np.int32), np.array([4, 1, 2], np.int32)
)
NEGATIVE = [[1], [2, 2, 3], [0, 1]]
SCALES, BY_ROW = [0.5, 1.0, 1.7], [[0.9, 0.1], [0.3, 0.7], [0.0, 1.0]]
TEXTS = np.array(list(itertools.product(range(VOCAB), repeat=LENGTH)), np.int32)
KEY = jax.random.key(5)


def weighted(*terms):
    """The sum of weights times log-probabilities, of which those of weight 0 do not count."""
    return sum(w * x for w, x in terms if w)


def guidance(scale, conditional, unconditional):
    return scale * (conditional - unconditional) + unconditional


def contrast(beta, alpha, expert, amateur):
    plausible = expert >= np.log(alpha) + expert.max() - 4e-6
    return np.where(plausible, expert - beta * amateur, -np.inf)


def mean(weights, *parts):
    return np.log(sum(w * np.exp(x) for w, x in zip(weights, parts, strict=True)))


# A model, and its logits given a row and the log-probabilities of tables after a prompt.
CASES = {
    "guided": (
        models.guided(ONE, 1.5),
        lambda row, p: guidance(1.5, p(ONE, LISTS[row]), p(ONE, LISTS[row][-1:])),
    ),
    "guided, one negative": (
        models.guided(ONE, 0.4, [2, 1]),
        lambda row, p: guidance(0.4, p(ONE, LISTS[row]), p(ONE, [2, 1])),
    ),
    "guided by row": (
        models.guided(ONE, SCALES, NEGATIVE),
        lambda row, p: guidance(SCALES[row], p(ONE, LISTS[row]), p(ONE, NEGATIVE[row])),
    ),
    "contrasted": (
        models.contrasted(ONE, OTHER, 0.8, 0.2),
        lambda row, p: contrast(0.8, 0.2, p(ONE, LISTS[row]), p(OTHER, LISTS[row])),
    ),
    "mixture": (
        models.mixture([HOLES, OTHER], [3, 1]),
        lambda row, p: mean([3, 1], p(HOLES, LISTS[row]), p(OTHER, LISTS[row])),
    ),
    "mixture by row": (
        models.mixture([HOLES, OTHER], BY_ROW),
        lambda row, p: mean(BY_ROW[row], p(HOLES, LISTS[row]), p(OTHER, LISTS[row])),
    ),
    "product": (
        models.product([HOLES, OTHER], [0.4, 0.9]),
        lambda row, p: weighted((0.4, p(HOLES, LISTS[row])), (0.9, p(OTHER, LISTS[row]))),
    ),
    "product by row": (
        models.product([HOLES, OTHER], BY_ROW),
        lambda row, p: weighted(
            (BY_ROW[row][0], p(HOLES, LISTS[row])), (BY_ROW[row][1], p(OTHER, LISTS[row]))
        ),
    ),
    "of a guided one": (
        models.mixture([models.guided(ONE, SCALES, NEGATIVE), OTHER], [0.5, 0.5]),
        lambda row, p: mean(
            [0.5, 0.5],
            exact_log_softmax(guidance(SCALES[row], p(ONE, LISTS[row]), p(ONE, NEGATIVE[row]))),
            p(OTHER, LISTS[row]),
        ),
    ),
}


def next_token(name, row, path):
    """The log-probabilities of the next token after some new tokens, by the formula."""
    with np.errstate(divide="ignore"):
        logits = CASES[name][1](row, lambda table, start: log_probs(table, [*start, *path]))
    return exact_log_softmax(logits)


def log_probs_of_texts(name, row):
    """The log-probability of every text of three tokens, by the formula."""
    found = {}

    def at(path):
        if path not in found:
            found[path] = next_token(name, row, path)
        return found[path]

    texts = TEXTS.tolist()
    return np.array([sum(at(tuple(t[:i]))[t[i]] for i in range(LENGTH)) for t in texts])


def index_of(tokens):
    return np.asarray(tokens) @ VOCAB ** np.arange(LENGTH - 1, -1, -1)


OTHERS = ["guided", "guided, one negative", "mixture by row", "product", "of a guided one"]


@pytest.mark.release
@pytest.mark.parametrize("name", tiers.of_table(CASES, exhaustive=OTHERS))
def test_the_beams_of_all_texts_have_the_formulas_log_probs(name):
    """Trees: 64 beams hold every text that is not banned."""
    output = decoding_jax.beam_search(
        CASES[name][0], PROMPT, beam_size=len(TEXTS), max_new_tokens=LENGTH
    )
    output = jax.device_get(output)
    for row in range(3):
        want = log_probs_of_texts(name, row)
        real = output.length[row] == LENGTH
        got = np.full(len(TEXTS), -np.inf)
        got[index_of(output.tokens[row][real])] = output.log_prob[row][real]
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.release
@pytest.mark.parametrize(
    "name", tiers.values(exhaustive=["guided by row"], release=["contrasted", "mixture"])
)
def test_samples_and_speculation_follow_the_enumerated_distribution(name):
    """Lanes: chi-square, 4,096 samples of a row, level 1e-3."""
    model, row = CASES[name][0], 2
    settings = {"num_samples": 4096, "max_new_tokens": LENGTH}
    drafted = {"num_draft_tokens": 2, **settings}
    outputs = [
        decoding_jax.sample(model, PROMPT, KEY, **settings),
        decoding_jax.speculative_sample(model, OTHER, PROMPT, KEY, **drafted),
        decoding_jax.speculative_sample(HOLES, model, PROMPT, KEY, **drafted),
    ]
    prob = np.exp(log_probs_of_texts(name, row))
    of_holes = np.exp([plain(HOLES, LISTS[row], text) for text in TEXTS.tolist()])
    for output, want in zip(outputs, (prob, prob, of_holes), strict=True):
        counts = np.bincount(index_of(output.tokens[row]), minlength=len(TEXTS))
        assert chi_square(counts, want / want.sum()).p_value > 1e-3


def plain(table, start, text):
    return sum(log_probs(table, [*start, *text[:i]])[text[i]] for i in range(LENGTH))


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values(
        "guided by row",
        exhaustive=["product by row"],
        release=[name for name in CASES if not name.endswith(("guided by row", "product by row"))],
    ),
)
def test_the_methods_keep_the_protocol(name):
    """Except that the end of a guided model's prompt matters."""

    def alone(row):
        return decoding_jax.rows.take_rows({"model": CASES[name][0]}, [row], 3)["model"]

    ran = check_model(CASES[name][0], tolerance=2e-6, row_model=alone)
    assert {"check_tree", "check_keep", "check_select", "check_ragged", "check_widens"} <= set(ran)
    assert ("check_prefill" in ran) == ("guided" not in name)


@pytest.mark.exhaustive
def test_parts_that_offer_less():
    def init(size):
        return jnp.zeros(VOCAB)

    def step(state, tokens):
        state = jnp.tanh(state + jax.nn.one_hot(tokens[0, 0], VOCAB))
        return state[None, None], state

    model = models.mixture([adapters.from_cache(init, step, VOCAB), ONE.lockstep()], [1, 1])
    assert (model.tree, model.ragged, model.rewinds, model.widens) == (False,) * 4
    assert "check_select" in check_model(model, tolerance=2e-6)


@pytest.mark.exhaustive
def test_positions_are_those_that_all_parts_have():
    short, long = (TableLM.random(KEY, VOCAB, max_positions=n) for n in (9, 12))
    assert models.mixture([ONE, long, short], [1, 1, 1]).max_positions == 9
    assert models.guided(short, 2).max_positions == 9
    # The texts below need all nine positions, and one more is NaN.
    model = models.guided(short, 2, [1, 2, 3, 1, 2])
    assert model.max_positions == 5
    prompt = Prompt(np.array([[1]], np.int32), np.array([1], np.int32))
    assert not decoding_jax.greedy(model, prompt, max_new_tokens=5).nan_logits.any()
    with pytest.raises(ValueError, match="max_new_tokens: expected at most 5"):
        decoding_jax.greedy(model, prompt, max_new_tokens=6)


@pytest.mark.release
def test_other_numbers_do_not_compile_again():
    def run(model):
        return decoding_jax.greedy(model, PROMPT, max_new_tokens=LENGTH)

    pairs = [
        [models.guided(ONE, s, [2, t]) for s, t in ((1.5, 1), (2, 3))],
        [models.contrasted(ONE, OTHER, b, a) for b, a in ((1, 0), (0.5, 0.1))],
        [models.mixture([ONE, OTHER], w) for w in ([1, 2], [0.3, 0.7])],
    ]
    for first, second in pairs:
        run(first)
        before = decoding_jax.greedy.cache_size()
        run(second)
        assert decoding_jax.greedy.cache_size() == before


@pytest.mark.release
def test_what_a_model_does_not_know_is_nan_or_banned():
    """NaN logits of a part end a text; tokens that only the amateur bans win."""
    spoiled = TableLM(jnp.full_like(ONE.table, jnp.nan), ONE.features)
    for model in (models.mixture([ONE, spoiled], [1, 1]), models.contrasted(ONE, spoiled)):
        assert decoding_jax.greedy(model, PROMPT, max_new_tokens=2).nan_logits.all()
    left_out = models.product([ONE, spoiled], [1, 0])
    want = decoding_jax.greedy(ONE, PROMPT, max_new_tokens=2)
    got = decoding_jax.greedy(left_out, PROMPT, max_new_tokens=2)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    logits, _ = models.product([ONE, HOLES], [1, -1]).prefill(*PROMPT, lanes=1, slots=1)
    holes, _ = HOLES.prefill(*PROMPT, lanes=1, slots=1)
    np.testing.assert_array_equal(np.isposinf(logits.logits), np.isneginf(holes.logits))


CONFIG = LlamaConfig(
    vocab_size=17, emb_dim=16, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=24, num_layers=2,
    max_positions=32,
)  # fmt: skip
LLAMA = drawn(Llama, CONFIG)


def of_network(model):
    return models.guided(models.contrasted(model, model.early_exit(1)), 1.5, [3, 1, 4])


@pytest.mark.release
def test_a_network_with_scanned_layers_keeps_the_protocol():
    check_model(of_network(with_scanned_layers(LLAMA)), tolerance=1e-4)


@pytest.mark.release
def test_networks_layer_by_layer_scanned_and_in_bfloat16():
    tokens = np.array([[[5, 6, 7]], [[8, 9, 1]], [[2, 2, 3]]], np.int32)

    @jax.jit
    def run(model):
        first, cache = model.prefill(*PROMPT, lanes=1, slots=4)
        return first.logits, model.extend(cache, tokens, 0)[0].logits

    want = run(of_network(LLAMA))
    for got, expected in zip(run(of_network(with_scanned_layers(LLAMA))), want, strict=True):
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), LLAMA.params)
    narrow = Llama(params, dataclasses.replace(CONFIG, dtype="bfloat16"))
    final, early = run(narrow)[1], run(narrow.early_exit(1))[1]
    got = run(models.contrasted(narrow, narrow.early_exit(1), 0.5, 0.0))[1]
    assert got.dtype == jnp.float32
    want = exact_log_softmax(final) - 0.5 * exact_log_softmax(early)
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


@pytest.mark.release
def test_a_guided_model_with_a_shared_prefix_is_the_guided_model(monkeypatch):
    """Unconditional prompts do not begin with it. ``generate`` shares it as of the model itself."""
    prompt = Prompt(np.array([[3, 1, 4, 9], [3, 1, 5, 0]], np.int32), np.array([4, 3], np.int32))
    for negative in (None, [[2, 7], [8]]):
        want, got = (
            decoding_jax.beam_search(
                models.guided(model, [1.5, 0.5], negative), prompt, beam_size=3, max_new_tokens=5
            )
            for model in (LLAMA, with_shared_prefix(LLAMA, [3, 1]))
        )
        np.testing.assert_array_equal(got.tokens, want.tokens)
        np.testing.assert_allclose(got.log_prob, want.log_prob, rtol=1e-5)
    monkeypatch.setattr(shared_prefix, "GRANULE", 2)
    shared = with_common_prefix(models.guided(LLAMA, 2.0), [[3, 1, 4], [3, 1, 5, 6]])
    assert np.asarray(prefix_of(shared)).tolist() == [3, 1]
    with pytest.raises(ValueError, match="not begin with the 2 tokens of the model's shared"):
        check_tokens(shared, [[3, 2, 1]])


def test_the_layer_that_diverges_most_is_contrasted():
    parts = [exact_log_softmax(np.random.default_rng(i).normal(size=(5, 7))) for i in range(3)]

    def divergence(p, q):
        middle = np.logaddexp(p, q) - np.log(2)
        return (np.exp(p) * (p - middle) + np.exp(q) * (q - middle)).sum(-1) / 2

    combine = jax.jit(models.layers_contrasted(LLAMA, [1, 2], alpha=0.2).combine)
    got = np.asarray(combine([np.float32(p)[:, None, None] for p in parts]))[:, 0, 0]
    distances = [divergence(parts[0], q) for q in parts[1:]]
    assert len(set(np.argmax(distances, 0))) == 2
    for i, layer in enumerate(np.argmax(distances, 0)):
        want = contrast(1.0, 0.2, parts[0][i], parts[1 + layer][i])
        np.testing.assert_allclose(got[i], want, 1e-5, 1e-5)


@pytest.mark.release
def test_hidden_states_are_those_of_the_first_part():
    network = drawn(GPT2, GPT2Config(17, 16, num_heads=2, mlp_dim=24, num_layers=2))
    settings = {"penalty_alpha": 0.6, "top_k": 3, "max_new_tokens": 4}
    want = decoding_jax.contrastive_search(network, PROMPT, **settings)
    got = decoding_jax.contrastive_search(models.guided(network, 1.0), PROMPT, **settings)
    np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.guided("llama", 2), "model: expected a language model, got 'llama'"),
        (lambda: models.guided(ONE, np.nan), "guided.scale: expected a finite number, or one"),
        (lambda: models.guided(ONE, 2, []), "guided.negative: expected token ids, or lists of"),
        (lambda: models.guided(ONE, 2, [[1], []]), "guided.negative: expected token ids, or"),
        (lambda: models.guided(ONE, 2, [9]), "guided.negative.tokens: expected ids from 0 to 3"),
        (lambda: models.guided(ONE, 2, "no"), "guided.negative: expected token ids, or lists"),
        (
            lambda: decoding_jax.greedy(models.guided(ONE, 2, [[1]]), PROMPT, max_new_tokens=1),
            "guided.negative: expected one prompt, or one for each of 3 rows, got 1",
        ),
        (
            lambda: models.contrasted(ONE, LLAMA),
            "contrasted: expected models of one vocabulary, got [4, 17] tokens",
        ),
        (lambda: models.contrasted(ONE, OTHER, -1), "contrasted.beta: expected a finite number of"),
        (lambda: models.contrasted(ONE, OTHER, 1, 2), "contrasted.alpha: expected a probability"),
        (lambda: models.mixture([], []), "mixture.models: expected one language model or more"),
        (lambda: models.mixture([ONE], [-1]), "mixture.weights: expected a finite number of 0 or"),
        (lambda: models.mixture([ONE, OTHER], [0, 0]), "mixture.weights: expected a finite number"),
        (lambda: models.product([ONE], [1, 2]), "product.weights: expected one for each of the 1"),
        (lambda: models.product([ONE], 1), "product.weights: expected one for each of the 1 mod"),
        (lambda: models.layers_contrasted(ONE, [1]), "layers_contrasted.model: expected a model w"),
        (
            lambda: models.layers_contrasted(LLAMA, []),
            "layers_contrasted.layers: expected one numb",
        ),
    ],
)
def test_a_mistake_is_one_line(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
