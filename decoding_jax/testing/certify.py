"""The certificate: strategies compared with exact distributions, case by case.

    python -m decoding_jax.testing.certify                         # one case of each strategy
    python -m decoding_jax.testing.certify --full                  # every combination of settings
    python -m decoding_jax.testing.certify --pairs                 # every pair, a case at a time
    python -m decoding_jax.testing.certify --full --log FILE       # resumes after an interruption
    python -m decoding_jax.testing.certify --full --summary FILE   # writes a summary as JSON
    python -m decoding_jax.testing.certify --full --sample 20      # that many cases at random
    python -m decoding_jax.testing.certify --strategy sample       # a strategy of the library
    python -m decoding_jax.testing.certify --strategy my_module:my_function

A case is a strategy, a model, a transform, a stop condition, and a way of running that must not
change the result. By default and with ``--full``, a case is a strategy and a model, and its rows
cover all combinations of a transform and a stop condition: they are settings of one compiled
program. By default each strategy has one case, in one way; models, drafts and ways take turns. With
``--full`` every strategy has every model and draft, and every way with some of them. With
``--pairs`` a case is one combination of all settings, and every pair of settings is in some case.

Every case checks that

- each output is possible, is zero after its end, is ``finished`` if and only if a stop condition
  ended it, and has the model's log-probability;
- greedy decoding gives the greedy path; best-first and best-k search give the most probable
  sequences; a beam search that is wide enough to keep every hypothesis gives the sequences with the
  best scores, among those that meet the constraints if there are any;
- the samples of every lane follow the exact distribution (chi-square, with 512 rows of independent
  keys per prompt, 256 where there is a draft, and 2,048 with ``--pairs``), rows are independent,
  and so are lanes where the strategy promises it; the lanes of a stochastic beam search are draws
  without replacement; the number of samples of a lattice that begin with a prefix of probability p
  is N p, rounded up or down;
- rows in another order, with the same keys, give the same rows to the bit;
- a second call with the same shapes does not trace again.

The ways of running are: as is; a row alone without its batch's padding; not jitted; rows sharded
over all devices; one key folded with each row's index instead of an array of keys. Each must give
the same tokens to the bit, and the same log-probabilities up to rounding (XLA sums in another order
for other shapes).

Cases are shared out over as many processes as there are processors (``--jobs``). Programs are
compiled with few optimizations, because compiling takes most of the time; ``--optimized`` compiles
as users do.

All statistical tests of a run share a level of 0.001 (Bonferroni): if everything is right, one
choice of keys in a thousand fails. Each case has its own fixed keys, so a run can be repeated.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from decoding_jax.testing.certificate import devices, records, running, strategies
from decoding_jax.testing.certificate.cases import Case, Extent, cases_of, problem_of
from decoding_jax.testing.certificate.records import CaseLog, Entry
from decoding_jax.testing.certificate.strategies import SAMPLES, Tested

LEVEL = 1e-3
"""The level that all statistical tests of a run share."""
WITHOUT_ESTIMATE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
"""The progress bar at the beginning."""


def certify(
    tested: Sequence[Tested],
    *,
    extent: Extent = "quick",
    sample: int | None = None,
    log: Path | None = None,
    summary: Path | None = None,
    jobs: int = 1,
    bar: bool = True,
) -> int:
    """Runs the certificate and prints it.

    Args:
      tested: from ``strategies.find``.
      extent: which cases to run: one of each strategy, all pairs of settings, or all combinations.
      sample: the number of cases to draw at random, the same every time; by default all run.
      log: a file of results. Cases in it are not run again, and new results are added.
      summary: a file for the summary, in JSON.
      jobs: the number of processes. If it is above 1, each finds the strategies by their names.
      bar: whether to show a progress bar.

    Returns:
      The number of failures.
    """
    began = time.monotonic()
    by_name = {strategy.name: strategy for strategy in tested}
    cases = cases_of(tested, extent)
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
    entries: list[Entry] = []
    ran = [(case, entry) for case in cases if (entry := known.get(case)) is not None]
    left = [case for case in cases if known.get(case) is None]
    results = _with_bar(running.results(left, tested, jobs), len(ran), len(cases), bar)
    for case, entry in itertools.chain(ran, results):
        if known.get(case) is None:
            known.add(case, entry)
        entries.append(entry)
        failure, least, _ = entry
        if failure is None and least < LEVEL / tests:
            failure = f"distribution: a p-value of {least:.1e}, below {LEVEL}/{tests}"
        failures += failure is not None
        shown = f"{least:10.1e}" if least < 1 else " " * 9 + "-"
        write(f"{show(case)}  {shown}  {'ok' if failure is None else 'FAILED ' + failure}")
    for strategy in tested:
        failure = running.check_refusal(strategy)
        failures += failure is not None
        if failure is not None:
            write(f"{strategy.name}: FAILED {failure}")
    totals = records.summarize(cases, entries, level=LEVEL, tests=tests, failures=failures)
    totals["wall_seconds"] = round(time.monotonic() - began)
    if summary is not None:
        summary.write_text(json.dumps(totals, indent=2) + "\n", encoding="utf-8")
    write(
        f"{len(cases)} cases, {failures} failed; at most {tests} tests, "
        f"smallest p {totals['smallest_p']:.1e}; {totals['wall_seconds']} s, "
        f"{totals['cpu_seconds']} s of processor time in all cases"
    )
    write(", ".join(f"{name} {version}" for name, version in totals["versions"].items()))
    return failures


def _with_bar(
    running: Iterator[tuple[Case, Entry]], ran: int, total: int, bar: bool
) -> Iterator[tuple[Case, Entry]]:
    """Shows the progress of the cases that run, of which ``ran`` are known from a log.

    The time left is estimated from all cases of this run, once a tenth of them have ended: the
    first ones include the start of the processes.
    """
    options = {"smoothing": 0, "bar_format": WITHOUT_ESTIMATE, "disable": not bar}
    shown = tqdm(running, initial=ran, total=total, unit="case", **options)
    for result in shown:
        yield result
        if shown.n - ran >= (total - ran) / 10:
            shown.bar_format = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns 0 if every case passed, 1 if not, and 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m decoding_jax.testing.certify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    extent = parser.add_mutually_exclusive_group()
    for name, text in (("full", "all combinations of settings"), ("pairs", "all pairs of them")):
        extent.add_argument(
            f"--{name}", dest="extent", action="store_const", const=name, default="quick", help=text
        )
    parser.add_argument("--strategy", action="append", default=[], metavar="NAME")
    parser.add_argument("--sample", type=int, metavar="N", help="run N cases drawn at random")
    parser.add_argument("--log", type=Path, metavar="FILE", help="of results: resumes after them")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="of what ran, in JSON")
    parser.add_argument(
        "--jobs", type=int, default=running.default_jobs(), help="processes; by default %(default)s"
    )
    parser.add_argument("--optimized", action="store_true", help="compile as users do")
    parser.add_argument(
        "--devices", type=int, default=8, help="of the host, unless XLA_FLAGS sets it"
    )
    options = parser.parse_args(arguments)
    devices.prepare_host(options.devices, quick=not options.optimized)
    try:
        tested = strategies.find(options.strategy)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    running.share_programs()
    names = ("extent", "sample", "log", "summary", "jobs")
    settings = {name: getattr(options, name) for name in names}
    return int(certify(tested, **settings) > 0)


if __name__ == "__main__":
    sys.exit(main())
