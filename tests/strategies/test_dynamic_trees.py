"""Dynamic trees: every text has its probability in any tree, and the nodes are the paper's."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import decoding_jax
from decoding_jax import Prompt, Stop
from decoding_jax.strategies import SpeculativeSample, speculative
from decoding_jax.strategies.speculative import dynamic_trees, stages, trees
from decoding_jax.strategies.speculative.distributions import Allowed
from decoding_jax.testing import TableLM
from decoding_jax.testing.certificate.strategies import DRAFTS
from decoding_jax.testing.table_head import TableHead

KEY = jax.random.key(1)
MODEL = TableLM.random(jax.random.key(0), 5)
DRAFT = TableLM.random(jax.random.key(2), 5)
PROMPT = Prompt(
    np.array([[1, 2, 3], [4, 0, 0], [2, 2, 0]], np.int32), np.array([3, 1, 2], np.int32)
)
LENGTH = 9


class Forced:
    """Draws the tokens of a given text, and multiplies their probabilities."""

    def draw(self, keys, state, distribution, position, counter):
        token = jnp.take_along_axis(keys, position[..., None], -1)[..., 0]
        return token, state * distribution.prob_of(token)


def every_tree(vocab_size, depth):
    """All sets of paths of up to ``depth`` tokens that hold the beginnings of their paths."""
    below = every_tree(vocab_size, depth - 1) if depth else []
    branches = [None, *below] if depth else [None]
    found = []
    for chosen in itertools.product(branches, repeat=vocab_size):
        found.append([])
        for token, branch in enumerate(chosen):
            if branch is not None:
                found[-1] += [(token,), *((token, *path) for path in branch)]
    return found


def padded(values, size, fill):
    return [*values, *[fill] * (size - len(values))]


def test_every_text_has_its_probability_whatever_the_tree():
    """All 676 trees of two tokens and three levels, and all 16 texts, as far as a tree has them.

    The draws of the verifier are forced to a text, and a block tells with which probability they
    give it.
    """
    size, depth = 14, 3
    found = [sorted(tree, key=lambda path: (len(path), path)) for tree in every_tree(2, depth)]
    assert len(found) == 676
    index = [{path: 1 + i for i, path in enumerate(tree)} | {(): 0} for tree in found]
    tokens = [padded([path[-1] for path in tree], size, 0) for tree in found]
    parent = [
        padded([at[path[:-1]] for path in tree], size, -1)
        for at, tree in zip(index, found, strict=True)
    ]
    depths = [padded([len(path) for path in tree], size, 1) for tree in found]
    texts = np.array(list(itertools.product(range(2), repeat=depth + 1)), np.int32)
    shape = len(found), len(texts)
    each = lambda x: np.repeat(np.array(x, np.int32)[:, None], len(texts), 1)  # noqa: E731
    empty = np.zeros((*shape, size, depth), np.int32)
    tree = trees.Tree(each(tokens), each(depths), each(parent), empty, *[each(tokens)] * 2)
    rng = np.random.default_rng(0)
    table = {
        path: rng.normal(size=2).astype(np.float32)
        for n in range(depth + 1)
        for path in itertools.product(range(2), repeat=n)
    }
    logits = [
        [table[()], *(table[path] for path in tree), *[np.zeros(2)] * (size - len(tree))]
        for tree in found
    ]
    logits = np.repeat(np.array(logits, np.float32)[:, None], len(texts), 1)
    zero = np.zeros(shape, np.int32)
    sequences = decoding_jax.loop.Sequences(*[zero] * 6)._replace(length=zero)
    inputs = stages.BlockInputs(
        *(PROMPT, sequences, None, None, np.broadcast_to(texts, (*shape, depth + 1))),
        *(np.ones(shape, np.float32), zero + depth, depth, 2, size, None, zero, None),
    )
    dead = np.zeros((*shape, size + 1), bool)
    scores = stages.Scores(logits, Allowed(logits, dead, logits[..., :1], None))

    @jax.jit
    def verify(tree, scores, state, texts):
        given = inputs._replace(verifier_state=state, keys=texts)
        return dynamic_trees.verify(Forced(), given, tree, scores)

    got = jax.device_get(verify(tree, scores, inputs.verifier_state, inputs.keys))
    probs = {path: special.softmax(row.astype(np.float64)) for path, row in table.items()}
    for row, at in enumerate(index):
        for lane, text in enumerate(map(tuple, texts.tolist())):
            accepted = max(n for n in range(depth + 1) if text[:n] in at)
            assert got.accepted[row, lane] == accepted
            assert tuple(got.tokens[row, lane, : accepted + 1]) == text[: accepted + 1]
            nodes = [at[text[:n]] for n in range(accepted + 1)]
            assert got.nodes[row, lane, : accepted + 1].tolist() == nodes
            want = np.prod([probs[text[:n]][text[n]] for n in range(accepted + 1)])
            assert abs(got.verifier_state[row, lane] - want) < 1e-6


def best_paths(draft, text, length, width, size):
    """The paper's tree in plain Python: expand the best C of a level, keep the best N of all."""

    def log_probs(path):
        whole = [*text, *path]
        checksum = sum((t % 10 + 1) * (i % 10 + 1) for i, t in enumerate(whole)) % 11
        return special.log_softmax(np.float64(draft[checksum, whole[-2], whole[-1]]))

    def best(values, count):
        return sorted(values, key=lambda path: -values[path])[:count]

    found, level = {}, {(): 0.0}
    for _ in range(length):
        children = {}
        for path in best(level, width):
            logs = log_probs(path)
            for token in np.argsort(-logs, kind="stable")[:width]:
                children[(*path, int(token))] = level[path] + logs[token]
        found |= children
        level = children
    return best(found, size)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["model", pytest.param("eagle", marks=pytest.mark.exhaustive)])
def test_the_nodes_are_those_of_the_paper(name):
    """Rows of several widths and depths: the most valuable nodes, with their paths and parents."""
    width, depth, size = 3, 3, 8
    drafter, table = speculative.ModelDrafter(DRAFT), np.asarray(DRAFT.table)
    if name == "eagle":
        ids = np.arange(5, dtype=np.int32)
        drafter = speculative.Eagle(TableHead(MODEL, DRAFT, ids), vocab_size=5)
    widths, depths = np.array([3, 2, 1], np.int32), np.array([3, 2, 3], np.int32)
    strategy = SpeculativeSample(
        drafter=drafter,
        num_draft_tokens=depth,
        num_drafts=width,
        tree="dynamic",
        tree_size=size,
        max_new_tokens=LENGTH,
        drafts_by_row=widths,
        draft_tokens_by_row=depths,
        verifier="greedy",
    )

    @jax.jit
    def grow(prompt):
        state = strategy.init(MODEL, prompt, None)
        inputs = strategy.block_inputs(prompt, state)
        tree, _, calls = dynamic_trees.propose(strategy.drafter, strategy.verifier, inputs, 5)
        return inputs.sequences.tokens[:, :, 0], tree, calls

    first, tree, calls = jax.device_get(grow(PROMPT))
    assert calls == depth
    for row in range(3):
        text = [*PROMPT.tokens[row, : PROMPT.length[row]].tolist(), int(first[row, 0])]
        real = tree.parent[row, 0] >= 0
        assert (real[:-1] >= real[1:]).all()
        tokens, path = tree.tokens[row, 0], tree.path[row, 0]
        got = [
            tuple(tokens[node - 1] for node in path[n, : tree.depth[row, 0, n]])
            for n in np.flatnonzero(real)
        ]
        assert got == best_paths(table, text, depths[row], widths[row], size)
        for n in np.flatnonzero(real):
            nodes = [0, *path[n, : tree.depth[row, 0, n]]]
            assert nodes[-1] == n + 1
            assert nodes[-2] == tree.parent[row, 0, n]


def run(verifier, drafter=DRAFT, **settings):
    settings = {"num_draft_tokens": 3, "num_drafts": 2, "tree": "dynamic"} | settings
    settings = {"num_samples": 4, "max_new_tokens": LENGTH} | settings
    key = None if verifier == "greedy" else KEY
    return jax.device_get(
        decoding_jax.speculative_sample(MODEL, drafter, PROMPT, key, verifier=verifier, **settings)
    )


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    [
        "eagle, trees of 6",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("another, tree of 5", "dflash, tree of 4")
        ),
        pytest.param("multi-token, tree of 6", marks=pytest.mark.release),
        pytest.param("assistant, tree of 6", marks=pytest.mark.release),
    ],
)
def test_the_sequences_are_those_without_a_draft(name):
    """To the bit, so their distribution is that of ``arithmetic_sample`` and of ``greedy``."""
    case = DRAFTS[name]
    settings = case.settings(PROMPT)
    stop = Stop((0,), min_new_tokens=(5, 0, 0), max_new_tokens=(9, 7, 9))
    spread = decoding_jax.arithmetic_sample(
        MODEL, PROMPT, KEY, num_samples=4, max_new_tokens=LENGTH, stop=stop
    )
    got = run("code", case.make(MODEL), stop=stop, **settings)
    np.testing.assert_array_equal(got.tokens, spread.tokens)
    np.testing.assert_array_equal(got.length, spread.length)
    info = got.info
    assert (info.accepted_by_draft.sum(-1) == info.accepted).all()
    assert (info.accepted_by_depth <= info.proposed_by_depth).all()
    assert info.accepted.sum() > 0


@pytest.mark.release
def test_a_full_tree_of_the_target_takes_the_fewest_calls():
    """A tree of all tokens is never left, whatever the draft; a gap in a cache would give NaN."""
    got = run("token", num_draft_tokens=2, num_drafts=5, tree_size=30)
    assert got.info.target_calls == math.ceil((LENGTH - 1) / 3)
    assert got.info.acceptance_rate == 1
    assert (got.info.emitted == LENGTH - 1).all()


@pytest.mark.release
def test_a_tree_of_fewer_tokens_than_levels():
    """A tree of two tokens has two levels."""
    got = run("greedy", MODEL, num_draft_tokens=4, num_drafts=1, tree_size=2)
    calls = math.ceil((LENGTH - 1) / 3)
    assert got.info.target_calls == calls
    assert got.info.draft_calls <= 2 * calls
    assert (got.info.rejected == 0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_drafts": 6}, "num_drafts: expected at most the vocabulary of 5 for a dynamic tree"),
        (
            {"drafter": speculative.ModelDrafter(DRAFT, min_confidence=0.5)},
            "drafter: expected min_confidence of 0 for a dynamic tree, got 0.5",
        ),
        (
            {"drafter": speculative.PromptLookup()},
            "drafter: expected a language model or a drafter of trees, such as Eagle, for several",
        ),
        (
            {"num_drafts": 1, "tree": "independent", "tree_size": 4},
            "tree_size: expected None for a single draft, got 4",
        ),
        (
            {"num_drafts": 3, "tree": "independent", "tree_size": 2},
            "tree_size: expected 3 or more for 3 drafts, got 2",
        ),
        ({"drafts_by_row": [1, 3, 1]}, "drafts_by_row: expected at most num_drafts, which is 2"),
    ],
)
def test_bad_arguments_get_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        run("token", **change)
    assert "\n" not in str(caught.value)
