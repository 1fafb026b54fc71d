"""The data of a model's checks: ragged prompts, paths, and the logits along them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.base import Cache
from decoding_jax.ops.jit import jit

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
    assert got.shape == want.shape, f"{what}: got shape {got.shape}, want {want.shape}"
    with np.errstate(invalid="ignore"):
        gap = np.where(got == want, 0.0, np.abs(got - want) / (1 + np.abs(want)))
    gap = np.where(np.isnan(gap), np.inf, gap)
    if gap.size and gap.max() > tolerance:
        at = tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
        raise AssertionError(
            f"{what}: got {got[at]}, want {want[at]} at {at}; {int(np.sum(gap > tolerance))} of "
            f"{gap.size} differ by more than {tolerance}"
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
