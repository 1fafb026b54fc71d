"""Tries and automata, compared with sets of tuples, and under every kind of strategy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transforms_reference as reference
from transforms_reference import make_logits, make_prefix

import decoding_jax
from decoding_jax import Prefix, Prompt, Stop, transforms
from decoding_jax.testing import TableLM, chi_square, log_probs
from decoding_jax.transforms import Automaton, Trie, prefix_allowed_tokens

SEQUENCES = [(0,), (0, 1), (0, 1, 2), (1, 0, 0, 1), (1, 0, 2), (2,) * 7, (0, 1), (1, 9), (0, 0, 1)]


@jax.jit
def run(transform, logits, prefix):
    return transform(logits, prefix)


def next_tokens(sequences, text):
    n = len(text)
    return {s[n] for s in sequences if len(s) > n and s[:n] == tuple(text)}


def expected(logits, prefix, sequences):
    out = np.full(logits.shape, -np.inf, np.float32)
    for b, w, t in np.ndindex(logits.shape[:3]):
        text = reference.text_of(prefix, b, w, t, False)
        ids = [i for i in next_tokens(sequences, text) if i < logits.shape[-1]]
        out[b, w, t, ids] = logits[b, w, t, ids]
    return np.where(np.isnan(out), -np.inf, out)


def dense(trie, vocab_size):
    """The automaton of the same language as ``trie``."""
    table = np.full((len(trie.first_edge) - 1, vocab_size), -1)
    for node in range(len(table)):
        for edge in range(*trie.first_edge[node : node + 2]):
            table[node, trie.token[edge]] = edge + 1
    return Automaton(table)


@pytest.mark.parametrize("eos_ids", [(), 3, (3, 0)])
@pytest.mark.parametrize("kind", ["trie", "automaton"])
def test_the_allowed_tokens_are_those_that_continue_a_sequence(kind, eos_ids):
    """20 sets of random paths over two tokens, which often follow a sequence."""
    trie = Trie.from_sequences(SEQUENCES, eos_ids)
    language = trie if kind == "trie" else dense(trie, reference.V)
    ends = (eos_ids,) if isinstance(eos_ids, int) else eos_ids
    whole = [(*s, e) for s in SEQUENCES for e in ends] or SEQUENCES
    allowed = 0
    for seed in range(20):
        prefix = make_prefix(seed, alphabet=2)
        logits = make_logits("nan" if seed % 2 else "masked", seed)
        got = run(prefix_allowed_tokens(language), jnp.asarray(logits), prefix)
        np.testing.assert_array_equal(got, expected(logits, prefix, whole))
        allowed += (np.asarray(got)[np.asarray(prefix.length) > 1] > -np.inf).sum()
    assert allowed > 10


def test_the_longest_sequence_and_texts_beyond_it():
    """Paths that follow the longest sequence, one that leaves it, and texts longer than it."""
    paths = jnp.array([[[[2] * 9] * 3], [[[2, 2, 0] + [2] * 6] * 3]])
    length = jnp.array([[[6, 7, 9]], [[2, 3, 8]]])
    prefix = Prefix(jnp.zeros((2, 1), int), jnp.ones(2, int), paths, length)
    logits = np.zeros((2, 1, 3, 10), np.float32)
    trie = Trie.from_sequences(SEQUENCES)
    for language in (trie, dense(trie, 10)):
        got = run(prefix_allowed_tokens(language), jnp.asarray(logits), prefix)
        np.testing.assert_array_equal(got, expected(logits, prefix, SEQUENCES))
        assert (got[0, 0, 0] == 0).sum() == 1
        assert (got[0, 0, 1:] == -np.inf).all()
        assert (got[1, 0, 1:] == -np.inf).all()


def test_a_start_for_every_row():
    """Each row has a different language, which is a branch of one trie."""
    rows = [SEQUENCES, [(0, 2), (1, 1)], [(2,)]]
    trie = Trie.from_sequences([(7 + b, *s) for b, mine in enumerate(rows) for s in mine])
    start = np.array([trie.state((7 + b,)) for b in range(3)])
    prefix, logits = make_prefix(3, alphabet=3), make_logits()
    for language in (trie, dense(trie, reference.V)):
        got = run(prefix_allowed_tokens(language, start), jnp.asarray(logits), prefix)
        for b, mine in enumerate(rows):
            np.testing.assert_array_equal(got[b], expected(logits, prefix, mine)[b])


def test_thousands_of_sequences_over_a_large_vocabulary():
    """16 paths of every length along 5,000 sequences over 32,000 tokens."""
    rng = np.random.default_rng(0)
    stems = [tuple(rng.integers(2, 32000, 3).tolist()) for _ in range(400)]
    sequences = [
        (*stems[rng.integers(400)][: rng.integers(0, 4)], *rng.integers(2, 32000, 2).tolist(), 1)
        for _ in range(5000)
    ]
    trie = prefix_allowed_tokens(Trie.from_sequences(sequences))
    tokens, length = np.zeros((2, 8, 1, 8), np.int32), np.zeros((2, 8, 1), np.int32)
    for b, w in np.ndindex(2, 8):
        mine = sequences[rng.integers(5000)]
        tokens[b, w, 0, : len(mine)] = mine
        length[b, w] = (b * 8 + w) % (len(mine) + 1)
    prefix = Prefix(jnp.zeros((2, 1), int), jnp.ones(2, int), jnp.array(tokens), jnp.array(length))
    got = np.asarray(run(trie, jnp.zeros((2, 8, 1, 32000)), prefix)) == 0
    for b, w in np.ndindex(2, 8):
        want = next_tokens(sequences, tokens[b, w, 0, : length[b, w, 0]].tolist())
        assert set(np.flatnonzero(got[b, w, 0]).tolist()) == want


def test_nodes_with_many_children_have_rows_of_bits():
    """Every prefix of 3,000 sequences over 100 tokens, and 2,000 other texts."""
    rng = np.random.default_rng(1)
    sequences = rng.integers(0, 100, (3000, 3))
    trie = Trie.from_sequences(sequences)
    assert 1 < len(trie.bits) < 101 < len(trie.first_edge)
    assert 1 < trie.max_children <= 32
    known = [{tuple(s[:n]) for s in sequences.tolist()} for n in range(5)]
    others = rng.integers(-1, 110, (2000, 3))
    texts = np.concatenate([sequences, others])[:, None]
    step = jax.jit(lambda s, t: (trie.advance(s, t), trie.allowed(s, 110)))
    state = np.zeros(texts.shape[:-1], np.int32)
    follows = {}
    for n in range(3):
        for text in known[n + 1]:
            follows.setdefault(text[:n], set()).add(text[n])
    for n in range(3):
        next_state, allowed = jax.device_get(step(state, texts[..., n]))
        for i, text in enumerate(texts[:, 0].tolist()):
            want = follows.get(tuple(text[:n]), set())
            assert set(np.flatnonzero(allowed[i, 0]).tolist()) == want
            if tuple(text[: n + 1]) in known[n + 1]:
                assert next_state[i, 0] == trie.state(text[: n + 1])
            else:
                assert next_state[i, 0] == len(trie.first_edge) - 2
        state = next_state


def test_a_prefix_with_no_room_and_tokens_outside_the_vocabulary():
    prefix = make_prefix()
    prefix = prefix._replace(tokens=prefix.tokens[..., :0], length=jnp.zeros_like(prefix.length))
    got = run(
        prefix_allowed_tokens(Trie.from_sequences([(4, 1), (99,)])),
        jnp.asarray(make_logits()),
        prefix,
    )
    assert np.flatnonzero(np.asarray(got > -np.inf).any((0, 1, 2))).tolist() == [4]


# Strategies: 9 names over five tokens, 0 the end, on ragged prompts.
NAMES = [(1, 0), (1, 1, 0), (1, 1, 2, 0), (2, 3, 4, 0), (2, 3, 0), (4, 4, 4, 0), (4, 0), (3, 0)]
MODEL = TableLM.random(jax.random.key(4), 5)
PROMPT = Prompt(jnp.array([[1, 2, 3], [4, 0, 0]], jnp.int32), jnp.array([3, 1]))
SETTINGS = {
    "max_new_tokens": 6,
    "transform": prefix_allowed_tokens(Trie.from_sequences(NAMES)),
    "stop": Stop(eos_ids=(0,)),
}


def distribution_of(row):
    """The log-probability of each name, under the model and under the model restricted to names."""
    start = PROMPT.tokens[row, : PROMPT.length[row]].tolist()
    unrestricted, restricted = np.zeros(len(NAMES)), np.zeros(len(NAMES))
    for k, name in enumerate(NAMES):
        for n, token in enumerate(name):
            distribution = log_probs(MODEL, [*start, *name[:n]])
            unrestricted[k] += distribution[token]
            restricted[k] += distribution[token] - np.logaddexp.reduce(
                distribution[sorted(next_tokens(NAMES, name[:n]))]
            )
    return unrestricted, restricted


def names_of(output, row):
    """The index of the name that each sequence of a row is; an error if it is not a name."""
    assert output.finished[row].all()
    rows = zip(output.tokens[row].tolist(), output.length[row].tolist(), strict=True)
    return np.array([NAMES.index(tuple(tokens[:length])) for tokens, length in rows])


@pytest.mark.exhaustive
def test_greedy_takes_the_likeliest_child():
    output = decoding_jax.greedy(MODEL, PROMPT, **SETTINGS)
    for row in range(2):
        start, text = PROMPT.tokens[row, : PROMPT.length[row]].tolist(), ()
        while children := next_tokens(NAMES, text):
            distribution = log_probs(MODEL, [*start, *text])
            text = (*text, max(children, key=lambda i: distribution[i]))
        assert NAMES[names_of(output, row)[0]] == text


@pytest.mark.exhaustive
def test_samples_follow_the_restricted_distribution():
    """2,048 draws of each prompt: 8 lanes of 256 rows. Chi-square at level 1e-3 for both."""
    prompt = Prompt(jnp.tile(PROMPT.tokens, (256, 1)), jnp.tile(PROMPT.length, 256))
    output = decoding_jax.sample(MODEL, prompt, jax.random.key(2), num_samples=8, **SETTINGS)
    for row in range(2):
        drawn = np.concatenate([names_of(output, b) for b in range(row, 512, 2)])
        counts = np.bincount(drawn, minlength=len(NAMES))
        _, restricted = distribution_of(row)
        assert np.exp(restricted).sum() == pytest.approx(1)
        assert chi_square(counts, np.exp(restricted)).p_value > 1e-3 / 2


@pytest.mark.release
def test_arithmetic_samples_are_spread_over_the_names():
    output = decoding_jax.arithmetic_sample(
        MODEL, PROMPT, jax.random.key(3), num_samples=64, **SETTINGS
    )
    for row in range(2):
        counts = np.bincount(names_of(output, row), minlength=len(NAMES))
        assert (np.abs(counts - 64 * np.exp(distribution_of(row)[1])) < 1 + 1e-3).all()


@pytest.mark.exhaustive
def test_a_wide_beam_ranks_all_names():
    """The beam is wider than the number of names, so its last places are empty."""
    output = decoding_jax.beam_search(MODEL, PROMPT, beam_size=10, **SETTINGS)
    for row in range(2):
        unrestricted, _ = distribution_of(row)
        first = jax.tree.map(lambda x: x[:, :8], output._replace(info=None))
        assert names_of(first, row).tolist() == np.argsort(-unrestricted).tolist()
        np.testing.assert_allclose(output.score[row, :8], np.sort(unrestricted)[::-1], rtol=1e-5)
        assert (output.score[row, 8:] == -np.inf).all()


def test_nothing_follows_sequences_without_an_end_token():
    bare = prefix_allowed_tokens(Trie.from_sequences([(1, 2), (3,)]))
    output = decoding_jax.greedy(MODEL, PROMPT, **{**SETTINGS, "transform": bare})
    assert not output.finished.any()
    for [tokens], [length] in zip(output.tokens.tolist(), output.length.tolist(), strict=True):
        assert tuple(tokens[:length]) in {(1, 2), (3,)}


def test_another_start_or_other_tokens_do_not_retrace():
    traces = []

    @jax.jit
    def trace(transform):
        traces.append(1)
        return jax.tree.leaves(transform)

    trace(transforms.chain(prefix_allowed_tokens(Trie.from_sequences([(1, 2), (3, 4)]), 0)))
    trace(transforms.chain(prefix_allowed_tokens(Trie.from_sequences([(5, 7), (9, 4)]), 2)))
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Trie.from_sequences([]), "sequences: expected sequences of one token or more,"),
        (
            lambda: Trie.from_sequences([(1,), ()]),
            "sequences: expected sequences of one token or more,",
        ),
        (
            lambda: Trie.from_sequences([(1, -1)]),
            "sequences: expected token ids of 0 or more, got -1",
        ),
        (
            lambda: Trie.from_sequences([(1,)], -1),
            "sequences: expected token ids of 0 or more, got -1",
        ),
        (
            lambda: Trie.from_sequences([(1, 2)]).state((1, 3)),
            "tokens: expected the beginning of a sequence, got (1, 3)",
        ),
        (
            lambda: Automaton([[0, 2]]),
            "automaton.transitions: expected a table [states, V] of states,",
        ),
        (lambda: Automaton([0, 1]), "automaton.transitions: expected a table [states, V] of"),
        (
            lambda: Automaton([[0.5]]),
            "automaton.transitions: expected a table [states, V] of states,",
        ),
        (
            lambda: prefix_allowed_tokens(Automaton([[0, 0]]), start=-1),
            "prefix_allowed_tokens.start: expected an int of 0 or more, or one for each row",
        ),
        (
            lambda: run(prefix_allowed_tokens(Automaton([[0]])), make_logits(), make_prefix()),
            "automaton.transitions: expected a number for each of the vocabulary's 11",
        ),
        (
            lambda: run(
                prefix_allowed_tokens(Trie.from_sequences([(1,)]), [0, 0]),
                make_logits(),
                make_prefix(),
            ),
            "prefix_allowed_tokens.start: expected a scalar or [B] = [3], got shape [2]",
        ),
    ],
)
def test_bad_arguments_get_one_line(make, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        make()
    assert "\n" not in str(caught.value)
