"""Best-first and best-k search beside the paper: decay, gamma, S, presets; and bad arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_best_k import (
    MODEL,
    PROMPT,
    ROWS,
    SEARCH,
    SEARCHED,
    L,
    V,
    best_k_search,
    expanded,
)

import decoding_jax
from decoding_jax import BestKSearch, Prompt, Stop, strategies
from decoding_jax.strategies.best_first.expansion import max_children
from decoding_jax.strategies.best_first.priority import Decay, LastLogProb, MeanLogProb
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.certificate.comparisons import outcome_index
from decoding_jax.testing.certificate.enumeration import enumerate_distribution

START = Prompt(np.array([[0]], np.int32), np.array([1], np.int32))


def chain(edges, vocab_size):
    """A TableLM that gives ``edges[last][token]`` as the probability of a token after ``last``."""
    model = TableLM.random(jax.random.key(0), vocab_size)
    rows = np.full((vocab_size, vocab_size), -np.inf, np.float32)
    for last, following in edges.items():
        for token, probability in following.items():
            rows[last, token] = np.log(probability)
    return dataclasses.replace(model, table=np.broadcast_to(rows, model.table.shape))


def test_the_decay_is_that_of_the_paper():
    # A node found at step 1 has a decay of -4 at step 5, and one found at step 4 has -1.
    table = Decay(1.0, 1.0).table(9)
    np.testing.assert_allclose(table[jnp.array([5 - 1, 5 - 4])], [-4.0, -1.0], rtol=1e-6)
    age = np.arange(9)
    for kappa, beta in ((0.05, 0.5), (0.2, 2.0)):
        np.testing.assert_allclose(Decay(kappa, beta).table(9), -kappa * age**beta, rtol=2e-6)


@pytest.mark.exhaustive
def test_a_hypothesis_is_a_step_old_when_it_first_competes():
    # The children of the prompt are 1 (0.5), 2 (0.4) and 3 (0.1), and 1 is expanded first. Then
    # 1 3 (log 0.35, age 1) competes with 2 (log 0.4, age 2): 2 wins by log(0.4 / 0.35) = 0.134,
    # less (sqrt(2) - 1) kappa, which is 0.083 for the first kappa and 0.166 for the second.
    edges = {0: {1: 0.5, 2: 0.4, 3: 0.1}, 1: {3: 0.7, 2: 0.3}, 2: {3: 1.0}, 3: {3: 1.0}}
    settings = {"k": 1, "budget": 3, "max_new_tokens": L, "branching": V}
    for kappa, second in ((0.2, (2,)), (0.4, (1, 3))):
        options = {"decay": Decay(np.float32(kappa)), "gamma": np.float32(0.05)}
        _, tree = SEARCHED(chain(edges, V), START, options, settings=tuple(settings.items()))
        assert expanded(jax.device_get(tree), 0) == [(1,), second]


def test_room_is_made_for_all_children_that_gamma_admits():
    assert max_children(0.05) == max_children(np.float32(0.05)) == 20
    assert max_children(jnp.array([0.5, 0.25])) == 4
    assert max_children(0.0) is None
    assert jax.jit(lambda gamma: 0 if max_children(gamma) is None else 1)(0.1) == 0
    for count in (1, 3, 7, 10, 20, 41, 64, 100):
        equal = np.full(count, 1 / count, np.float32)
        gamma = np.float32(1 / count)
        assert max_children(gamma) >= (equal >= gamma).sum() == count


@pytest.mark.release
def test_nothing_that_gamma_admits_is_cut():
    # Twenty equally likely tokens of 24: the default gamma of 0.05 admits all of them.
    model = chain({last: dict.fromkeys(range(4, 24), 0.05) for last in range(24)}, 24)
    settings = {"k": 1, "budget": 1, "max_new_tokens": 1, "num_return": "all"}
    output = best_k_search(model, START, **settings)
    assert output.tokens.shape == (1, 20, 1)
    assert sorted(output.tokens[0, :, 0].tolist()) == list(range(4, 24))


ALL = {"k": 2, "num_return": "all", "max_new_tokens": L, "stop": Stop(0)}


@pytest.mark.release
def test_all_returns_every_sequence_if_the_budget_suffices():
    output = best_k_search(MODEL, PROMPT, gamma=0.0, budget=41, **ALL)
    for row in range(ROWS):
        distribution = enumerate_distribution(MODEL, PROMPT, row, max_new_tokens=L, stop=Stop(0))
        size = len(distribution.length)
        assert output.info.expanded[row] == 1 + 3 + 9 + 27
        assert output.info.completed[row] == size
        found = outcome_index(
            distribution, np.asarray(output.tokens[row, :size]), output.length[row, :size]
        )
        assert sorted(found.tolist()) == list(range(size))
        assert (np.diff(output.score[row, :size]) <= 0).all()
        assert (output.length[row, size:] == 0).all()


@pytest.mark.release
def test_all_uses_the_budget_to_its_end():
    plain = best_k_search(MODEL, PROMPT, gamma=0.3, budget=9, **ALL)
    assert plain.tokens.shape[1] == 9 * 3
    array = best_k_search(MODEL, PROMPT, gamma=jnp.float32(0.3), budget=9, **ALL)
    assert array.tokens.shape[1] == 9 * V
    assert same_bits(plain.tokens, array.tokens[:, :27])
    *_, streamed = decoding_jax.loop.stream(
        strategies.best_k_search, MODEL, PROMPT, gamma=0.3, budget=9, **ALL
    )
    assert same_bits(streamed, plain)
    assert (array.length[:, 27:] == 0).all()
    one = best_k_search(MODEL, PROMPT, gamma=0.3, budget=9, **ALL | {"num_return": 1})
    assert (one.info.expanded <= plain.info.expanded).all()
    assert (one.info.expanded < plain.info.expanded).any()
    assert same_bits(one.tokens[:, 0], plain.tokens[:, 0])
    exists = np.asarray(plain.length > 0)
    assert (exists.sum(1) >= plain.info.completed).all()
    ended = np.asarray(plain.finished) | (np.asarray(plain.length) == L)
    assert ended[exists].all()


def test_the_presets_of_the_paper():
    rest = {"gamma": 0.05, "frontier_size": 500}
    last = decoding_jax.best_k_last(kappa=0.1)
    assert last == {"score": LastLogProb(), "decay": Decay(0.1, 0.5), **rest}
    mean = decoding_jax.best_k_mean(alpha=0.5, kappa=0.2, beta=1.0)
    assert mean == {"score": MeanLogProb(0.5), "decay": Decay(0.2, 1.0), **rest}
    assert BestKSearch(**mean, **SEARCH)


@pytest.mark.release
@pytest.mark.parametrize("name", [pytest.param("last", marks=pytest.mark.exhaustive), "mean"])
def test_the_presets_in_gin_are_those_in_python(name):
    gin = pytest.importorskip("gin")
    gin_config = pytest.importorskip("decoding_jax.gin_config")
    numbers = {"kappa": 0.2, "beta": 1.0} | ({"alpha": 0.5} if name == "mean" else {})
    macros = {n.upper(): v for n, v in numbers.items()}
    macros |= {"K": 2, "BUDGET": 10, "NUM_RETURN": 3, "MAX_NEW_TOKENS": L, "FALLBACK": False}
    with gin.unlock_config():
        gin.clear_config()
        bindings = [f"{macro} = {value!r}" for macro, value in macros.items()]
        gin_config.read_gin([f"strategies/best_k_{name}.gin"], bindings, [])
        got = gin.query_parameter("%STRATEGY").scoped_configurable_fn(MODEL, PROMPT)
        gin.clear_config()
    preset = getattr(decoding_jax, f"best_k_{name}")(**numbers)
    settings = {"k": 2, "budget": 10, "num_return": 3, "max_new_tokens": L}
    assert same_bits(got, best_k_search(MODEL, PROMPT, **preset, **settings))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model": MODEL.lockstep()},
            "model: expected one with ragged and tree, since the rows of",
        ),
        ({"model": dataclasses.replace(MODEL, tree=False)}, "ragged=True and tree=False"),
        (
            {"model": dataclasses.replace(MODEL, max_positions=5)},
            "max_new_tokens: expected at most 3 after a prompt of 3, got",
        ),
    ],
)
def test_bad_arguments_get_one_line(change, words):
    settings = {"model": MODEL, "prompt": PROMPT, **SEARCH, **change}
    with pytest.raises(ValueError, match=words) as caught:
        best_k_search(settings.pop("model"), settings.pop("prompt"), **settings)
    assert "\n" not in str(caught.value)
