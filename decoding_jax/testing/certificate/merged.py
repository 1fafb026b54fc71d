"""Many problems in one batch: every transform and stop condition is a setting of some rows.

A program is compiled for the structure of its arguments, and not for their values. A merged problem
has one structure for all combinations: each transform is applied to the rows that have it, and all
stop conditions have the same padded shapes. One program then runs every combination at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import transforms
from decoding_jax.base import Array, Prefix, Stop, Transform
from decoding_jax.pytrees import pytree
from decoding_jax.testing.certificate.enumeration import RowStop, row_stop
from decoding_jax.testing.certificate.problems import (
    LENGTH,
    PROMPTS,
    STOPS,
    TRANSFORMS,
    Problem,
    Rows,
)


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
    def _rules(self) -> list[RowStop]:
        rows, found = np.arange(PROMPTS), []
        for _, name in self.combinations:
            stop = STOPS[name].make(rows)
            found += [row_stop(stop, int(row), STOPS[name].max_new_tokens) for row in rows]
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
