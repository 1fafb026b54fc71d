"""Checks of trees, and of moving slots and lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoding_jax.ops.jit import jit
from decoding_jax.testing.conformance.trial import LANES, SLOTS, Trial, extend


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
