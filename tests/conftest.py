"""Settings of every test: strict ranks and dtypes, eight devices, quick compilation, one cache.

Compiling takes most of the time of these tests, so some settings make it short:

- Every process of a run, the workers of pytest-xdist and the commands that tests start among them,
  reads and writes the same folder of compiled programs, which is deleted when the run ends. To keep
  it for the next run, name a folder of your own in ``JAX_COMPILATION_CACHE_DIR``.
- Programs are compiled with few optimizations. A test about what the optimizing compiler does (the
  order of sums to the bit, updates in place) is marked ``optimized`` and compiles with all of them.
- Programs are compiled by XLA's older code generator, which takes half as long, where JAX still has
  it (before 0.11). ``--as-users`` keeps the newer one; the gate runs the tests marked ``optimized``
  so.
- A program is compiled as one piece, not in parallel: there is a process for every core already.
- Programs do not record which lines of Python they come from.
"""

import atexit
import ctypes
import gc
import math
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ["DECODING_JAX_CONSTRAINTS_DIR"] = ""  # Each test makes its own.
os.environ["DECODING_JAX_PROGRAMS"] = "10000"  # Tests count what other ones have compiled.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # The workers inherit the variable from the process that starts them, which owns the folder.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="decoding_jax_programs_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import extras
import jax
import pytest
from machine import need_devices

from decoding_jax.testing.certificate import devices

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_disable_most_optimizations", True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--as-users",
        action="store_true",
        help="compile by the code generator that users compile with, for tests marked optimized",
    )
    parser.addoption("--skipped-to", help="a file for the names of the tests that are skipped")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the compiler's flags, and makes errors of our warnings and of those of JAX and NumPy.

    A warning belongs to the module whose line it names. Those of other packages, plugins of pytest
    among them, are only shown.
    """
    quick = {} if config.getoption("as_users") else devices.quick_flags()
    devices.add_flags({"--xla_force_host_platform_device_count": 8, **quick})
    tests = {path.stem for path in Path(__file__).parent.rglob("*.py")}
    modules = "|".join(["__main__", "decoding_jax", "experiments", "jax", "numpy", *sorted(tests)])
    # Before the filters of pyproject.toml, of which the last that fits a warning decides.
    config.getini("filterwarnings").insert(0, rf"error:::({modules})(\.|$)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Gives each worker neighbouring tests, which share programs, as ``--dist worksteal`` does."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves what is exhaustive of an exhaustive test to releases; see CONTRIBUTING.md."""
    for item in items:
        if len(list(item.iter_markers("exhaustive"))) > 1:
            item.add_marker("release")


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives to the end: modules and the collected tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Skips a file whose imports need an extra that is not installed."""
    report = yield
    return without_extra(report, report.call, collector)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Skips a test that needs an extra that is not installed."""
    report = yield
    return without_extra(report, call, item)


def without_extra(report: Any, call: Any, node: Any) -> Any:
    """The report of a test or a file, or that of its skip if a package of an extra is missing."""
    if report.failed and (reason := extras.wanting(call.excinfo and call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(node.path), 1, f"Skipped: {reason}")
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if file := config.getoption("--skipped-to"):
        skipped = {report.nodeid for report in terminalreporter.stats.get("skipped", [])}
        Path(file).write_text("".join(f"{name}\n" for name in sorted(skipped)))


@pytest.fixture(autouse=True, scope="module")
def few_mappings() -> Iterator[None]:
    """Drops the compiled programs once they map much memory, of which a process has so many pieces.

    Linux allows 65,530 mappings (``vm.max_map_count``); beyond them XLA's CPU compiler crashes. One
    file of tests adds up to some 10,000.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 10_000:
        drop_programs()


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Drops the compiled programs once the process has grown by 2 GB since it last did so."""
    yield
    if resident() > _KEPT["bytes"] + 2 * 2**30:
        drop_programs()


_KEPT = {"bytes": 0}  # what the process held when its programs had been dropped


def drop_programs() -> None:
    """Frees the compiled programs, and gives their memory back to the system.

    Without the latter, the C library keeps nearly all of it for the next programs, which are of
    other sizes: a process that held 713 MB with 20 programs holds 709 MB without them, and 275 MB
    once it has given back what is free.
    """
    jax.clear_caches()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)
    _KEPT["bytes"] = resident()


def resident() -> int:
    """The bytes of memory that the process holds; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


@pytest.fixture(autouse=True)
def quick_compiles(request: pytest.FixtureRequest) -> None:
    """Compiles with few optimizations, except in tests that are marked ``optimized``."""
    quick = request.node.get_closest_marker("optimized") is None
    if quick != jax.config.read("jax_disable_most_optimizations"):
        jax.clear_caches()  # A program in memory is reused whichever way it was compiled.
        jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(autouse=True)
def devices_of_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips a test that makes a mesh of more devices than there are."""

    def make_mesh(shape: Sequence[int], *args: Any, **settings: Any) -> Any:
        need_devices(math.prod(shape))
        return made(shape, *args, **settings)

    made = jax.make_mesh
    monkeypatch.setattr(jax, "make_mesh", make_mesh)


@pytest.fixture(autouse=True)
def default_keys() -> Iterator[None]:
    """T5X sets the process's default kind of keys; no test is to find what another has set."""
    before = jax.config.jax_default_prng_impl
    yield
    jax.config.update("jax_default_prng_impl", before)


@pytest.fixture(scope="session")
def google() -> Iterator[Any]:
    """The emulator of Google Cloud Storage; see ``buckets``."""
    import buckets

    with buckets.google() as server:
        yield server


@pytest.fixture(scope="session")
def amazon() -> Iterator[Any]:
    """The emulator of S3."""
    import buckets

    with buckets.amazon() as server:
        yield server


@pytest.fixture
def gs(google: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A folder of the test's own in ``gs://bucket``, with the faults of its server."""
    import buckets

    with buckets.folder("gs", google, request.node.name) as found:
        yield found


@pytest.fixture(params=["gs", "s3"])
def bucket(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A folder as ``gs``, on the emulators of Google Cloud Storage and of S3."""
    import buckets

    server = request.getfixturevalue({"gs": "google", "s3": "amazon"}[request.param])

    with buckets.folder(request.param, server, request.node.name) as found:
        yield found
