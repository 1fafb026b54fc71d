"""The problems of the certificate: small models, ragged prompts, transforms, stop conditions.

A vocabulary of four and at most four new tokens: small enough that every output can be enumerated,
and every place where a sequence can end is reached with a reasonable probability. Compilation takes
most of the time, so a case has different settings in its rows: each of eight prompts has its own.

A program is compiled for the structure of its arguments, and not for their values. A merged problem
has one structure for all combinations: each transform is applied to the rows that have it, and all
stop conditions have the same padded shapes. One program then runs every combination at once.
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
from decoding_jax.testing.certificate import enumeration
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

    def distributions(self) -> list[enumeration.Distribution]:
        """The exact distribution of each prompt."""
        return self.exact(enumeration.enumerate_distribution)

    @functools.cache  # noqa: B019  # a problem is a name: three strings
    def exact(self, function: Callable[..., Any]) -> list[Any]:
        """The result of ``function`` for each prompt.

        Args:
          function: ``(model, prompt, row, *, max_new_tokens, transform, stop)``, such as
            ``enumeration.enumerate_distribution`` or ``greedy_path``.
        """
        rows = np.arange(PROMPTS)
        model, prompt = MODELS()[self.model], prompt_of(rows)
        return [function(model, prompt, row, **self.settings(rows)) for row in rows]


@pytree
@dataclasses.dataclass(frozen=True)
class ForRows:
    """A transform of some rows of a batch; the others keep their logits, and cost nothing.

    Attributes:
      transform: the transform; its settings per row are those of the chosen rows.
      rows: int32 ``[n]``: the rows it is applied to. An index of B or more stands for no row.
    """

    transform: Any
    rows: Any

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        rows = jnp.asarray(self.rows)
        chosen, paths = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), (logits, prefix))
        return logits.at[rows].set(self.transform(chosen, paths), mode="drop")


@dataclasses.dataclass(frozen=True)
class MergedProblem:
    """One model, and eight prompts for each combination of a transform and a stop condition.

    Attributes:
      model: a key of ``MODELS()``.
      combinations: pairs of a key of ``TRANSFORMS`` and a key of ``STOPS``. Row b has combination
        ``b // 8`` and prompt ``b % 8``.
    """

    model: str
    combinations: tuple[tuple[str, str], ...]

    @property
    def max_new_tokens(self) -> int:
        return LENGTH

    @property
    def size(self) -> int:
        """The number of different rows."""
        return PROMPTS * len(self.combinations)

    @property
    def ways_to_end(self) -> int:
        """The number of end tokens and stop sequences of a row, padding included."""
        return 4

    def settings(self, rows: Rows) -> dict[str, Any]:
        """The keyword arguments that every strategy takes, for a batch of these rows."""
        rows = np.asarray(rows) % self.size
        names = np.array([transform for transform, _ in self.combinations])[rows // PROMPTS]
        return {
            "max_new_tokens": LENGTH,
            "transform": self._transform(names, rows % PROMPTS),
            "stop": self._stop(rows),
        }

    def _transform(self, names: np.ndarray, prompts: Rows) -> Transform | None:
        """Each transform with its rows, as many for each; unused places hold the index B."""
        used = [name for name in TRANSFORMS if name in {one for one, _ in self.combinations}]
        places = {name: np.flatnonzero(names == name) for name in used}
        size = max(len(rows) for rows in places.values())
        parts = []
        for name, rows in places.items():
            padded = np.full(size, len(names), np.int32)
            padded[: len(rows)] = rows
            if name != "none":
                made = TRANSFORMS[name](prompts[np.minimum(padded, len(names) - 1)])
                parts.append(ForRows(made, padded))
        return transforms.chain(*parts) if parts else None

    def _stop(self, rows: Rows) -> Stop:
        """The stop conditions of each row, padded with -1 to two end tokens and two pairs."""
        rules = [self._rules[row] for row in rows]
        ends = np.full((len(rows), 2), -1, np.int32)
        pairs = np.full((len(rows), 2, 2), -1, np.int32)
        for place, rule in enumerate(rules):
            ends[place, : len(rule.eos_ids)] = sorted(rule.eos_ids)
            for which, sequence in enumerate(rule.sequences):
                pairs[place, which, 2 - len(sequence) :] = sequence
        return Stop(
            eos_ids=ends,
            sequences=pairs,
            min_new_tokens=np.array([rule.min_new_tokens for rule in rules], np.int32),
            max_new_tokens=np.array([rule.limit for rule in rules], np.int32),
        )

    @functools.cached_property
    def _rules(self) -> list[enumeration.RowStop]:
        rows, found = np.arange(PROMPTS), []
        for _, name in self.combinations:
            stop = STOPS[name].make(rows)
            found += [
                enumeration.row_stop(stop, int(row), STOPS[name].max_new_tokens) for row in rows
            ]
        return found

    def exact(self, function: Callable[..., Any]) -> list[Any]:
        """The result of ``function`` for each row, computed from the row's single problem.

        Tokens are padded to the buffer that all rows share.
        """
        found = []
        for transform, stop in self.combinations:
            found += Problem(self.model, transform, stop).exact(function)
        return [_padded(one) for one in found]


def _padded(exact: Any) -> Any:
    """Outcomes, or a ranking of them, whose tokens are padded to the longest length."""
    if hasattr(exact, "outcomes"):
        return exact._replace(outcomes=_padded(exact.outcomes))
    missing = LENGTH - exact.tokens.shape[1]
    return exact._replace(tokens=np.pad(exact.tokens, ((0, 0), (0, missing))))


AnyProblem = Problem | MergedProblem
