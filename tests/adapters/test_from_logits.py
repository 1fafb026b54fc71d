"""A function of tokens to logits decodes what the model that it stands for decodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from adapted import (
    BEAMS,
    CHAINS,
    DRAFT,
    PROMPT,
    SAMPLERS,
    TABLE,
    TREES,
    VOCAB,
    assert_one_line,
    assert_same,
    every_token,
    from_logits,
    group_and_function,
    next_token,
    run,
    with_states,
)

import decoding_jax
from decoding_jax import adapters
from decoding_jax.testing import check_model, chi_square, enumerate_distribution
from decoding_jax.testing.conformance import check_features, make_trial

FUNCTIONS = {"next token": next_token, "every token": every_token}


@pytest.mark.parametrize(
    ("name", "function"),
    tiers.combinations(
        [
            (name, function)
            for name in (*SAMPLERS, *BEAMS, *CHAINS, *TREES)
            for function in FUNCTIONS
        ],
        default=[("sample", "every token")],
        covers=group_and_function,
    ),
)
def test_every_strategy_decodes_what_it_does_on_the_table(name, function):
    model, draft = (from_logits(FUNCTIONS[function], t) for t in (TABLE, DRAFT))
    assert_same(run(name, model, draft), run(name, TABLE, DRAFT))


@pytest.mark.release
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_model_keeps_the_protocol_to_the_bit(function):
    names = check_model(from_logits(FUNCTIONS[function]))
    assert {"check_tree", "check_keep", "check_select", "check_ragged"} <= set(names)


@pytest.mark.exhaustive
def test_contrastive_search_compares_the_hidden_states_of_the_function():
    got = run("contrastive_search", from_logits(with_states, hidden=True), DRAFT)
    assert_same(got, run("contrastive_search", TABLE, DRAFT))


def with_all_states(table, tokens, length):
    """As ``with_states``, with the states of two layers and their input."""
    logits, states = with_states(table, tokens, length)
    return logits, (states + 2, states + 1, states)


def test_a_tuple_of_hidden_states_has_those_of_layers():
    model = from_logits(with_all_states, hidden=True)
    assert model.num_layers == 2
    check_features(make_trial(model, seed=0, tolerance=0.0))
    assert from_logits(with_states, hidden=True).num_layers is None


@pytest.mark.exhaustive
def test_hidden_states_keep_the_protocol():
    names = check_model(from_logits(with_states, hidden=True))
    wanted = {"check_hidden", "check_tree", "check_keep", "check_select", "check_ragged"}
    assert wanted <= set(names)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (
            next_token,
            {},
            "model: expected hidden states from prefill, as adapters.from_logits(function, "
            "vocab_size, hidden=True) returns them, got none",
        ),
        (
            next_token,
            {"hidden": True},
            "expected a pair, logits and hidden states, with hidden=True, got float32[2, 5]",
        ),
        (
            lambda *args: (next_token(*args), next_token(*args)),
            {"hidden": True},
            "function: expected floating hidden states [B, P, D], which begin with [2,",
        ),
    ],
)
def test_contrastive_search_without_hidden_states_says_how_to_give_them(
    function, settings, message
):
    model = from_logits(function, **settings)
    assert_one_line(lambda: run("contrastive_search", model, DRAFT), message)


def test_samples_follow_the_enumerated_distribution():
    """Chi-square, 4,096 samples, level 1e-3."""
    prompt = decoding_jax.Prompt(PROMPT.tokens[:1], PROMPT.length[:1])
    distribution = enumerate_distribution(TABLE, prompt, max_new_tokens=3)
    texts = {tuple(text): k for k, text in enumerate(distribution.tokens.tolist())}
    output = decoding_jax.sample(
        from_logits(next_token), prompt, jax.random.key(3), num_samples=4096, max_new_tokens=3
    )
    index = [texts[tuple(text)] for text in output.tokens[0].tolist()]
    counts = np.bincount(index, minlength=len(distribution.prob))
    assert chi_square(counts, distribution.prob).p_value > 1e-3


def test_new_parameters_do_not_compile_again():
    decoding_jax.greedy(from_logits(next_token), PROMPT, max_new_tokens=3)
    before = decoding_jax.greedy.cache_size()
    decoding_jax.greedy(from_logits(next_token, DRAFT), PROMPT, max_new_tokens=3)
    assert decoding_jax.greedy.cache_size() == before


def test_paths_are_no_wider_than_max_positions():
    widths = []

    def function(tokens, length):
        widths.append(tokens.shape[1])
        return next_token(TABLE, tokens, length)

    model = adapters.from_logits(function, VOCAB, max_positions=8)
    got = run("beam_search", model, None)
    assert set(widths) == {4, 8}
    assert_same(got, run("beam_search", TABLE, None))


@pytest.mark.exhaustive
def test_tokens_that_are_none_never_reach_the_function():
    """Padding and slots that no path names may hold any number."""
    junk = np.array([[1, 2, -1, 2**31 - 1]], np.int32)
    seen = []

    def function(tokens, length):
        jax.debug.callback(lambda t: seen.append(np.asarray(t)), tokens)
        return next_token(TABLE, tokens, length)

    model = adapters.from_logits(function, VOCAB)
    _, cache = model.prefill(junk, np.array([2]), lanes=1, slots=4)
    model.extend(cache, np.array([[[-5, VOCAB]]], np.int32), 0)
    jax.effects_barrier()
    assert len(seen) == 2
    assert all((tokens >= 0).all() and (tokens < VOCAB).all() for tokens in seen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: adapters.from_logits(3, 5),
            "function: expected a function of (tokens, length), got 3",
        ),
        (
            lambda: adapters.from_logits(lambda tokens: tokens, 5),
            "got one that does not take them (too many positional arguments)",
        ),
        (
            lambda: adapters.from_logits(lambda tokens, length: tokens, 5, parameters=1),
            "expected a function of (parameters, tokens, length)",
        ),
        (
            lambda: adapters.from_logits(lambda t, n: t, 0),
            "vocab_size: expected an int of 1 or more, got 0",
        ),
        (
            lambda: adapters.from_logits(lambda t, n: t, 5, max_positions=0),
            "max_positions: expected an int of 1 or more, got 0",
        ),
        (
            lambda: decoding_jax.greedy(
                adapters.from_logits(lambda t, n: jnp.zeros((2, 3)), VOCAB),
                PROMPT,
                max_new_tokens=2,
            ),
            "function: expected floating logits [B, V], which is [2, 5] here or [B, P, V], which is"
            " [2, 4, 5] here, got float32[2, 3]",
        ),
        (
            lambda: decoding_jax.greedy(
                adapters.from_logits(lambda t, n: t, VOCAB), PROMPT, max_new_tokens=2
            ),
            "here, got int32[2, 4]",
        ),
        (
            lambda: decoding_jax.greedy(
                adapters.from_logits(lambda t, n: None, VOCAB), PROMPT, max_new_tokens=2
            ),
            "here, got None",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_argument(make, message):
    assert_one_line(make, message)


def test_a_function_that_holds_arrays_is_told_where_they_go():
    class Network:
        __hash__ = None

        def __call__(self, tokens, length):
            return tokens

    with pytest.raises(
        ValueError,
        match=r"function: .*its arrays as parameters=.*, got a Network, which holds arrays",
    ):
        adapters.from_logits(Network(), 5)
