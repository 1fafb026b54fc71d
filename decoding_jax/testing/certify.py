"""The certificate: strategies compared with exact distributions, case by case.

    python -m decoding_jax.testing.certify                         # every pair of settings
    python -m decoding_jax.testing.certify --full                  # every combination
    python -m decoding_jax.testing.certify --full --log FILE       # resumes after an interruption
    python -m decoding_jax.testing.certify --full --sample 20      # that many cases at random
    python -m decoding_jax.testing.certify --strategy sample       # a strategy of the library
    python -m decoding_jax.testing.certify --strategy my_module:my_function

A case is a strategy, a model, a transform, a stop condition, and a way of running that must not
change the result. With ``--full``, a case is a strategy and a model, and all transforms, stop
conditions and ways of running are covered by its rows: they are settings of one compiled program.

Every case checks that

- each output is possible, is zero after its end, is ``finished`` if and only if a stop condition
  ended it, and has the model's log-probability;
- greedy decoding gives the greedy path; best-first and best-k search give the most probable
  sequences; a beam search that is wide enough to keep every hypothesis gives the sequences with the
  best scores, among those that meet the constraints if there are any;
- the samples of every lane follow the exact distribution (chi-square, with 2,048 rows of
  independent keys per prompt, or 512 with ``--full``), rows are independent, and so are lanes where
  the strategy promises it; the lanes of a stochastic beam search are draws without replacement; the
  number of samples of a lattice that begin with a prefix of probability p is N p, rounded up or
  down;
- rows in another order, with the same keys, give the same rows to the bit;
- a second call with the same shapes does not trace again.

The ways of running are: as is; a row alone without its batch's padding; not jitted; rows sharded
over all devices; one key folded with each row's index instead of an array of keys. Each must give
the same tokens to the bit, and the same log-probabilities up to rounding (XLA sums in another order
for other shapes).

All statistical tests of a run share a level of 0.001 (Bonferroni): if everything is right, one
choice of keys in a thousand fails. Each case has its own fixed keys, so a run can be repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from decoding_jax.base import DecodeOutput
from decoding_jax.testing.certificate import checks, problems
from decoding_jax.testing.certificate.case_log import CaseLog
from decoding_jax.testing.certificate.cases import EVERY, RUNS, cases_of, problem_of
from decoding_jax.testing.certificate.devices import prepare_host, spread_rows
from decoding_jax.testing.certificate.expectations import AnyProblem
from decoding_jax.testing.certificate.library import find
from decoding_jax.testing.certificate.pairwise import Case
from decoding_jax.testing.certificate.problems import (
    LENGTHS,
    PROMPTS,
    TOKENS,
    Problem,
)
from decoding_jax.testing.certificate.strategies import SAMPLES, Strategy
from decoding_jax.testing.certificate.tracing import Counter, CountTraces

LEVEL = 1e-3
"""The level that all statistical tests of a run share."""
ROUNDING = 2e-6
"""The largest difference of log-probabilities between ways of running, relative to 1 + size."""
REPEATS = 2048
"""Rows per prompt for a sampler; a merged case has ``MERGED_REPEATS``, in several batches."""
MERGED_REPEATS = 512
CLEAR = 50
"""Programs are dropped after this many cases: Linux limits a process's memory mappings."""
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
    repeats = 2
    if strategy.sampler:
        repeats = REPEATS if problem.size == PROMPTS else MERGED_REPEATS
    size, chunk = problem.size * repeats, max(PROMPTS * REPEATS, 2 * problem.size)
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
    for one in RUNS if run == EVERY else (run,):
        if strategy.sampler or one != "one key":
            _check_run(call, one, batch.take(few), key, _rows(output, few))
    return p_values


def _check_run(
    call: Callable[..., DecodeOutput], run: str, few: Batch, key: Any, want: DecodeOutput
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
        for row in (1, 2, PROMPTS + 1):
            one = slice(row, row + 1)
            alone = call(few.take(one), width=int(LENGTHS[row % PROMPTS]))
            check_same(alone, _rows(want, one), f"row {row} alone")


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


def certify(
    strategies: Sequence[Strategy],
    *,
    full: bool = False,
    sample: int | None = None,
    log: Path | None = None,
    bar: bool = True,
) -> int:
    """Runs the certificate and prints it.

    Args:
      strategies: from ``library.find``.
      full: whether to run all combinations of settings instead of all pairs.
      sample: the number of cases to draw at random, the same every time; by default all run.
      log: a file of results. Cases in it are not run again, and new results are added.
      bar: whether to show a progress bar.

    Returns:
      The number of failures.
    """
    began = time.monotonic()
    by_name = {strategy.name: strategy for strategy in strategies}
    cases = cases_of(strategies, full)
    if sample is not None and sample < len(cases):
        chosen = np.random.default_rng(0).choice(len(cases), sample, replace=False)
        cases = [cases[i] for i in sorted(chosen)]
    known = CaseLog(log)
    tests = (SAMPLES + 2) * sum(problem_of(c, by_name[c["strategy"]]).size for c in cases)
    widths = {name: max(len(name), *(len(case[name]) for case in cases)) for name in cases[0]}
    show = lambda values: "  ".join(f"{v:{widths[k]}}" for k, v in values.items())  # noqa: E731
    write = functools.partial(tqdm.write, file=sys.stdout)
    write(f"{len(cases)} cases on {jax.device_count()} devices, level {LEVEL} for all together")
    write(f"{show({name: name for name in widths})}  smallest p  result")
    failures = 0
    smallest = 1.0
    for ran, case in enumerate(tqdm(cases, unit="case", disable=not bar)):
        if known.get(case) is None:
            if ran % CLEAR == CLEAR - 1:
                jax.clear_caches()
            known.add(case, *_result(case, by_name[case["strategy"]]))
        failure, least = known.get(case) or (None, 1.0)
        smallest = min(smallest, least)
        if failure is None and least < LEVEL / tests:
            failure = f"distribution: a p-value of {least:.1e}, below {LEVEL}/{tests}"
        failures += failure is not None
        shown = f"{least:10.1e}" if least < 1 else " " * 9 + "-"
        write(f"{show(case)}  {shown}  {'ok' if failure is None else 'FAILED ' + failure}")
    for strategy in strategies:
        failure = check_refusal(strategy)
        failures += failure is not None
        if failure is not None:
            write(f"{strategy.name}: FAILED {failure}")
    seconds = time.monotonic() - began
    write(
        f"{len(cases)} cases, {failures} failed; at most {tests} tests, smallest p {smallest:.1e}; "
        f"{seconds:.0f} s"
    )
    return failures


def _result(case: Case, strategy: Strategy) -> tuple[str | None, float]:
    """Runs a case. Returns what failed, if anything, and the smallest p-value."""
    problem = problem_of(case, strategy)
    seed = zlib.crc32(repr(case).encode())
    result = certify_case(strategy.with_draft(case["draft"]), problem, case["run"], seed)
    return result.failure, min(result.p_values, default=1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns 0 if every case passed, 1 if not, and 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m decoding_jax.testing.certify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="all combinations, not all pairs")
    parser.add_argument("--strategy", action="append", default=[], metavar="NAME")
    parser.add_argument("--sample", type=int, metavar="N", help="run N cases drawn at random")
    parser.add_argument("--log", type=Path, metavar="FILE", help="of results: resumes after them")
    parser.add_argument("--optimized", action="store_true", help="compile as users do")
    parser.add_argument(
        "--devices", type=int, default=8, help="of the host, unless XLA_FLAGS sets it"
    )
    options = parser.parse_args(arguments)
    prepare_host(options.devices, quick=not options.optimized)
    try:
        strategies = find(options.strategy)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    settings = {name: getattr(options, name) for name in ("full", "sample", "log")}
    return int(certify(strategies, **settings) > 0)


if __name__ == "__main__":
    sys.exit(main())
