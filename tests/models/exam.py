"""Calls that every network answers: ragged prompts, chains, trees, and paths kept of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from families import VOCAB

ROWS, LANES, SLOTS, STEPS = 3, 2, 9, 6
PARENTS = (-1, 0, 0, 1, -1, 4, 3, 0)
KEPT = (0, 1, 3, 6)
PARTS = ("prefill", "chain", "tree", "kept")

# From a row and the tokens after its prompt to the logits after the prompt and after each token.
Reference = Callable[[int, list[int]], np.ndarray]


def questions(family: str, seed: int) -> dict[str, np.ndarray]:
    """Random tokens. The family "t5" has inputs longer than the distance of the last bucket.

    In M2M-100, padding tokens, here 1, would shift the positions in transformers.
    """
    draw = np.random.default_rng(seed)
    first = 2 if family.startswith("m2m_100") else 1

    def tokens(*shape: int) -> np.ndarray:
        return draw.integers(first, VOCAB, shape, dtype=np.int32)

    width = 150 if family == "t5" else 9
    return {
        "source": tokens(ROWS, width),
        "source_length": np.array([width, 1, 5], np.int32),
        "prompt": tokens(ROWS, 5),
        "length": np.array([3, 1, 5], np.int32),
        "chain_tokens": tokens(ROWS, LANES, STEPS),
        "tree_tokens": tokens(ROWS, LANES, len(PARENTS)),
        "next_token": tokens(ROWS, LANES, 1),
    }


def path_to(node: int) -> list[int]:
    """The nodes from the root to ``node``."""
    return [] if node < 0 else [*path_to(PARENTS[node]), node]


def expected(asked: dict[str, np.ndarray], reference: Reference) -> dict[str, np.ndarray]:
    """The expected logits, where each path of the tree is a separate text."""
    shape = (ROWS, LANES)
    out = {
        "prefill": np.zeros((ROWS, 1, 1, VOCAB), np.float32),
        "chain": np.zeros((*shape, STEPS, VOCAB), np.float32),
        "tree": np.zeros((*shape, len(PARENTS), VOCAB), np.float32),
        "kept": np.zeros((*shape, 1, VOCAB), np.float32),
    }
    for b, w in np.ndindex(*shape):
        answer = reference(b, asked["chain_tokens"][b, w].tolist())
        out["prefill"][b, 0, 0], out["chain"][b, w] = answer[0], answer[1:]
        for node in range(len(PARENTS)):
            path = asked["tree_tokens"][b, w][path_to(node)].tolist()
            out["tree"][b, w, node] = reference(b, path)[-1]
        kept = [*asked["tree_tokens"][b, w][list(KEPT)].tolist(), int(asked["next_token"][b, w, 0])]
        out["kept"][b, w, 0] = reference(b, kept)[-1]
    return out


extend = jax.jit(lambda model, *args: model.extend(*args))
keep = jax.jit(lambda model, *args: model.keep(*args))


@jax.jit
def prefill(model: Any, tokens: jax.Array, length: jax.Array) -> Any:
    return model.prefill(tokens, length, lanes=LANES, slots=SLOTS)


def bound(model: Any, asked: dict[str, np.ndarray]) -> Any:
    """The language model; an encoder-decoder is bound to its inputs."""
    if not hasattr(model, "bind"):
        return model
    return model.bind(jax.numpy.asarray(asked["source"]), jax.numpy.asarray(asked["source_length"]))


def answers(model: Any, asked: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """The logits of the model, with ``step`` tokens of the chain or half of the tree per call."""
    model = bound(model, asked)
    output, fresh = prefill(model, asked["prompt"], asked["length"])
    out = {"prefill": [output.logits], "chain": [], "tree": []}
    cache = fresh
    for start in range(0, STEPS, step):
        tokens = asked["chain_tokens"][..., start : start + step]
        output, cache = extend(model, cache, tokens, start)
        out["chain"].append(output.logits)
    # The tree is written over the chain, whose stale slots must not be seen.
    size = len(PARENTS) // 2
    visible = np.zeros((len(PARENTS), SLOTS), bool)
    for node, parent in enumerate(PARENTS):
        visible[node, path_to(parent)] = True
    visible = np.broadcast_to(visible, (ROWS, LANES, *visible.shape))
    for start in range(0, len(PARENTS), size):
        nodes = slice(start, start + size)
        tokens = asked["tree_tokens"][..., nodes]
        output, cache = extend(model, cache, tokens, start, visible[:, :, nodes])
        out["tree"].append(output.logits)
    source = np.broadcast_to(np.array(KEPT), (ROWS, LANES, len(KEPT)))
    cache = keep(model, cache, source, 0)
    output, cache = extend(model, cache, asked["next_token"], len(KEPT))
    out["kept"] = [output.logits]
    return {part: np.concatenate(logits, axis=2) for part, logits in out.items()}


def compare(got: dict[str, np.ndarray], want: dict[str, np.ndarray], tolerance: float) -> None:
    """Fails if logits differ by more than ``tolerance``."""
    for part in PARTS:
        error = np.abs(got[part] - want[part])
        assert error.max() <= tolerance, (
            f"{part}: logits differ by {error.max()} at {error.argmax()}"
        )
