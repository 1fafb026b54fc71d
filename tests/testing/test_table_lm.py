"""The table model keeps the contract, and says so when others do not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.base import LanguageModel, SupportsKeep, SupportsSelect
from decoding_jax.pytrees import pytree
from decoding_jax.testing import TableLM, check_model, conformance, path_logits

VOCAB = 5
MODEL = TableLM.random(jax.random.key(0), VOCAB, zeros=0.2)


@pytest.fixture(scope="module")
def trial():
    return conformance.make_trial(MODEL)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conforms_to_the_bit(trial, check):
    check(trial)


@pytest.mark.exhaustive
def test_lockstep_conforms_with_what_it_offers():
    names = check_model(MODEL.lockstep())
    offered = {"continues", "num_layers", "rewinds", "select", "widens", "with_features"}
    assert names == [c.__name__ for c, n in conformance.CHECKS.items() if set(n) <= offered]


def test_protocols_and_pytree():
    assert isinstance(MODEL, LanguageModel)
    assert isinstance(MODEL, SupportsKeep)
    assert isinstance(MODEL, SupportsSelect)
    leaves, structure = jax.tree.flatten(MODEL.lockstep())
    again = jax.tree.unflatten(structure, leaves)
    assert len(leaves) == 2
    assert (again.ragged, again.tree, again.max_positions) == (False, False, None)


def test_logits_are_those_of_the_plain_statement(trial):
    """Cache, masks and all against ten lines of NumPy, at every slot of every lane."""
    prompt, length = trial.prompt
    for b, w, t in np.ndindex(trial.tokens.shape):
        path = [*prompt[b, : length[b]].tolist(), *trial.tokens[b, w, : t + 1].tolist()]
        np.testing.assert_array_equal(trial.reference[b, w, t], path_logits(MODEL, path))


def test_one_wrong_missing_or_swapped_token_changes_the_distribution():
    """The checksum: any single error, at any place, leads to another row of the table."""
    model = TableLM.random(jax.random.key(1), VOCAB)
    path = [3, 1, 4, 1, 0, 2, 2, 0, 1, 3]
    want = path_logits(model, path)
    for place in range(len(path)):
        for token in set(range(VOCAB)) - {path[place]}:
            wrong = [*path[:place], token, *path[place + 1 :]]
            assert not np.array_equal(path_logits(model, wrong), want)
    for i, j in ((0, 1), (1, 2), (0, 4), (4, 5), (8, 9)):
        swapped = path.copy()
        swapped[i], swapped[j] = path[j], path[i]
        assert not np.array_equal(path_logits(model, swapped), want)


def fresh(model=MODEL, slots=4):
    """Two rows, one lane."""
    prompt = np.array([[1, 2, 3], [4, 0, 0]], np.int32), np.array([3, 1], np.int32)
    return conformance.prefill(model, *prompt, 1, slots)[1]


def feed(cache, tokens, start, visible=None, position=None, model=MODEL):
    """One lane's tokens for both rows: logits [2, T, V], and the cache."""
    block = np.broadcast_to(np.asarray(tokens, np.int32), (2, 1, len(tokens)))
    if visible is not None:
        visible = np.broadcast_to(np.asarray(visible, bool), (2, *block.shape[1:], 4))
    output, cache = conformance.extend(model, cache, block, start, visible, position)
    return np.asarray(output.logits)[:, 0], cache


@pytest.mark.parametrize(
    ("what", "tokens", "visible", "position"),
    [
        ("a slot never written", [1], [[0, 0, 0, 1]], None),
        ("a token among its own ancestors", [1], [[1, 1, 1, 0]], None),
        ("a stale sibling beside the ancestor", [1], [[1, 1, 0, 0]], np.full((2, 1, 1), 9)),
        ("a position left out", [1], [[1, 0, 0, 0]], np.array([[[5]], [[3]]])),
        ("a position before the prompt's end", [1], [[0, 0, 0, 0]], np.zeros((2, 1, 1), np.int32)),
        ("a token outside the vocabulary", [VOCAB], [[0, 0, 0, 0]], None),
        ("a negative token", [-1], [[0, 0, 0, 0]], None),
    ],
)
def test_what_is_no_path_gives_nan(what, tokens, visible, position):
    _, cache = feed(fresh(), [2, 3], 0)
    logits, _ = feed(cache, tokens, 2, visible, position)
    assert np.isnan(logits).all(), what


def test_siblings_must_not_be_seen_by_a_later_chain():
    siblings = [[0, 0, 0, 0], [0, 0, 0, 0]]
    _, cache = feed(fresh(), [2, 3], 0, siblings)
    assert np.isnan(feed(cache, [1], 2)[0]).all()


def test_dropped_tokens_and_positions_past_the_limit_give_nan():
    logits, _ = feed(fresh(), [1, 2, 3], np.array([[-1], [2]]))
    assert np.isnan(logits[0, 0]).all()
    assert not np.isnan(logits[0, 1:]).any()
    assert np.isnan(logits[1]).all()  # slots 0 and 1 are unwritten, and 4 is none
    short = dataclasses.replace(MODEL, max_positions=4)
    logits, _ = feed(fresh(short), [1, 2], 0, model=short)
    assert np.isnan(logits[0, 1]).all()
    assert not np.isnan(logits[0, 0]).any()
    assert not np.isnan(logits[1]).any()


@pytest.mark.parametrize("kind", ["zeros", "ties"])
def test_random_tables(kind):
    model = TableLM.random(
        jax.random.key(2), VOCAB, **({"zeros": 0.9} if kind == "zeros" else {"ties": True})
    )
    table = np.asarray(model.table)
    if kind == "zeros":
        assert 0.68 < np.isinf(table).mean() < 0.76  # 0.9 of the four tokens that are not spared
        assert np.isfinite(table).any(-1).all()
    else:
        np.testing.assert_array_equal(table, np.round(table))
        top = np.sort(table, -1)
        assert (top[..., -1] == top[..., -2]).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TableLM.random(jax.random.key(0), 0), "vocab_size: expected 1 or more, got 0"),
        (
            lambda: TableLM.random(jax.random.key(0), 3, zeros=2),
            "zeros: expected a prob",
        ),
        (lambda: MODEL.prefill(jnp.zeros(3), jnp.ones(1), lanes=1, slots=1), "tokens and length"),
        (
            lambda: MODEL.prefill(jnp.zeros((1, 3)), jnp.ones(1), lanes=0, slots=1),
            "lanes and slots",
        ),
        (lambda: MODEL.extend(fresh(), jnp.zeros((2, 3, 1)), 0), "tokens: expected shape"),
        (
            lambda: MODEL.extend(fresh(), jnp.zeros((2, 1, 1)), jnp.zeros(2)),
            "start: expected",
        ),
        (lambda: feed(fresh(), [1], 0, np.zeros((2, 1, 1, 4)), model=MODEL.lockstep()), "visible"),
        (
            lambda: feed(fresh(), [1], np.zeros((2, 1)), model=MODEL.lockstep()),
            "start: expected",
        ),
        (
            lambda: MODEL.extend(fresh(), jnp.zeros((2, 1, 1)), 0, jnp.zeros((2, 1, 1, 5), bool)),
            "visi",
        ),
        (
            lambda: MODEL.extend(fresh(), jnp.zeros((2, 1, 1)), 0, jnp.zeros((2, 1, 1, 4))),
            "visible",
        ),
        (lambda: MODEL.keep(fresh(), jnp.zeros((2, 3)), 0), "source: expected shape"),
        (lambda: MODEL.select(fresh(), jnp.zeros((2, 3))), "lanes: expected shape"),
    ],
)
def test_misuse_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


class StaleSlot(TableLM):
    """Sees one slot too many."""

    def extend(self, cache, tokens, start, visible=None, position=None):
        if visible is None:
            slots = cache.tokens.shape[2]
            at = jnp.broadcast_to(jnp.asarray(start), tokens.shape[:2])[..., None]
            at = at + jnp.arange(tokens.shape[2])[None, None]
            visible = jnp.arange(slots)[None, None, None] < at[..., None] + 2
            position = cache.length[:, None, None] + at
        return TableLM.extend(self, cache, tokens, start, visible, position)


class Wraps(TableLM):
    """Writes at slot S - 1 what belongs before slot 0."""

    def extend(self, cache, tokens, start, visible=None, position=None):
        start = jnp.asarray(start)
        start = jnp.where(start < 0, start + cache.tokens.shape[2], start)
        return TableLM.extend(self, cache, tokens, start, visible, position)


class Clamps(TableLM):
    """Writes a block that would run past the end earlier, over live slots."""

    def extend(self, cache, tokens, start, visible=None, position=None):
        last = cache.tokens.shape[2] - tokens.shape[2]
        start = jnp.minimum(jnp.asarray(start), last)
        return TableLM.extend(self, cache, tokens, start, visible, position)


class TreeAsChain(TableLM):
    """Lets every node see all before it."""

    def extend(self, cache, tokens, start, visible=None, position=None):
        return TableLM.extend(self, cache, tokens, start, None, position)


class Padded(TableLM):
    """Counts a prompt's padding."""

    def prefill(self, tokens, length, **settings):
        length = jnp.full_like(jnp.asarray(length), tokens.shape[1])
        return TableLM.prefill(self, tokens, length, **settings)


class HiddenOfTokens(TableLM):
    """Hidden states that come from the last token alone in a prompt."""

    def prefill(self, tokens, length, **settings):
        output, cache = TableLM.prefill(self, tokens, length, **settings)
        if output.hidden is not None:
            output = output._replace(hidden=self.features[0][tokens][:, None])
        return output, cache


class KeepsInTurn(TableLM):
    """Writes each slot before it reads the next."""

    def keep(self, cache, source, start):
        for m in range(source.shape[2]):
            cache = TableLM.keep(self, cache, source[..., m : m + 1], jnp.asarray(start) + m)
        return cache


class ForgetsPosition(TableLM):
    """Moves tokens without their positions."""

    def keep(self, cache, source, start):
        return TableLM.keep(self, cache, source, start)._replace(position=cache.position)


class SelectsNothing(TableLM):
    def select(self, cache, lanes):
        return cache


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (StaleSlot, conformance.check_rewind),
        (StaleSlot, conformance.check_junk),
        (Wraps, conformance.check_out_of_range),
        (Clamps, conformance.check_out_of_range),
        (TreeAsChain, conformance.check_tree),
        (Padded, conformance.check_rows_alone),
        (HiddenOfTokens, conformance.check_hidden),
        (KeepsInTurn, conformance.check_keep),
        (ForgetsPosition, conformance.check_keep),
        (SelectsNothing, conformance.check_select),
    ],
    ids=lambda value: value.__name__,
)
def test_a_broken_model_is_caught(trial, broken, check):
    """A check that nothing fails shows nothing."""
    model = table_of(broken)
    mutant = trial._replace(model=model, row_model=lambda row: model)
    with pytest.raises(AssertionError):
        check(mutant)


def test_a_model_that_counts_the_padding_is_told_so():
    message = r"the same prompts, padded to 10 tokens instead of 4 \(padding must not change"
    with pytest.raises(AssertionError, match=message):
        check_model(table_of(Padded))


REGISTERED: set[type] = set()


def table_of(broken):
    if broken not in REGISTERED:
        # Not register_dataclass: its nodes can pass for one another, and their programs too.
        pytree(broken)
        REGISTERED.add(broken)
    return broken(MODEL.table, MODEL.features)
