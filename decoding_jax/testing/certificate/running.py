"""Runs the cases of the certificate, in this process or in several."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import itertools
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import connection, parent_process
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array, Cache, DecodeOutput, ModelOutput
from decoding_jax.pytrees import pytree
from decoding_jax.testing.certificate import comparisons, devices, problems
from decoding_jax.testing.certificate.cases import Case, problem_of, programs_of
from decoding_jax.testing.certificate.problems import PROMPTS, AnyProblem
from decoding_jax.testing.certificate.records import Entry
from decoding_jax.testing.certificate.strategies import Tested, find


class Counter:
    """A counter. Two counters are never equal."""

    def __init__(self) -> None:
        self.count = 0


@pytree
@dataclasses.dataclass(frozen=True)
class CountTraces:
    """A model that counts the calls of its ``prefill``, and so how often ``jit`` traces it.

    Attributes:
      model: the model that computes the results.
      counter: its ``count`` increases by one with each call.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax.testing import TableLM
      >>> model = CountTraces(TableLM.random(jax.random.key(0), 3))
      >>> logits = jax.jit(lambda m, t, n: m.prefill(t, n, lanes=1, slots=1)[0].logits)
      >>> for token in (0, 1, 2):
      ...     _ = logits(model, jnp.array([[token]]), jnp.array([1]))
      >>> model.counter.count
      1
    """

    model: Any
    counter: Counter = fields.field(static=True, default_factory=Counter)

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_positions(self) -> int | None:
        return self.model.max_positions

    @property
    def ragged(self) -> bool:
        return self.model.ragged

    @property
    def tree(self) -> bool:
        return self.model.tree

    @property
    def num_layers(self) -> int | None:
        return getattr(self.model, "num_layers", None)

    def with_features(self, layers: tuple[int, ...]) -> CountTraces:
        """The model that returns hidden states, with the same counter."""
        return dataclasses.replace(self, model=self.model.with_features(layers))

    def prefill(self, tokens: Array, length: Array, **settings: Any) -> tuple[ModelOutput, Cache]:
        """Counts the call, and calls the model."""
        self.counter.count += 1
        return self.model.prefill(tokens, length, **settings)

    def extend(self, *args: Any, **settings: Any) -> tuple[ModelOutput, Cache]:
        """Calls the model."""
        return self.model.extend(*args, **settings)

    def shared_keys(self, *args: Any) -> Any:
        """Calls the model."""
        return self.model.shared_keys(*args)

    def keep(self, *args: Any, **settings: Any) -> Cache:
        """Calls the model."""
        return self.model.keep(*args, **settings)

    def select(self, *args: Any, **settings: Any) -> Cache:
        """Calls the model."""
        return self.model.select(*args, **settings)


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


class RowBatch(NamedTuple):
    """Rows of a problem: the index of each row's prompt, and its key."""

    rows: np.ndarray
    keys: Any

    def take(self, chosen: Any) -> RowBatch:
        return RowBatch(self.rows[chosen], self.keys[chosen])


def certify_case(strategy: Tested, problem: AnyProblem, run: str, seed: int = 0) -> Result:
    """Runs every check of one case. The caller decides about the p-values."""
    try:
        return Result(None, _check(strategy, problem, run, seed))
    except AssertionError as error:
        return Result(str(error), [])
    except Exception as error:
        return Result(f"{type(error).__name__}: {error}".splitlines()[0], [])


def _check(strategy: Tested, problem: AnyProblem, run: str, seed: int) -> list[float]:
    merged = isinstance(problem, problems.MergedProblem)
    repeats = 2
    if strategy.sampler:
        repeats = MERGED_REPEATS // (2 if strategy.draft else 1) if merged else REPEATS
    size = problem.size * repeats
    chunk = max(2, MERGED_ROWS // problem.size) * problem.size if merged else size
    key = jax.random.key(seed)
    batch = RowBatch(np.arange(size) % problem.size, _row_keys(key, size))
    table = problems.MODELS()[problem.model]
    model = CountTraces(table if strategy.trees else dataclasses.replace(table, tree=False), TRACES)
    call = functools.partial(_call, strategy, problem, model)

    parts = [batch.take(slice(first, first + chunk)) for first in range(0, size, chunk)]
    outputs = [call(part) for part in parts]
    output = jax.tree.map(lambda *x: np.concatenate(x), *outputs)
    comparisons.check_form(output, size, strategy.num_lanes, problem.max_new_tokens)
    p_values = strategy.check(output, problem)

    order = np.random.default_rng(seed).permutation(len(parts[0].rows))
    traces = TRACES.count
    permuted = call(parts[0].take(order))
    comparisons.check_same(permuted, _rows(output, order), "rows in another order")
    assert TRACES.count == traces, "a second call of the same shapes traced again"
    few = slice(0, 2 * problem.size)
    for way in run.split(", "):
        _check_run(call, way, batch.take(few), key, _rows(output, few), problem)
    return p_values


def _check_run(
    call: Callable[..., DecodeOutput],
    run: str,
    few: RowBatch,
    key: Any,
    want: DecodeOutput,
    problem: AnyProblem,
) -> None:
    """Runs some rows in another way, which must not change the result."""
    check_same = functools.partial(comparisons.check_same, rounding=ROUNDING)
    if run == "eager":
        check_same(call(few, eager=True), want, "not jitted")
    elif run == "one key":
        check_same(call(RowBatch(few.rows, key)), want, "one key for all rows")
    elif run == "sharded":
        check_same(call(few, put=devices.spread_rows), want, f"over {jax.device_count()} devices")
    elif run == "alone":
        for row in _rows_alone(problem):
            one = slice(row, row + 1)
            alone = call(few.take(one), width=int(problems.LENGTHS[row % PROMPTS]))
            check_same(alone, _rows(want, one), f"row {row} alone")


def _rows_alone(problem: AnyProblem) -> list[int]:
    """The rows that run alone. In a merged case, one of each combination, of equal lengths."""
    if not isinstance(problem, problems.MergedProblem):
        return [1, 2, PROMPTS + 1]
    length = 1 if problem.model == "lockstep" else 2
    (prompts,) = np.nonzero(problems.LENGTHS == length)  # noqa: SIM300
    combinations = range(len(problem.combinations))
    return [PROMPTS * one + int(prompts[one % len(prompts)]) for one in combinations]


def _call(
    strategy: Tested,
    problem: AnyProblem,
    model: Any,
    batch: RowBatch,
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


def check_refusal(strategy: Tested) -> str | None:
    """Checks that a request for more positions than the model has is a ValueError.

    Returns:
      What is wrong, in one line, or None.
    """
    problem = problems.Problem()
    room = problems.TOKENS.shape[1] + problem.max_new_tokens - 2
    model = dataclasses.replace(problems.MODELS()["smooth"], max_positions=room)
    batch = RowBatch(np.arange(PROMPTS), _row_keys(jax.random.key(0), PROMPTS))
    try:
        _call(strategy, problem, model, batch)
    except ValueError as error:
        return None if "\n" not in str(error) else f"not one line: {error}"
    return f"max_new_tokens: more positions than the model's {room} were not refused"


def run_case(case: Case, strategy: Tested) -> Entry:
    """Runs a case with keys that its name determines."""
    began = time.process_time()
    problem = problem_of(case, strategy)
    seed = zlib.crc32(repr(case).encode())
    result = certify_case(strategy.with_draft(case["draft"]), problem, case["run"], seed)
    smallest = min(result.p_values, default=1.0)
    return Entry(result.failure, smallest, round(time.process_time() - began, 1))


MOST_JOBS = 8
"""The largest default number of processes; each takes some 2 GB of memory."""
CLEAR = 5
"""Programs are dropped after so many groups: Linux limits a process's memory mappings."""
_GROUPS_RUN = itertools.count(1)
CACHE = {
    "jax_compilation_cache_dir": "",
    "jax_persistent_cache_min_compile_time_secs": "0",
    "jax_persistent_cache_min_entry_size_bytes": "-1",
}


def default_jobs() -> int:
    """The number of processors, at most ``MOST_JOBS``."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MOST_JOBS)


def share_programs() -> None:
    """Gives this process and those it starts one folder of compiled programs, until it ends.

    A folder named in ``JAX_COMPILATION_CACHE_DIR`` is used, and kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="decoding_jax_certify_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, value in (CACHE | {"jax_compilation_cache_dir": folder}).items():
        os.environ[name.upper()] = value
        jax.config.update(name, value if name.endswith("dir") else int(value))


def results(
    cases: Sequence[Case], strategies: Sequence[Tested], jobs: int = 1
) -> Iterator[tuple[Case, Entry]]:
    """Runs cases, and yields each with its result, in order of completion.

    The cases begin in an order of no meaning, always the same, so that the first ones take as long
    on average as all.

    Args:
      cases: the cases.
      strategies: those that the cases name.
      jobs: the number of processes. If it is above 1, each process finds the strategies by their
        names. Cases that share programs run in one process.
    """
    groups = programs_of(cases)
    groups = [groups[i] for i in np.random.default_rng(0).permutation(len(groups))]
    if jobs == 1:
        for group in groups:
            yield from _run(group, {strategy.name: strategy for strategy in strategies})
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _end_with_parent) as processes:
        waiting = [processes.submit(_run_by_name, group) for group in groups]
        for done in as_completed(waiting):
            yield from done.result()


def _end_with_parent() -> None:
    """Ends this process when the one that started it is killed."""
    if (parent := parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _run(group: Sequence[Case], by_name: dict[str, Tested]) -> Iterator[tuple[Case, Entry]]:
    for case in group:
        yield case, run_case(case, by_name[case["strategy"]])
    if next(_GROUPS_RUN) % CLEAR == 0:
        jax.clear_caches()


def _run_by_name(group: Sequence[Case]) -> list[tuple[Case, Entry]]:
    return list(_run(group, {case["strategy"]: _named(case["strategy"]) for case in group}))


@functools.cache
def _named(name: str) -> Tested:
    (strategy,) = [strategy for strategy in find([name]) if strategy.name == name]
    return strategy
