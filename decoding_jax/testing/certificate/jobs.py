"""Runs the cases of the certificate, in this process or in several."""

from __future__ import annotations

import atexit
import functools
import itertools
import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import connection, parent_process

import jax
import numpy as np

from decoding_jax.testing.certificate.case_log import Entry
from decoding_jax.testing.certificate.cases import programs_of
from decoding_jax.testing.certificate.library import find
from decoding_jax.testing.certificate.pairwise import Case
from decoding_jax.testing.certificate.running import run_case
from decoding_jax.testing.certificate.strategies import Strategy

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
    cases: Sequence[Case], strategies: Sequence[Strategy], jobs: int = 1
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


def _run(group: Sequence[Case], by_name: dict[str, Strategy]) -> Iterator[tuple[Case, Entry]]:
    for case in group:
        yield case, run_case(case, by_name[case["strategy"]])
    if next(_GROUPS_RUN) % CLEAR == 0:
        jax.clear_caches()


def _run_by_name(group: Sequence[Case]) -> list[tuple[Case, Entry]]:
    return list(_run(group, {case["strategy"]: _named(case["strategy"]) for case in group}))


@functools.cache
def _named(name: str) -> Strategy:
    (strategy,) = [strategy for strategy in find([name]) if strategy.name == name]
    return strategy
