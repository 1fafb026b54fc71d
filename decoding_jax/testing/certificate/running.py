"""Runs the checks of one case of the certificate."""

from __future__ import annotations

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import DecodeOutput
from decoding_jax.testing.certificate import checks, problems
from decoding_jax.testing.certificate.case_log import Entry
from decoding_jax.testing.certificate.cases import problem_of
from decoding_jax.testing.certificate.devices import spread_rows
from decoding_jax.testing.certificate.expectations import AnyProblem
from decoding_jax.testing.certificate.merged import MergedProblem
from decoding_jax.testing.certificate.pairwise import Case
from decoding_jax.testing.certificate.problems import LENGTHS, PROMPTS, TOKENS, Problem
from decoding_jax.testing.certificate.strategies import Strategy
from decoding_jax.testing.certificate.tracing import Counter, CountTraces

ROUNDING = 2e-6
"""The largest difference of log-probabilities between ways of running, relative to 1 + size."""
REPEATS = 2048
"""Rows per prompt for a sampler, in one batch."""
MERGED_REPEATS = 512
"""Rows per prompt for a sampler in a merged case; half as many with a draft, as there are many."""
MERGED_ROWS = 4096
"""Rows in a batch of a merged case."""
TRACES = Counter()
"""One counter for all cases: a new counter would make each case compile."""


class Result(NamedTuple):
    """The result of a case: one line about what failed, or None, and the p-values."""

    failure: str | None
    p_values: list[float]


class Batch(NamedTuple):
    """Rows of a problem: the index of each row's prompt, and its key."""

    rows: np.ndarray
    keys: Any

    def take(self, chosen: Any) -> Batch:
        return Batch(self.rows[chosen], self.keys[chosen])


def certify_case(strategy: Strategy, problem: AnyProblem, run: str, seed: int = 0) -> Result:
    """Runs every check of one case. The caller decides about the p-values."""
    try:
        return Result(None, _check(strategy, problem, run, seed))
    except AssertionError as error:
        return Result(str(error), [])
    except Exception as error:
        return Result(f"{type(error).__name__}: {error}".splitlines()[0], [])


def _check(strategy: Strategy, problem: AnyProblem, run: str, seed: int) -> list[float]:
    merged = isinstance(problem, MergedProblem)
    repeats = 2
    if strategy.sampler:
        repeats = MERGED_REPEATS // (2 if strategy.draft else 1) if merged else REPEATS
    size = problem.size * repeats
    chunk = max(2, MERGED_ROWS // problem.size) * problem.size if merged else size
    key = jax.random.key(seed)
    batch = Batch(np.arange(size) % problem.size, _row_keys(key, size))
    table = problems.MODELS()[problem.model]
    model = CountTraces(table if strategy.trees else dataclasses.replace(table, tree=False), TRACES)
    call = functools.partial(_call, strategy, problem, model)

    parts = [batch.take(slice(first, first + chunk)) for first in range(0, size, chunk)]
    outputs = [call(part) for part in parts]
    output = jax.tree.map(lambda *x: np.concatenate(x), *outputs)
    checks.check_form(output, size, strategy.num_lanes, problem.max_new_tokens)
    p_values = strategy.check(output, problem)

    order = np.random.default_rng(seed).permutation(len(parts[0].rows))
    traces = TRACES.count
    permuted = call(parts[0].take(order))
    checks.check_same(permuted, _rows(output, order), "rows in another order")
    assert TRACES.count == traces, "a second call of the same shapes traced again"
    few = slice(0, 2 * problem.size)
    for way in run.split(", "):
        _check_run(call, way, batch.take(few), key, _rows(output, few), problem)
    return p_values


def _check_run(
    call: Callable[..., DecodeOutput],
    run: str,
    few: Batch,
    key: Any,
    want: DecodeOutput,
    problem: AnyProblem,
) -> None:
    """Runs some rows in another way, which must not change the result."""
    check_same = functools.partial(checks.check_same, rounding=ROUNDING)
    if run == "eager":
        check_same(call(few, eager=True), want, "not jitted")
    elif run == "one key":
        check_same(call(Batch(few.rows, key)), want, "one key for all rows")
    elif run == "sharded":
        check_same(call(few, put=spread_rows), want, f"over {jax.device_count()} devices")
    elif run == "alone":
        for row in _rows_alone(problem):
            one = slice(row, row + 1)
            alone = call(few.take(one), width=int(LENGTHS[row % PROMPTS]))
            check_same(alone, _rows(want, one), f"row {row} alone")


def _rows_alone(problem: AnyProblem) -> list[int]:
    """The rows that run alone. In a merged case, one of each combination, of equal lengths."""
    if not isinstance(problem, MergedProblem):
        return [1, 2, PROMPTS + 1]
    length = 1 if problem.model == "lockstep" else 2
    (prompts,) = np.nonzero(LENGTHS == length)  # noqa: SIM300
    combinations = range(len(problem.combinations))
    return [PROMPTS * one + int(prompts[one % len(prompts)]) for one in combinations]


def _call(
    strategy: Strategy,
    problem: AnyProblem,
    model: Any,
    batch: Batch,
    *,
    eager: bool = False,
    width: int | None = None,
    put: Callable[[Any], Any] = lambda tree: tree,
) -> DecodeOutput:
    """Runs a strategy on some rows. ``width`` cuts the prompts' padding; ``put`` places arrays."""
    prompt, keys = put((problems.prompt_of(batch.rows, width), batch.keys))
    settings = problem.settings(batch.rows) | strategy.row_settings(batch.rows)
    output = strategy(model, prompt, keys, settings, eager=eager)
    info = {name: getattr(output.info, name) for name in strategy.info_fields}
    return jax.tree.map(np.asarray, output._replace(info=info))


def _rows(output: DecodeOutput, rows: Any) -> DecodeOutput:
    return jax.tree.map(lambda x: x[rows], output)


def _row_keys(key: Any, rows: int) -> Any:
    """The key of row b: the call's key folded with b."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows, dtype=jnp.int32))


def check_refusal(strategy: Strategy) -> str | None:
    """Checks that a request for more positions than the model has is a ValueError.

    Returns:
      What is wrong, in one line, or None.
    """
    problem = Problem()
    room = TOKENS.shape[1] + problem.max_new_tokens - 2
    model = dataclasses.replace(problems.MODELS()["smooth"], max_positions=room)
    batch = Batch(np.arange(PROMPTS), _row_keys(jax.random.key(0), PROMPTS))
    try:
        _call(strategy, problem, model, batch)
    except ValueError as error:
        return None if "\n" not in str(error) else f"not one line: {error}"
    return f"max_new_tokens: more positions than the model's {room} were not refused"


def run_case(case: Case, strategy: Strategy) -> Entry:
    """Runs a case with keys that its name determines."""
    began = time.process_time()
    problem = problem_of(case, strategy)
    seed = zlib.crc32(repr(case).encode())
    result = certify_case(strategy.with_draft(case["draft"]), problem, case["run"], seed)
    smallest = min(result.p_values, default=1.0)
    return Entry(result.failure, smallest, round(time.process_time() - began, 1))
