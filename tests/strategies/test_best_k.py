"""Best-first and best-k search: against enumeration, and against a heap in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from best_k_reference import Table, search
from jax import lax

from decoding_jax import Prompt, Stop, transforms
from decoding_jax.loop.priority import Decay, LastLogProb, LogProb, MeanLogProb
from decoding_jax.ops.jit import jit
from decoding_jax.strategies import best_k
from decoding_jax.testing import TableLM
from decoding_jax.testing.problems import DeadEnds

V, L = 4, 4
PROMPT = Prompt(jnp.array([[1, 3, 2], [0, 2, 1], [3, 1, 3], [2, 0, 0]]), jnp.array([3, 1, 2, 3]))
ROWS = len(PROMPT.length)
NOBODY = np.full(ROWS, 9, np.int32)
SCORES = {"log_prob": LogProb, "mean": MeanLogProb, "last": LastLogProb}


def _searched(model, prompt, options, settings):
    made = best_k.steps(**dict(settings), **options)
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
    """Leaves of one shape and dtype, so that all of them share one program."""
    if plain:
        ends, least, most = np.full((ROWS, 2), -1), np.zeros(ROWS), np.full(ROWS, L)
        sequence = [[-1, -1]]
    else:
        ends = rng.integers(-1, V, (ROWS, 2))
        least, most = rng.integers(0, 3, ROWS), rng.integers(0, L + 2, ROWS)
        sequence = rng.integers(0, V, (1, 2))
    as_int = lambda x: np.asarray(x, np.int32)  # noqa: E731
    return Stop(as_int(ends), as_int(sequence), as_int(least), as_int(most))


PLANS = {
    "best-first": {"k": 1, "budget": 12, "num_return": 3, "branching": V, "frontier_size": 500},
    "pruned": {"k": 3, "budget": 20, "num_return": 5, "branching": V, "frontier_size": 4},
    "fallback": {"k": 3, "budget": 4, "num_return": 2, "branching": 2, "frontier_size": 500},
    "wide": {"k": 6, "budget": 40, "num_return": 30, "branching": 3, "frontier_size": 30},
}


def expanded(tree, row):
    """The paths in the row's slots, in order; as long as they have ancestors, themselves one."""
    paths, bits = tree.paths[row, : tree.used[row]], tree.ancestors[row, : tree.used[row]]
    return [
        tuple(p[: sum(int(w).bit_count() for w in b)]) for p, b in zip(paths, bits, strict=True)
    ]


def compare(output, row, want):
    """One row of an output is that of the reference, to the bit."""
    nodes = want.output()
    for n, node in enumerate(nodes):
        length = output.length[row, n]
        assert tuple(output.tokens[row, n, :length]) == node.path
        assert output.log_prob[row, n] == node.log_prob
        assert output.score[row, n] == want.worth(node)
        assert output.finished[row, n] == (node.kind == "finished")
    assert (output.length[row, len(nodes) :] == 0).all()
    assert (output.log_prob[row, len(nodes) :] == -np.inf).all()
    info = output.info
    assert info.completed[row] == want.completed
    assert info.pruned[row] == want.pruned
    assert info.expanded[row] == want.within_budget
    assert info.fallback[row].sum() == (len(want.results) if want.greedy else 0)


@pytest.mark.parametrize(
    ("plan", "score"),
    [
        ("best-first", "log_prob"),
        ("best-first", "mean"),
        ("fallback", "log_prob"),
        ("pruned", "last"),
        ("pruned", "mean"),
        ("wide", "log_prob"),
    ],
)
def test_the_search_is_that_of_a_python_heap(plan, score):
    fallback = plan == "fallback"
    sizes = {**PLANS[plan], "fallback": fallback, "max_new_tokens": L}
    fell = 0
    for i, model in enumerate(tables(18)):
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
        table, cost = Table(model, temperature), np.asarray(decay.table(100))
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
                cost=cost,
                **sizes,
            )
            assert expanded(tree, row) == want.expanded[1:], f"table {i}, row {row}"
            compare(output, row, want)
            fell += want.greedy
    assert fell > 5 or not fallback
