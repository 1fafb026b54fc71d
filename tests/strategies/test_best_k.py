"""Best-first and best-k search, against enumeration and against Algorithm 1 in plain Python."""

import jax
import numpy as np
import pytest
import tiers
from best_k_reference import Table, search
from jax import lax

import decoding_jax
from decoding_jax import BestKSearch, Prompt, Stop, transforms
from decoding_jax.ops.jit import jit
from decoding_jax.strategies.best_first.priority import Decay, LastLogProb, LogProb, MeanLogProb
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.certificate.comparisons import outcome_index
from decoding_jax.testing.certificate.enumeration import (
    enumerate_distribution,
    log_probs,
    top_sequences,
)
from decoding_jax.testing.certificate.problems import MODELS, PROMPTS, DeadEnds, Problem, prompt_of

V, L = 4, 4
PROMPT = Prompt(
    np.array([[1, 3, 2], [0, 2, 1], [3, 1, 3], [2, 0, 0]], np.int32),
    np.array([3, 1, 2, 3], np.int32),
)
ROWS = len(PROMPT.length)
MODEL = TableLM.random(jax.random.key(0), V)
SCORES = {"log_prob": LogProb, "mean": MeanLogProb, "last": LastLogProb}


def best_k_search(*args, **settings):
    return jax.device_get(decoding_jax.best_k_search(*args, **settings))


def _searched(model, prompt, options, settings):
    made = BestKSearch(**dict(settings), **options)
    state = lax.while_loop(
        lambda s: ~made.done(s),
        lambda s: made.step(model, prompt, s),
        made.init(model, prompt, None),
    )
    return made.finalize(prompt, state), state.tree


SEARCHED = jit(lambda m, p, o, *, settings: _searched(m, p, o, settings), ("settings",))


def tables(count):
    """Small tables of three kinds: smooth, with zeros, with ties everywhere."""
    kinds = ({}, {"zeros": 0.3, "sharpness": 2.0}, {"ties": True})
    for i in range(count):
        yield TableLM.random(jax.random.key(i), V, **kinds[i % 3])


def random_stop(rng, plain):
    """Stop conditions whose leaves have one shape and dtype, so that all share one program."""
    if plain:
        ends, minimum, maximum = np.full((ROWS, 2), -1), np.zeros(ROWS), np.full(ROWS, L)
        sequence = [[-1, -1]]
    else:
        ends = rng.integers(-1, V, (ROWS, 2))
        minimum, maximum = rng.integers(0, 3, ROWS), rng.integers(0, L + 2, ROWS)
        sequence = rng.integers(0, V, (1, 2))
    as_int = lambda x: np.asarray(x, np.int32)  # noqa: E731
    return Stop(as_int(ends), as_int(sequence), as_int(minimum), as_int(maximum))


PLANS = {
    "best-first": {"k": 1, "budget": 12, "num_return": 3, "branching": V, "frontier_size": 500},
    "pruned": {"k": 3, "budget": 20, "num_return": 5, "branching": V, "frontier_size": 4},
    "fallback": {"k": 3, "budget": 4, "num_return": 2, "branching": 2, "frontier_size": 500},
    "all": {"k": 2, "budget": 9, "num_return": "all", "branching": None, "frontier_size": 500},
    "wide": {"k": 6, "budget": 40, "num_return": 30, "branching": 3, "frontier_size": 30},
}


def expanded(tree, row):
    """The paths in the row's slots, in order; a path is as long as its node has ancestor bits."""
    paths, bits = tree.paths[row, : tree.used[row]], tree.ancestors[row, : tree.used[row]]
    return [
        tuple(p[: sum(int(w).bit_count() for w in b)]) for p, b in zip(paths, bits, strict=True)
    ]


def compare(output, row, want):
    """Asserts that one row of an output equals that of the reference to the bit."""
    nodes = want.output()
    assert len(nodes) <= output.tokens.shape[1]
    for n, node in enumerate(nodes):
        length = output.length[row, n]
        assert tuple(output.tokens[row, n, :length]) == node.path
        assert output.log_prob[row, n] == node.log_prob
        assert output.score[row, n] == want.worth(node)
        assert output.finished[row, n] == (node.kind == "finished")
    assert (output.length[row, len(nodes) :] == 0).all()
    assert (output.log_prob[row, len(nodes) :] == -np.inf).all()
    assert len({node.path for node in nodes}) == len(nodes)
    info = output.info
    assert info.completed[row] == want.completed
    assert info.pruned[row] == want.pruned
    assert info.expanded[row] == want.within_budget
    assert info.fallback[row].sum() == (len(want.P) if want.greedy else 0)


@pytest.mark.parametrize(
    ("plan", "score"),
    [
        pytest.param("best-first", "log_prob", marks=pytest.mark.exhaustive),
        ("fallback", "last"),
        pytest.param("pruned", "mean", marks=pytest.mark.exhaustive),
        pytest.param("wide", "log_prob", marks=pytest.mark.release),
        pytest.param("all", "mean", marks=pytest.mark.exhaustive),
    ],
)
def test_the_search_is_that_of_a_python_heap(plan, score):
    fallback = plan == "fallback"
    sizes = {**PLANS[plan], "fallback": fallback, "max_new_tokens": L}
    fell, programs = 0, SEARCHED.cache_size()
    for i, model in enumerate(tables(12)):
        rng = np.random.default_rng(i)
        alpha = np.float32(rng.choice([0.0, 0.5, 1.0, 1.5]))
        kappa = np.float32(rng.choice([0.0, 0.01, 0.05, 0.1, 0.2, 1.0]))
        decay = Decay(kappa, np.float32(rng.choice([0.5, 1.0])))
        gamma = np.float32(rng.choice([0.0, 0.05, 0.25, 0.6]))
        temperature = np.float32(rng.choice([1.0, 0.5]))
        dead = rng.integers(0, 3 * V, ROWS).astype(np.int32)
        stop = random_stop(rng, plain=i % 4 == 0)
        options = {
            "score": MeanLogProb(alpha) if score == "mean" else SCORES[score](),
            "decay": decay,
            "gamma": gamma,
            "transform": transforms.chain(transforms.temperature(temperature), DeadEnds(dead)),
            "stop": stop,
        }
        output, tree = jax.device_get(
            SEARCHED(model, PROMPT, options, settings=tuple(sorted(sizes.items())))
        )
        table = Table(model, temperature)
        for row in range(ROWS):
            want = search(
                model,
                PROMPT,
                row,
                temperature=table,
                dead=int(dead[row]),
                stop=stop,
                gamma=gamma,
                score=score,
                alpha=alpha,
                kappa=kappa,
                beta=decay.beta,
                **sizes,
            )
            assert expanded(tree, row) == want.expanded[1:], f"table {i}, row {row}"
            compare(output, row, want)
            assert len(want.expanded) <= sizes["budget"] or want.greedy
            fell += want.greedy
        assert output.info.expanded.max() <= sizes["budget"]
        assert output.info.model_calls <= sizes["budget"] or fallback
    assert SEARCHED.cache_size() == programs + 1
    assert fell > 1 or not fallback


PROBLEMS = {
    1: Problem("ties", "history", "end tokens"),
    3: Problem("zeros", "constraints", "sequences"),
}


@pytest.mark.parametrize("k", tiers.values(exhaustive=[3], release=[1]))
def test_an_unlimited_budget_gives_every_sequence_once_and_in_order(k):
    problem, rows, count = PROBLEMS[k], np.arange(PROMPTS), 300
    output = best_k_search(
        MODELS()[problem.model],
        prompt_of(rows),
        k=k,
        budget=100,
        num_return=count,
        branching=V,
        gamma=0.0,
        frontier_size=300,
        **problem.settings(rows),
    )
    for row, distribution in enumerate(problem.distributions()):
        size = len(distribution.length)
        assert output.info.completed[row] == size < count
        assert output.info.pruned[row] == 0
        found = outcome_index(
            distribution, np.asarray(output.tokens[row, :size]), output.length[row, :size]
        )
        assert sorted(found.tolist()) == list(range(size))
        np.testing.assert_allclose(
            output.log_prob[row, :size], distribution.log_prob[found], atol=1e-5
        )
        assert (np.diff(output.log_prob[row, :size]) <= 0).all()
        assert (output.finished[row, :size] == distribution.finished[found]).all()
        assert (output.length[row, size:] == 0).all()
        assert (output.log_prob[row, size:] == -np.inf).all()


@pytest.mark.release
def test_best_first_search_gives_the_likeliest_sequence_first():
    for model in tables(6):
        output = jax.device_get(
            decoding_jax.best_first_search(
                model, PROMPT, budget=100, branching=V, gamma=0.0, max_new_tokens=L, stop=Stop(0)
            )
        )
        for row in range(ROWS):
            distribution = enumerate_distribution(
                model, PROMPT, row, max_new_tokens=L, stop=Stop(0)
            )
            best = top_sequences(distribution, 1)
            assert output.info.completed[row] >= 1
            assert output.info.expanded[row] < 100
            assert output.log_prob[row, 0] == pytest.approx(best.log_prob[0], abs=1e-5)
            (index,) = outcome_index(distribution, output.tokens[row], output.length[row])
            assert distribution.log_prob[index] == pytest.approx(best.log_prob[0], abs=1e-5)


SEARCH = {"k": 2, "budget": 10, "num_return": 3, "branching": V, "max_new_tokens": L}


@pytest.mark.release
def test_pruning_changes_nothing_while_the_frontier_holds_the_budget():
    model = TableLM.random(jax.random.key(3), V, sharpness=0.3)
    sizes = {**SEARCH, "gamma": 0.0, "budget": 20, "num_return": 8}
    small, large = (best_k_search(model, PROMPT, frontier_size=size, **sizes) for size in (20, 500))
    assert (small.info.pruned > 0).any()
    assert not large.info.pruned.any()
    assert same_bits(small._replace(info=None), large._replace(info=None))


def test_unfinished_sequences_are_returned_with_their_log_prob():
    stop = Stop(0, min_new_tokens=4)
    output = best_k_search(MODEL, PROMPT, decay=0.0, stop=stop, **SEARCH)
    assert not output.finished.any()
    for row in range(ROWS):
        path = np.asarray(PROMPT.tokens[row, : PROMPT.length[row]]).tolist()
        for n in range(3):
            tokens = np.asarray(output.tokens[row, n, : output.length[row, n]]).tolist()
            each = [log_probs(MODEL, path + tokens[:i])[t] for i, t in enumerate(tokens)]
            assert output.log_prob[row, n] == pytest.approx(sum(each), abs=1e-5)
