"""The problems of the certificate: small models, ragged prompts, transforms, stop conditions.

Four prompts, a vocabulary of four and at most four new tokens: small enough that every output can
be enumerated, and every place where a sequence can end is reached with a fair chance.
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
from decoding_jax.testing.enumeration import Law, enumerate_law, greedy_path
from decoding_jax.testing.table_lm import TableLM

VOCAB = 4
LENGTH = 4
TOKENS = np.array([[1, 3, 2], [0, 2, 1], [3, 1, 3], [2, 2, 0]], np.int32)
LENGTHS = np.array([3, 1, 2, 3], np.int32)
"""Of the prompts: behind the ends of rows 1 and 2 stand tokens that must not matter."""
PROMPTS = len(LENGTHS)

Rows = np.ndarray
"""int ``[B]``: which of the four prompts each row of a batch is."""


def prompt_of(rows: Rows, width: int | None = None) -> Prompt:
    """The prompts of a batch, with the padding cut off at ``width``."""
    return Prompt(jnp.asarray(TOKENS[rows, :width]), jnp.asarray(LENGTHS[rows]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeadEnds:
    """A transform that allows nothing at all after one token, and nothing ever in some rows.

    Attributes:
      token: int32 ``[B]``: after which nothing is allowed; -1 for a row where nothing ever is.
    """

    token: Any

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        token = jnp.asarray(self.token)[:, None, None]
        last = jnp.clip(prefix.length - 1, 0)[..., None]
        last = jnp.take_along_axis(prefix.tokens, last, axis=-1)[..., 0]
        dead = (token < 0) | ((prefix.length > 0) & (last == token))
        return jnp.where(dead[..., None], -jnp.inf, logits)


def _each(*values: Any) -> Callable[[Rows], np.ndarray]:
    """A setting per prompt, spread over a batch's rows."""
    table = np.asarray(values)
    return lambda rows: table[rows].astype(np.float32 if table.dtype.kind == "f" else np.int32)


def _transforms() -> dict[str, Callable[[Rows], Transform | None]]:
    t, each = transforms, _each
    return {
        "none": lambda rows: None,
        "temperature, bias": lambda rows: t.chain(
            t.temperature(each(0.5, 1.0, 2.0, 0.0)(rows)),
            t.logit_bias({1: each(1.0, -np.inf, 0.0, 2.0)(rows)}),
        ),
        "top-k, top-p": lambda rows: t.chain(
            t.temperature(0.8),
            t.top_k(each(3, 4, 2, 1)(rows)),
            t.top_p(each(0.9, 0.7, 1.0, 0.5)(rows)),
        ),
        "thresholds": lambda rows: t.chain(
            t.min_p(each(0.1, 0.3, 0.0, 0.2)(rows)),
            t.typical(each(0.95, 1.0, 0.7, 0.9)(rows)),
            t.epsilon(each(0.05, 0.0, 0.1, 0.2)(rows)),
            t.eta(each(0.1, 0.05, 0.0, 0.1)(rows)),
        ),
        "penalties": lambda rows: t.chain(
            t.repetition_penalty(each(1.5, 1.0, 2.0, 1.2)(rows)),
            t.presence_penalty(each(0.5, 1.0, 0.0, -0.5)(rows)),
            t.frequency_penalty(each(0.0, 0.5, 1.0, 0.3)(rows)),
        ),
        "bans": lambda rows: t.chain(
            t.no_repeat_ngram(2),
            t.banned_sequences(
                each([[-1, 2], [0, 1]], [[2, 1], [1, 1]], *[[[0, 0], [1, 2]]] * 2)(rows)
            ),
            t.allowed_tokens(each([0, 1, 3], [0, 1, 2], [1, 2, 3], [2, -1, -1])(rows)),
        ),
        "lengths": lambda rows: t.chain(
            t.min_length(each(2, 0, 3, 4)(rows), (1,)),
            t.forced_first_token(each(-1, 2, 1, 0)(rows)),
            t.forced_last_token(each(1, -1, 2, 1)(rows), LENGTH),
        ),
        "dead ends": lambda rows: DeadEnds(each(2, 0, 1, -1)(rows)),
    }


class StopLevel(NamedTuple):
    """Stop conditions for a batch, and the strategy's own limit."""

    make: Callable[[Rows], Stop]
    max_new_tokens: int = LENGTH


def _stops() -> dict[str, StopLevel]:
    each = _each
    return {
        "none": StopLevel(lambda rows: Stop()),
        "end token": StopLevel(lambda rows: Stop(eos_ids=(1,))),
        "end tokens, late": StopLevel(
            lambda rows: Stop(
                eos_ids=each([1, 3], [0, -1], [2, 1], [-1, 3])(rows),
                min_new_tokens=each(1, 2, 3, 4)(rows),
            )
        ),
        "sequences": StopLevel(
            lambda rows: Stop(
                eos_ids=(0,),
                sequences=each(
                    [[1, 2], [-1, 3]], [[2, 2], [-1, -1]], [[1, 1], [3, 3]], [[-1, 2], [-1, 1]]
                )(rows),
                min_new_tokens=each(0, 3, 2, 1)(rows),
            )
        ),
        "limits": StopLevel(
            lambda rows: Stop(
                eos_ids=(1,), sequences=((2, 3), (3,)), max_new_tokens=each(1, 3, 0, 9)(rows)
            )
        ),
        "one token": StopLevel(lambda rows: Stop(eos_ids=(2,)), 1),
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
"""Made when first asked for: making one needs a device."""
MODEL_NAMES = ("smooth", "zeros", "ties", "lockstep")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One model, transform and stop condition, on the four prompts.

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

    def laws(self) -> list[Law]:
        """The exact law of each prompt."""
        return self._for_each_prompt(enumerate_law)

    def greedy_paths(self) -> list[Law]:
        """The greedy outcome of each prompt."""
        return self._for_each_prompt(greedy_path)

    def _for_each_prompt(self, exact: Callable[..., Law]) -> list[Law]:
        rows = np.arange(PROMPTS)
        model, prompt = MODELS()[self.model], prompt_of(rows)
        return [exact(model, prompt, row, **self.settings(rows)) for row in rows]
