"""The certificate: strategies held to exact distributions, case by case.

    python -m decoding_jax.testing.certify                         # every pair of settings
    python -m decoding_jax.testing.certify --full                  # every combination
    python -m decoding_jax.testing.certify --full --log FILE       # goes on where it was killed
    python -m decoding_jax.testing.certify --full --sample 300     # as many of them at random
    python -m decoding_jax.testing.certify --strategy sample       # one of the library's
    python -m decoding_jax.testing.certify --strategy my_module:my_function

A case is a strategy, a model, a transform, a stop condition, and one way of running it that must
not matter. In every case:

- each output is possible, zero after its end, ``finished`` if and only if a stop condition ended
  it, and has the model's log-probability;
- a search gives the greedy path, best-first search the likeliest sequence; a sampler's lanes, each
  over 2,048 rows of independent keys a prompt, follow the exact distribution (chi-square), rows are
  independent, and so are lanes where they are meant to be; a lattice's prefixes occur floor or ceil
  of N p times;
- rows in another order, under the same keys, give the same rows to the bit;
- a second call of the same shapes does not trace again.

The ways of running are: as is; a row alone without its batch's padding; not jitted; rows sharded
over all devices; one key folded with each row's index instead of an array of keys. Each must give
the same tokens to the bit, and the same log-probabilities up to rounding (XLA sums in another order
for other shapes).

All statistical tests together have a level of 0.001 (Bonferroni): should everything be right, one
choice of keys in a thousand would fail. Each case has fixed keys of its own, so that a run can be
repeated.
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
from decoding_jax.testing.certificate.cases import cases_of
from decoding_jax.testing.certificate.devices import prepare_host, spread_rows
from decoding_jax.testing.certificate.pairwise import Case
from decoding_jax.testing.certificate.problems import (
    LENGTHS,
    PROMPTS,
    TOKENS,
    Problem,
)
from decoding_jax.testing.certificate.strategies import Strategy, find
from decoding_jax.testing.certificate.tracing import Counter, CountTraces

LEVEL = 1e-3
"""Of all statistical tests of a run together."""
ROUNDING = 2e-6
SAMPLES = 4
REPEATS = 2048
FEW = 2 * PROMPTS
CLEAR = 50
"""After so many cases programs are dropped: a process can map only so many pieces of memory."""
TRACES = Counter()
"""One for all cases: a counter of its own would make each of them compile."""


class Result(NamedTuple):
    """What came of a case: a line that says what failed, or None; and the p-values."""

    failure: str | None
    p_values: list[float]


class Batch(NamedTuple):
    """Rows of a problem: which prompt each is, and its key."""

    rows: np.ndarray
    keys: Any

    def take(self, chosen: Any) -> Batch:
        return Batch(self.rows[chosen], self.keys[chosen])


def certify_case(strategy: Strategy, problem: Problem, run: str, seed: int = 0) -> Result:
    """Runs every check of one case; statistical ones are left to the caller to judge."""
    try:
        return Result(None, _check(strategy, problem, run, seed))
    except AssertionError as error:
        return Result(str(error), [])
    except Exception as error:
        return Result(f"{type(error).__name__}: {error}".splitlines()[0], [])


def _check(strategy: Strategy, problem: Problem, run: str, seed: int) -> list[float]:
    size = PROMPTS * (REPEATS if strategy.sampler else FEW // PROMPTS)
    key = jax.random.key(seed)
    batch = Batch(np.arange(size) % PROMPTS, _row_keys(key, size))
    model = CountTraces(problems.MODELS()[problem.model], TRACES)
    call = functools.partial(_call, strategy, problem, model)

    output = call(batch)
    distributions = problem.distributions()
    lanes = SAMPLES if strategy.sampler else 1
    checks.check_form(output, size, lanes, problem.max_new_tokens)
    index = checks.check_outcomes(output, distributions)
    p_values: list[float] = []
    if strategy.likeliest:
        checks.check_likeliest(index, distributions)
    elif not strategy.sampler:
        checks.check_exact(index, distributions, problem.greedy_paths())
    else:
        p_values += checks.distribution_p_values(index, distributions)
        p_values += checks.independence_p_values(index, distributions, strategy.independent)
        if strategy.spread is not None:
            checks.check_prefix_counts(index, distributions, strategy.spread)

    order = np.random.default_rng(seed).permutation(size)
    traces = TRACES.count
    permuted = call(batch.take(order))
    checks.check_same(permuted, _rows(output, order), "rows in another order")
    assert TRACES.count == traces, "a second call of the same shapes traced again"
    _check_run(call, run, batch.take(slice(0, FEW)), key, _rows(output, slice(0, FEW)))
    return p_values


def _check_run(
    call: Callable[..., DecodeOutput], run: str, few: Batch, key: Any, want: DecodeOutput
) -> None:
    """A way of running that must not matter."""
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
    problem: Problem,
    model: Any,
    batch: Batch,
    *,
    eager: bool = False,
    width: int | None = None,
    put: Callable[[Any], Any] = lambda tree: tree,
) -> DecodeOutput:
    """Runs a strategy on some rows; ``width`` cuts the prompts' padding, ``put`` places arrays."""
    prompt, keys = put((problems.prompt_of(batch.rows, width), batch.keys))
    settings = problem.settings(batch.rows)
    output = strategy(model, prompt, keys, SAMPLES, settings, eager=eager)
    return jax.tree.map(np.asarray, output._replace(info=None))


def _rows(output: DecodeOutput, rows: Any) -> DecodeOutput:
    return jax.tree.map(lambda x: x[rows], output)


def _row_keys(key: Any, rows: int) -> Any:
    """The key that row b is promised: the call's, folded with b."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows, dtype=jnp.int32))


def check_refusal(strategy: Strategy) -> str | None:
    """A prompt and a length that the model's positions cannot hold are a ValueError."""
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
      strategies: from ``strategies.find``.
      full: all combinations of settings instead of all pairs.
      sample: how many of the cases, drawn at random, always the same; all by default.
      log: a file of results: those in it are not found again, new ones are added.
      bar: whether to show a progress bar.

    Returns:
      How many cases failed.
    """
    began = time.monotonic()
    by_name = {strategy.name: strategy for strategy in strategies}
    cases = cases_of(strategies, full)
    if sample is not None and sample < len(cases):
        chosen = np.random.default_rng(0).choice(len(cases), sample, replace=False)
        cases = [cases[i] for i in sorted(chosen)]
    known = CaseLog(log)
    tests = len(cases) * PROMPTS * (SAMPLES + 2)
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
    took = time.monotonic() - began
    write(
        f"{len(cases)} cases, {failures} failed; at most {tests} tests, smallest p {smallest:.1e}; "
        f"{took:.0f} s"
    )
    return failures


def _result(case: Case, strategy: Strategy) -> tuple[str | None, float]:
    """Runs a case: what failed, if anything, and the smallest p-value."""
    problem = Problem(case["model"], case["transform"], case["stop"])
    seed = zlib.crc32(repr(case).encode())
    result = certify_case(strategy.with_draft(case["draft"]), problem, case["run"], seed)
    return result.failure, min(result.p_values, default=1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status: 0 if every case held, 1 if not, 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m decoding_jax.testing.certify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="all combinations, not all pairs")
    parser.add_argument("--strategy", action="append", default=[], metavar="NAME")
    parser.add_argument("--sample", type=int, metavar="N", help="of the cases, at random")
    parser.add_argument("--log", type=Path, metavar="FILE", help="goes on after what is there")
    parser.add_argument("--devices", type=int, default=8, help="of the host, unless XLA_FLAGS says")
    options = parser.parse_args(arguments)
    prepare_host(options.devices, quick=not options.full)
    try:
        strategies = find(options.strategy)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    settings = {name: getattr(options, name) for name in ("full", "sample", "log")}
    return int(certify(strategies, **settings) > 0)


if __name__ == "__main__":
    sys.exit(main())
