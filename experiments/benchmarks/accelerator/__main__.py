"""Measures the steps of 1B and 8B Llamas on a GPU or a TPU, beside what its memory allows.

    python -m experiments.benchmarks.accelerator --out runs/accelerator.json
    python -m experiments.benchmarks.accelerator --out runs/accelerator.json --only 8B --minutes 8
    python -m experiments.benchmarks.accelerator --out runs/accelerator.json \\
        --report runs/accelerator.md

First come the bandwidth of the device's memory and the peak of a large product, then one setting
after another, of random weights that are made on the device. The file is written after each, and
settings that are in it are not measured again, so a run that was ended continues. Where PyTorch,
``transformers`` and a CUDA device are there, ``transformers`` is measured after all others.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments import quick, results
from experiments.benchmarks.accelerator import device, measure, peer, report, settings
from experiments.benchmarks.accelerator.settings import Setting
from experiments.benchmarks.accelerator.worker import EndedError, Worker, attempt

MEASURES = {settings.OURS: measure.measure, settings.TRANSFORMERS: peer.measure}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the file of the results, as JSON")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="settings whose line has all these"
    )
    parser.add_argument("--list", action="store_true", help="print the lines, measure nothing")
    parser.add_argument("--again", action="store_true", help="measure what is in the file, too")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time")
    parser.add_argument(
        "--limit", type=float, default=240, help="seconds after which a setting is given up"
    )
    parser.add_argument("--report", type=Path, help="the page of tables that is written")
    args = quick.parse(parser, argv, {})
    chosen = [
        setting
        for setting in (settings.quick() if args.quick else settings.grid())
        if all(text in setting.name() for text in args.only)
    ]
    if args.list:
        print("\n".join(s.name() for s in chosen))
        return 0
    found = results.ledger_of(args.out)
    if args.report:
        report.write(found, args.report)
        return 0
    if not peer.is_here():
        chosen = [s for s in chosen if s.library == settings.OURS]
    missing = [s for s in chosen if args.again or s.name() not in found["rows"]]
    run = Run(args.out, found, time.monotonic() + 60 * args.minutes, args.limit, args.quick)
    with tqdm(total=len(missing), unit="setting", disable=not missing) as bar:
        groups = itertools.groupby(missing, key=lambda s: (s.library, s.model, s.weights))
        try:
            for _, group in groups:
                run.measure(list(group), bar)
        except StoppedError as stopped:
            bar.write(str(stopped), file=sys.stderr)
            return stopped.status
    return 0


class StoppedError(Exception):
    """Why a run ends before all settings are measured.

    Args:
      text: the reason.
      status: of the process.
    """

    def __init__(self, text: str, status: int = 0):
        super().__init__(text)
        self.status = status


class Run:
    """The measurements of a run, in processes of their own.

    Args:
      path: of the results.
      results: what the file has.
      until: the time at which the run stops, of ``time.monotonic``.
      limit: the seconds after which a setting is given up.
      quick: whether all is measured in this process, on arrays that measure nothing.
    """

    def __init__(
        self, path: Path, results: dict[str, Any], until: float, limit: float, quick: bool
    ):
        self._path, self._results, self._quick = path, results, quick
        self._until, self._limit = until, limit

    def measure(self, group: list[Setting], bar: Any) -> None:
        """Measures settings of one model, and writes each.

        Raises:
          StoppedError: if the time is up, or the file is of another device.
        """
        while group:
            with self._process() as ask:
                if group[0].library == settings.OURS:
                    self._check_device(ask)
                while group:
                    bar.set_postfix_str(group[0].name())
                    setting = group.pop(0)
                    row, goes_on = self._row(ask, setting)
                    self._results["rows"][setting.name()] = {"setting": vars(setting), **row}
                    results.write_json(self._path, self._results)
                    bar.write(report.line(setting.name(), self._results))
                    bar.update()
                    if not goes_on:
                        break

    def _row(self, ask: Callable[..., Any], setting: Setting) -> tuple[dict[str, Any], bool]:
        """The figures of a setting, and whether its process goes on."""
        try:
            return self._in_time(ask, MEASURES[setting.library], setting), True
        except TimeoutError:
            return {"error": f"takes more than {self._limit:.0f} s"}, False
        except EndedError as ended:
            return {"error": str(ended)}, False

    def _in_time(self, ask: Callable[..., Any], *call: Any) -> Any:
        """The result of a call.

        Raises:
          StoppedError: if the time is up first.
          TimeoutError: if it takes too long.
        """
        left = self._until - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            return ask(*call, seconds=min(left, self._limit))
        except TimeoutError:
            if left > self._limit:
                raise
            raise StoppedError("The time is up; the same command goes on from here.") from None

    @contextlib.contextmanager
    def _process(self) -> Iterator[Callable[..., Any]]:
        if self._quick:
            yield lambda function, *args, seconds: attempt(function, *args)
            return
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
        # A program that is read from a cache is not compiled.
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        with Worker() as worker:
            yield worker.ask

    def _check_device(self, ask: Callable[..., Any]) -> None:
        """Measures what the device reaches, or compares it with the one that the file is of."""
        here = self._in_time(ask, device.describe)
        if "error" in here:
            raise StoppedError(here["error"], 1)
        before = self._results.setdefault("device", here)
        for name in ("kind", "jax"):
            if before[name] != here[name]:
                raise StoppedError(
                    f"--out: expected results of {name} {here[name]}, got {before[name]}", 1
                )
        if "bandwidth" not in before:
            before |= self._in_time(ask, device.reaches, self._quick)
            results.write_json(self._path, self._results)


if __name__ == "__main__":
    sys.exit(main())
