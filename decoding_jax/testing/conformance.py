"""Checks that a model's methods do what ``base.LanguageModel`` specifies, for your own models too:

    from decoding_jax.testing import check_model

    def test_my_model():
        check_model(my_model, tolerance=1e-5)

Each check compares logits from the cache with a reference that never rewinds, branches or moves
anything, and raises an AssertionError that states where the logits differ. Outputs that the
protocol leaves undefined are not compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax.base import Cache
from decoding_jax.loop.refill import resized
from decoding_jax.ops.jit import jit
from decoding_jax.testing.certificate.comparisons import relative_gap

SLOTS = 6
LANES = 2


class Trial(NamedTuple):
    """The data that a check runs on.

    Attributes:
      model: the model.
      prompt: three rows of different lengths: int32 ``[3, 4]`` and ``[3]``.
      tokens: int32 ``[3, 2, 6]``: a path for every lane.
      reference: float32 ``[3, 2, 6, V]``: the logits after each of them.
      tolerance: the largest difference allowed, relative to 1 + the logit; 0 takes equals only.
      row_model: the model for one row alone, given the row.
    """

    model: Any
    prompt: tuple[np.ndarray, np.ndarray]
    tokens: np.ndarray
    reference: np.ndarray
    tolerance: float
    row_model: Callable[[int], Any]

    def start(self) -> tuple[np.ndarray, Cache]:
        """The logits after the prompts, and a fresh cache."""
        output, cache = prefill(self.model, *self.prompt, LANES, SLOTS)
        return np.asarray(output.logits), cache

    def same(self, got: Any, want: Any, what: str) -> None:
        """Fails unless two arrays of logits agree."""
        close(np.asarray(got), np.asarray(want), self.tolerance, what)


@functools.partial(jit, static_argnames=())
def extend(
    model: Any,
    cache: Cache,
    tokens: Any,
    start: Any,
    visible: Any = None,
    position: Any = None,
) -> tuple[Any, Cache]:
    """``model.extend``, compiled once for all checks."""
    return model.extend(cache, tokens, start, visible, position)


def prefill(
    model: Any, tokens: Any, length: Any, lanes: int, slots: int, with_hidden: bool = False
) -> tuple[Any, Cache]:
    """``model.prefill``, compiled."""
    return _prefill(model, tokens, length, lanes=lanes, slots=slots, with_hidden=with_hidden)


@functools.partial(jit, static_argnames=("lanes", "slots", "with_hidden"))
def _prefill(model: Any, tokens: Any, length: Any, **settings: Any) -> tuple[Any, Cache]:
    return model.prefill(tokens, length, **settings)


def close(got: np.ndarray, want: np.ndarray, tolerance: float, what: str) -> None:
    """Fails unless ``got`` is within the tolerance of ``want``; equal infinities are equal.

    Raises:
      AssertionError: with ``what`` and the largest difference and its index.
    """
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    assert got.shape == want.shape, f"{what}: expected shape {want.shape}, got {got.shape}"
    gap = relative_gap(got, want)
    if gap.size and gap.max() > tolerance:
        at = tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
        raise AssertionError(
            f"{what}: expected {want[at]}, got {got[at]} at {at}; "
            f"{int(np.sum(gap > tolerance))} of {gap.size} differ by more than {tolerance}"
        )


def make_trial(
    model: Any,
    *,
    seed: int = 0,
    tolerance: float = 0.0,
    row_model: Callable[[int], Any] | None = None,
) -> Trial:
    """Random prompts and paths, and the logits along them from a chain of single tokens."""
    draw = np.random.default_rng(seed)
    vocab = model.vocab_size
    prompt = (draw.integers(vocab, size=(3, 4), dtype=np.int32), np.array([4, 1, 2], np.int32))
    tokens = draw.integers(vocab, size=(3, LANES, SLOTS), dtype=np.int32)
    alone = row_model or (lambda row: model)
    trial = Trial(model, prompt, tokens, np.zeros(0), tolerance, alone)
    _, cache = trial.start()
    steps = []
    for t in range(SLOTS):
        output, cache = extend(model, cache, tokens[..., t : t + 1], t)
        steps.append(np.asarray(output.logits))
    return trial._replace(reference=np.concatenate(steps, axis=2))


def check_prefill(trial: Trial) -> None:
    """A prompt made longer by a path gives the logits that extending by the path gives.

    All prompts are padded to the same width, the one that is not made longer too.
    """
    model, (tokens, length) = trial.model, trial.prompt
    width = tokens.shape[1]
    for count in range(SLOTS + 1):
        longer = np.zeros((3, width + SLOTS), np.int32)
        longer[:, :width] = tokens
        for row, n in enumerate(length):
            longer[row, n : n + count] = trial.tokens[row, 0, :count]
        output, _ = prefill(model, longer, length + count, LANES, SLOTS)
        want = trial.reference[:, :1, count - 1 : count] if count else trial.start()[0]
        what = f"a prompt longer by {count} token{'s' if count > 1 else ''}"
        if count == 0:
            what = (
                f"the same prompts, padded to {width + SLOTS} tokens instead of {width} (padding "
                "must not change the logits)"
            )
        trial.same(output.logits, want, what)


def check_hidden(trial: Trial) -> None:
    """Hidden states, where the model gives any, are the same from a prompt as from a chain."""
    tokens, length = trial.prompt
    width = tokens.shape[1]
    longer = np.zeros((3, width + SLOTS), np.int32)
    longer[:, :width] = tokens
    for row, n in enumerate(length):
        longer[row, n : n + SLOTS] = trial.tokens[row, 0]
    whole, _ = prefill(trial.model, longer, length + SLOTS, LANES, SLOTS, True)
    output, _ = extend(trial.model, trial.start()[1], trial.tokens, 0)
    if whole.hidden is None or output.hidden is None:
        return
    index = (length[:, None] + np.arange(SLOTS))[:, None, :, None]
    want = np.take_along_axis(np.asarray(whole.hidden), index, 2)
    trial.same(np.asarray(output.hidden)[:, :1], want, "hidden states of a chain")


def check_features(trial: Trial) -> None:
    """The hidden states of layers, where the model returns them.

    They are the same from a prompt, a chain and blocks. They change no logits, and those of all
    layers are the hidden states of the output.
    """
    tokens, length = trial.prompt
    last = trial.model.num_layers
    model = trial.model.with_features((last, 0, last // 2))
    longer = np.zeros((3, tokens.shape[1] + SLOTS), np.int32)
    longer[:, : tokens.shape[1]] = tokens
    for row, n in enumerate(length):
        longer[row, n : n + SLOTS] = trial.tokens[row, 0]
    whole, _ = prefill(model, longer, length + SLOTS, LANES, SLOTS, True)
    first, cache = prefill(model, *trial.prompt, LANES, SLOTS)
    trial.same(first.logits, trial.start()[0], "prefill with features")
    trial.same(whole.features[0], whole.hidden, "features of all layers of a prompt")
    index = (length[:, None] + np.arange(SLOTS))[:, None, :, None]
    want = [np.take_along_axis(np.asarray(x), index, 2) for x in whole.features]
    at = 0
    for size in (2, SLOTS - 2):
        output, cache = extend(model, cache, trial.tokens[..., at : at + size], at)
        what = f"features of a chain, tokens {at} to {at + size - 1}"
        trial.same(output.logits, trial.reference[:, :, at : at + size], what)
        trial.same(output.features[0], output.hidden, what)
        for got, expected in zip(output.features, want, strict=True):
            trial.same(np.asarray(got)[:, :1], expected[:, :, at : at + size], what)
        at += size


def check_blocks(trial: Trial) -> None:
    """Extending by T tokens equals T calls with one token, for any division into blocks."""
    for blocks in ((SLOTS,), (1, 3, 2)):
        _, cache = trial.start()
        at = 0
        for size in blocks:
            output, cache = extend(trial.model, cache, trial.tokens[..., at : at + size], at)
            what = f"blocks of {blocks} tokens, from slot {at}"
            trial.same(output.logits, trial.reference[:, :, at : at + size], what)
            at += size


def check_rewind(trial: Trial) -> None:
    """Writing again from an earlier slot replaces its contents: stale slots are not visible."""
    other = (trial.tokens + 1) % trial.model.vocab_size
    _, cache = trial.start()
    _, cache = extend(trial.model, cache, trial.tokens[..., :2], 0)
    _, cache = extend(trial.model, cache, other[..., 2:], 2)
    for t in range(2, SLOTS):
        output, cache = extend(trial.model, cache, trial.tokens[..., t : t + 1], t)
        trial.same(output.logits, trial.reference[:, :, t : t + 1], f"rewound to 2, at slot {t}")


def check_rows_alone(trial: Trial) -> None:
    """A row alone, without padding, gives the same logits as in the batch."""
    for row in range(2):
        model, width = trial.row_model(row), int(trial.prompt[1][row])
        tokens = trial.prompt[0][row : row + 1, :width]
        output, cache = prefill(model, tokens, np.array([width]), LANES, SLOTS)
        first = trial.start()[0][row : row + 1]
        trial.same(output.logits, first, f"prefill of row {row} alone")
        output, _ = extend(model, cache, trial.tokens[row : row + 1], 0)
        trial.same(output.logits, trial.reference[row : row + 1], f"row {row} alone")


def check_padding(trial: Trial) -> None:
    """Tokens after a prompt's end do not change the logits."""
    place = np.arange(trial.prompt[0].shape[1])
    padding = place >= trial.prompt[1][:, None]
    junk = np.where(padding, 1 - trial.prompt[0] % 2, trial.prompt[0])
    output, cache = prefill(trial.model, junk, trial.prompt[1], LANES, SLOTS)
    trial.same(output.logits, trial.start()[0], "prefill with other padding")
    output, _ = extend(trial.model, cache, trial.tokens, 0)
    trial.same(output.logits, trial.reference, "extend after other padding")


def check_widens(trial: Trial) -> None:
    """A cache serves prompts that are padded further, once its arrays are, and the other way."""
    (tokens, length), (_, narrow) = trial.prompt, trial.start()
    padded = np.pad(tokens, ((0, 0), (0, 3)))
    _, wide = prefill(trial.model, padded, length, LANES, SLOTS)
    for cache, like, what in ((narrow, wide, "padded"), (wide, narrow, "cut")):
        cache = jax.tree.map(lambda x, y: resized(x, y.shape), cache, like)
        output, _ = extend(trial.model, cache, trial.tokens, 0)
        trial.same(output.logits, trial.reference, f"extend after a cache was {what}")


def check_ragged(trial: Trial) -> None:
    """Sequences at different slots give the same logits as sequences at equal slots."""
    tokens, at = trial.tokens, np.array([[0, 2], [1, 0], [3, 2]])
    _, cache = trial.start()
    _, cache = extend(trial.model, cache, trial.tokens[..., :3], 0)
    for size in (2, 1):
        index = at[..., None] + np.arange(size)
        block = np.take_along_axis(tokens, index, 2)
        output, cache = extend(trial.model, cache, block, at)
        want = np.take_along_axis(trial.reference, index[..., None], 2)
        trial.same(output.logits, want, f"lanes at slots {at.tolist()}, {size} tokens")
        at = at + size


def check_out_of_range(trial: Trial) -> None:
    """Writes before the first slot and after the last are dropped and change nothing."""
    for edge, inside in ((-2, slice(2, 4)), (SLOTS - 2, slice(0, 2))):
        _, cache = trial.start()
        _, cache = extend(trial.model, cache, trial.tokens, 0)
        block = (trial.tokens[..., :4] + 1) % trial.model.vocab_size
        at = max(edge, 0)
        block[..., inside] = trial.tokens[..., at : at + 2]
        start = np.full((3, LANES), edge)
        output, cache = extend(trial.model, cache, block, start)
        what = f"a block of 4 written at slot {edge} of {SLOTS}"
        trial.same(output.logits[:, :, inside], trial.reference[:, :, at : at + 2], what)
        output, _ = extend(trial.model, cache, trial.tokens[..., -1:], SLOTS - 1)
        trial.same(output.logits, trial.reference[:, :, -1:], f"{what}: the slots afterwards")
    _, cache = extend(trial.model, cache, block, np.full((3, LANES), SLOTS + 7))
    _, cache = extend(trial.model, cache, block, np.full((3, LANES), -9))
    output, _ = extend(trial.model, cache, trial.tokens[..., -1:], SLOTS - 1)
    trial.same(output.logits, trial.reference[:, :, -1:], "blocks written wholly outside")


def check_junk(trial: Trial) -> None:
    """Invalid tokens that are on no path do not change any logits, not even to NaN."""
    junk = np.array([-1, trial.model.vocab_size, 2**31 - 1, -(2**31), 0, 7], np.int32)
    junk = np.broadcast_to(junk, trial.tokens.shape)
    for position in (None, junk[..., ::-1]):
        _, cache = extend(trial.model, trial.start()[1], junk, 0, None, position)
        for t in range(SLOTS):
            output, cache = extend(trial.model, cache, trial.tokens[..., t : t + 1], t)
            what = f"slot {t}, with junk in the slots behind it"
            trial.same(output.logits, trial.reference[:, :, t : t + 1], what)


def random_tree(seed: int) -> np.ndarray:
    """The ancestors of SLOTS nodes of a random tree, bool ``[SLOTS, SLOTS]``: row t is node t's."""
    rng = np.random.default_rng(seed)
    visible = np.zeros((SLOTS, SLOTS), bool)
    for node in range(1, SLOTS):
        parent = int(rng.integers(-1, node))
        if parent >= 0:
            visible[node] = visible[parent]
            visible[node, parent] = True
    return visible


def tree_trial(trial: Trial, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A tree for every lane, bool ``[3, 2, S, S]``, and the logits of its nodes ``[3, 2, S, V]``.

    The reference feeds each node's ancestors, in order, as a chain of its own.
    """
    trees = np.stack([random_tree(seed + i) for i in range(3 * LANES)])
    trees = trees.reshape(3, LANES, SLOTS, SLOTS)
    tokens, want = trial.tokens, np.zeros_like(trial.reference)
    for node in range(SLOTS):
        chain = np.zeros_like(tokens)
        depth = trees[:, :, node].sum(-1)
        for b, w in np.ndindex(3, LANES):
            path = [*np.flatnonzero(trees[b, w, node]), node]
            chain[b, w, : len(path)] = tokens[b, w, path]
        output, _ = extend(trial.model, trial.start()[1], chain, 0)
        logits = np.asarray(output.logits)
        want[:, :, node] = np.take_along_axis(logits, depth[..., None, None], 2)[:, :, 0]
    return trees, want


def check_tree(trial: Trial) -> None:
    """A node of a tree has the logits of the chain to it, for any division into blocks."""
    trees, want = tree_trial(trial)
    for blocks, narrow in (((SLOTS,), False), ((1, 3, 2), True)):
        _, cache = trial.start()
        at = 0
        for size in blocks:
            nodes = slice(at, at + size)
            columns = at + size if narrow else SLOTS
            visible = trees[:, :, nodes, :columns]
            output, cache = extend(trial.model, cache, trial.tokens[..., nodes], at, visible)
            what = f"a tree in blocks of {blocks}, nodes {at} to {at + size - 1}"
            trial.same(output.logits, want[:, :, nodes], what)
            at += size


def check_position(trial: Trial) -> None:
    """Siblings whose shared depth is given as a broadcast ``position`` are as by default."""
    _, cache = trial.start()
    _, cache = extend(trial.model, cache, trial.tokens[..., :2], 0)
    visible = np.broadcast_to(np.arange(SLOTS) < 2, (3, LANES, 3, SLOTS))
    want, _ = extend(trial.model, cache, trial.tokens[..., 2:5], 2, visible)
    depth = trial.prompt[1][:, None, None] + 2
    got, _ = extend(trial.model, cache, trial.tokens[..., 2:5], 2, visible, depth)
    trial.same(got.logits, want.logits, "three siblings at one depth")


def check_keep(trial: Trial) -> None:
    """A path of a tree, moved together, continues as a chain. All slots are read before writing."""
    starts: list[Any] = [0, 2]
    if trial.model.ragged:
        starts += [np.array([[0, 1], [2, 0], [1, 3]]), np.array([[-1, -2], [0, -1], [-3, -1]])]
    for start in starts:
        kept = np.broadcast_to(np.maximum(start, 0), (3, LANES))
        slot = np.stack([_scrambled(int(n)) for n in kept.ravel()]).reshape(3, LANES, SLOTS)
        tokens = np.zeros((3, LANES, SLOTS), np.int32)
        visible = np.zeros((3, LANES, SLOTS, SLOTS), bool)
        for b, w in np.ndindex(3, LANES):
            tokens[b, w, slot[b, w]] = trial.tokens[b, w]
            for depth, at in enumerate(slot[b, w]):
                visible[b, w, at, slot[b, w, :depth]] = True
        _, cache = trial.start()
        _, cache = extend(trial.model, cache, tokens, 0, visible)
        path_slot = np.broadcast_to(start, (3, LANES))[..., None] + np.arange(SLOTS + 3)
        source = np.take_along_axis(slot, np.clip(path_slot, 0, SLOTS - 1), 2)
        cache = _keep(trial.model, cache, source, start)
        output, _ = extend(trial.model, cache, trial.tokens[..., 5:], 5)
        what = f"after keep from slot {np.asarray(start).tolist()}"
        trial.same(output.logits, trial.reference[:, :, 5:], what)


def _scrambled(kept: int) -> np.ndarray:
    """The slot of each token of a path: the first ones in order, the others shuffled."""
    order = [i for i in (4, 0, 3, 1, 5, 2) if i >= kept]
    return np.array([*range(kept), *order])


_keep = jit(lambda model, cache, source, start: model.keep(cache, source, start), ())


def check_select(trial: Trial) -> None:
    """A lane that is moved to another place continues as before."""
    lanes = np.array([[1, 1], [0, 0], [1, 0]])
    _, cache = extend(trial.model, trial.start()[1], trial.tokens[..., :5], 0)
    cache = _select(trial.model, cache, lanes)
    last = np.take_along_axis(trial.tokens, lanes[..., None], 1)[..., 5:]
    output, _ = extend(trial.model, cache, last, 5)
    want = np.take_along_axis(trial.reference, lanes[..., None, None], 1)[:, :, 5:]
    trial.same(output.logits, want, f"after select of lanes {lanes.tolist()}")


_select = jit(lambda model, cache, lanes: model.select(cache, lanes), ())


CHECKS: dict[Callable[[Trial], None], tuple[str, ...]] = {
    check_prefill: ("continues",),
    check_hidden: (),
    check_features: ("num_layers", "with_features", "continues"),
    check_blocks: (),
    check_rewind: ("rewinds",),
    check_rows_alone: (),
    check_padding: (),
    check_junk: ("rewinds",),
    check_widens: ("widens",),
    check_ragged: ("ragged",),
    check_out_of_range: ("ragged",),
    check_tree: ("tree",),
    check_position: ("tree",),
    check_keep: ("tree", "keep"),
    check_select: ("select",),
}
"""The checks, and the capabilities that a model needs for each of them."""


def applies(check: Callable[[Trial], None], model: Any) -> bool:
    """Whether the model has the capabilities that the check needs.

    A model rewinds unless it says otherwise, as one does to whose cache tokens are only appended.
    It continues its prompts unless it says otherwise, as one does for which their end matters.
    """
    by_default = ("rewinds", "continues")
    return all(getattr(model, needed, needed in by_default) for needed in CHECKS[check])


def check_model(
    model: Any,
    *,
    seed: int = 0,
    tolerance: float = 0.0,
    row_model: Callable[[int], Any] | None = None,
) -> list[str]:
    """Runs every check that applies to the model.

    Args:
      model: with a vocabulary of 2 or more, room for 16 positions and, if it is bound to inputs,
        three rows of them.
      seed: of the random prompts and paths.
      tolerance: 0 for a model whose logits do not depend on the batch, about 1e-5 for a network
        in float32.
      row_model: for a model bound to its rows' inputs: the model bound to those of one row.

    Returns:
      The names of the checks that ran.

    Raises:
      AssertionError: from the first check that fails.

    Example:
      >>> import jax
      >>> from decoding_jax.testing import TableLM
      >>> names = check_model(TableLM.random(jax.random.key(0), 5).lockstep())
      >>> "check_rewind" in names, "check_tree" in names
      (True, False)
    """
    trial = make_trial(model, seed=seed, tolerance=tolerance, row_model=row_model)
    names = []
    for check in CHECKS:
        if applies(check, model):
            check(trial)
            names.append(check.__name__)
    return names
