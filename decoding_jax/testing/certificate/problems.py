"""The problems of the certificate: small models, ragged prompts, transforms, stop conditions.

A vocabulary of four and at most four new tokens: small enough that every output can be enumerated,
and every place where a sequence can end is reached with a reasonable probability. Compilation takes
most of the time, so a case has different settings in its rows: each of eight prompts has its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import transforms
from decoding_jax.base import Array, Prefix, Prompt, Stop, Transform
from decoding_jax.pytrees import pytree
from decoding_jax.testing.certificate.enumeration import (
    Distribution,
    enumerate_distribution,
)
from decoding_jax.testing.table_lm import TableLM

VOCAB = 4
LENGTH = 4
TOKENS = np.array(
    [[1, 3, 2], [0, 2, 1], [3, 1, 3], [2, 2, 0], [1, 0, 0], [0, 3, 1], [2, 1, 2], [3, 0, 3]],
    np.int32,
)
LENGTHS = np.array([3, 1, 2, 3, 2, 3, 1, 2], np.int32)
"""The lengths of the prompts. The tokens after their ends must not change the result."""
PROMPTS = len(LENGTHS)

Rows = np.ndarray
"""int ``[B]``: the index of each row's prompt."""


def prompt_of(rows: Rows, width: int | None = None) -> Prompt:
    """The prompts of a batch, with the padding cut off at ``width``."""
    rows = np.asarray(rows) % PROMPTS
    return Prompt(jnp.asarray(TOKENS[rows, :width]), jnp.asarray(LENGTHS[rows]))


@pytree
@dataclasses.dataclass(frozen=True)
class DeadEnds:
    """A transform that bans every token after a given one, and in some rows always.

    Attributes:
      token: int32 ``[B]``, the token after which everything is banned; -1 for a row where
        everything is always banned; an id outside the vocabulary for a row without dead ends.
    """

    token: Any

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        token = jnp.asarray(self.token)[:, None, None]
        last = jnp.clip(prefix.length - 1, 0)[..., None]
        last = jnp.take_along_axis(prefix.tokens, last, axis=-1)[..., 0]
        dead = (token < 0) | ((prefix.length > 0) & (last == token))
        return jnp.where(dead[..., None], -jnp.inf, logits)


def _each(*values: Any) -> Callable[[Rows], np.ndarray]:
    """A function from a batch's rows to the settings of their prompts."""
    table = np.asarray(values)
    return lambda rows: table[rows].astype(np.float32 if table.dtype.kind == "f" else np.int32)


OFF = -np.inf


def _transforms() -> dict[str, Callable[[Rows], Transform | None]]:
    t, each = transforms, _each
    return {
        "none": lambda rows: None,
        "truncation": lambda rows: t.chain(
            t.temperature(each(0.5, 1.0, 2.0, 0.0, 1.0, 0.8, 1.5, 1.0)(rows)),
            t.top_k(each(3, 4, 2, 4, 4, 4, 4, 1)(rows)),
            t.top_p(each(0.9, 0.7, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0)(rows)),
            t.min_p(each(0.0, 0.0, 0.0, 0.2, 0.3, 0.0, 0.1, 0.0)(rows)),
            t.typical(each(1.0, 1.0, 1.0, 0.9, 1.0, 0.7, 1.0, 1.0)(rows)),
            t.epsilon(each(0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.15, 0.0)(rows)),
            t.eta(each(0.0, 0.0, 0.0, 0.1, 0.2, 0.0, 0.0, 0.0)(rows)),
        ),
        "history": lambda rows: t.chain(
            t.repetition_penalty(each(1.5, 1.0, 1.0, 1.2, 1.0, 1.0, 2.0, 1.0)(rows)),
            t.presence_penalty(each(0.0, 1.0, 0.0, 0.5, 0.0, 0.0, -0.5, 0.0)(rows)),
            t.frequency_penalty(each(0.0, 0.0, 1.0, 0.3, 0.0, 0.0, 0.0, 0.5)(rows)),
            t.logit_bias({1: each(0.0, 0.0, 0.0, 1.0, OFF, 2.0, 0.0, 0.0)(rows)}),
            t.no_repeat_ngram(2),
        ),
        "constraints": lambda rows: t.chain(
            t.banned_sequences(each(*[[[-1, 2], [0, 1]], [[-1, -1], [-1, -1]]] * 4)(rows)),
            t.allowed_tokens(
                each(*[[0, 1, 2, 3]] * 5, [0, 2, 3, -1], [2, -1, -1, -1], [1, 2, 3, 0])(rows)
            ),
            t.min_length(each(2, 0, 3, 0, 0, 4, 0, 0)(rows), (1,)),
            t.forced_first_token(each(-1, 2, -1, 0, -1, -1, -1, 3)(rows)),
            t.forced_last_token(each(-1, -1, 1, 1, -1, -1, 2, 0)(rows), LENGTH),
            DeadEnds(each(2, 9, 9, 1, 0, 9, 9, -1)(rows)),
        ),
    }


class StopLevel(NamedTuple):
    """Stop conditions for a batch, and the strategy's ``max_new_tokens``."""

    make: Callable[[Rows], Stop]
    max_new_tokens: int = LENGTH


def _stops() -> dict[str, StopLevel]:
    each = _each
    ends = each([1, -1], [1, 3], [2, -1], [-1, 0], [2, 3], [0, -1], [-1, -1], [3, 1])
    pairs = each(
        *[[[-1, -1], [-1, -1]], [[2, 2], [-1, 3]], [[1, 1], [3, 3]], [[-1, 2], [-1, 1]]] * 2
    )
    return {
        "none": StopLevel(lambda rows: Stop()),
        "end tokens": StopLevel(
            lambda rows: Stop(eos_ids=ends(rows), min_new_tokens=each(*[0, 1, 2, 4] * 2)(rows))
        ),
        "sequences": StopLevel(
            lambda rows: Stop(
                eos_ids=(0,),
                sequences=pairs(rows),
                min_new_tokens=each(0, 0, 2, 1, 0, 3, 0, 4)(rows),
                max_new_tokens=each(1, 3, 9, 4, 0, 4, 4, 2)(rows),
            )
        ),
        "one token": StopLevel(
            lambda rows: Stop(eos_ids=(2, 1), min_new_tokens=each(*[0, 1] * 4)(rows)), 1
        ),
    }


def _models() -> dict[str, TableLM]:
    key = jax.random.key(20)
    return {
        "smooth": TableLM.random(key, VOCAB),
        "zeros": TableLM.random(jax.random.fold_in(key, 1), VOCAB, sharpness=2.0, zeros=0.3),
        "ties": TableLM.random(jax.random.fold_in(key, 2), VOCAB, ties=True),
        "lockstep": TableLM.random(jax.random.fold_in(key, 3), VOCAB).lockstep(),
    }


TRANSFORMS = _transforms()
STOPS = _stops()
MODELS = functools.cache(_models)
"""The models. They are made at the first call, because that needs a device."""
MODEL_NAMES = ("smooth", "zeros", "ties", "lockstep")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One model, transform and stop condition, on the eight prompts.

    Attributes:
      model: a key of ``MODELS()``.
      transform: a key of ``TRANSFORMS``.
      stop: a key of ``STOPS``.
    """

    model: str = "smooth"
    transform: str = "none"
    stop: str = "none"

    @property
    def max_new_tokens(self) -> int:
        return STOPS[self.stop].max_new_tokens

    def settings(self, rows: Rows) -> dict[str, Any]:
        """The keyword arguments that every strategy takes, for a batch of these rows."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "transform": TRANSFORMS[self.transform](rows),
            "stop": STOPS[self.stop].make(rows),
        }

    @property
    def size(self) -> int:
        """The number of different rows."""
        return PROMPTS

    @property
    def ways_to_end(self) -> int:
        """The number of end tokens and stop sequences of a row, padding included."""
        stop = STOPS[self.stop].make(np.arange(PROMPTS))
        ends = 0 if stop.eos_ids is None else np.shape(stop.eos_ids)[-1]
        return ends + (np.shape(stop.sequences)[-2] if np.ndim(stop.sequences) > 1 else 0)

    def distributions(self) -> list[Distribution]:
        """The exact distribution of each prompt."""
        return self.exact(enumerate_distribution)

    @functools.cache  # noqa: B019  # a problem is a name: three strings
    def exact(self, function: Callable[..., Any]) -> list[Any]:
        """The result of ``function`` for each prompt.

        Args:
          function: ``(model, prompt, row, *, max_new_tokens, transform, stop)``, such as
            ``enumerate_distribution`` or ``greedy_path``.
        """
        rows = np.arange(PROMPTS)
        model, prompt = MODELS()[self.model], prompt_of(rows)
        return [function(model, prompt, row, **self.settings(rows)) for row in rows]
