"""The command line of a batch job: parses flags and gin files, runs the job and reports errors."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import gin.config as gin
import jax
from absl import flags

from decoding_jax import gin_config
from decoding_jax.gin_config import UsageError
from decoding_jax.infer import progress
from decoding_jax.infer.job import run
from decoding_jax.infer.processes import SharedError
from decoding_jax.infer.summaries import Summary
from decoding_jax.ops.jit import check_platform, keep_programs
from decoding_jax.registry import STRATEGIES

_USAGE = """Decodes a file of inputs, or a SeqIO task, as gin files configure it.

python -m decoding_jax.infer --gin_file=runs/demo.gin
python -m decoding_jax.infer --gin_file=models/translation_en_fr.gin \\
    --gin_file=strategies/sample.gin --gin_file=runs/infer.gin \\
    --gin.INPUT='"inputs.txt"' --gin.OUTPUT_DIR='"out"' --gin.SEED=1
"""


_CLUSTER_FLAGS = ("coordinator_address", "num_processes", "process_id")
_CLUSTER_USAGE = (
    "--coordinator_address=HOST:PORT, --num_processes=N and --process_id=I (0 to N - 1) "
    "on each of the processes"
)
_WEEK = 7 * 24 * 3600  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job that the command line describes.

    Args:
      argv: the program's name and its arguments. The default is ``sys.argv``.

    Returns:
      The exit status: 0 if the job succeeded, 1 if it failed or if all inputs of this process are
      faulty, 2 if flags or gin settings are invalid, and 130 if it was interrupted. Every failure
      is reported on standard error in one line.
    """
    values = _define_flags()
    try:
        return _main(values, list(sys.argv if argv is None else argv))
    except BaseException as e:
        if isinstance(e, SharedError) or not _is_waited_for():
            return _status(e, values)
        try:
            status = _status(e, values)
        except BaseException:
            status = 1
            traceback.print_exc()
        # The other processes of the mesh cannot go on. JAX would wait for them at the exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _status(error: BaseException, values: flags.FlagValues) -> int:
    """Reports an error in one line, and returns the exit status. A bug is raised again."""
    if isinstance(error, KeyboardInterrupt):
        return _fail("interrupted; the same command continues after the last finished shard", 130)
    if isinstance(error, UsageError):
        return _fail(str(error), 2)
    line = _first_line(error)
    if line is None or (values.is_parsed() and values.traceback):
        raise error
    return _fail(line, 1)


def _is_waited_for() -> bool:
    """Whether other processes wait for this one, since a mesh spans them."""
    if not jax.distributed.is_initialized():
        return False
    sizes = (math.prod(mesh.values()) for mesh in gin_config.meshes())
    return jax.process_count() > 1 and any(n > jax.local_device_count() for n in sizes)


def _main(values: flags.FlagValues, argv: list[str]) -> int:
    try:
        arguments = values(gin_config.rewrite(argv))
    except flags.Error as e:
        raise UsageError(f"{' '.join(str(e).split())}; --help lists the flags") from e
    flags.FLAGS(argv[:1], known_only=True)  # Modules that gin files import may read absl's flags.
    if values.help:
        print(_USAGE + values.get_help())
        return 0
    if len(arguments) > 1:
        raise UsageError(f"expected only flags, which --help lists, got {arguments[1]!r}")
    keep_programs()
    _join(values)
    check_platform()
    register_names()
    # The configuration that the caller may have locked is locked again afterwards.
    with gin.unlock_config():
        gin.clear_config()
        gin_config.read_gin(values.gin_file, values.gin_bindings, values.gin_search_paths)
        with progress.log_lines():
            summary: Summary = gin.get_configurable(run)()
    return 1 if 0 < summary.inputs == summary.faulty else 0


@functools.cache
def register_names() -> None:
    """Registers the public names, so that ``--gin.sample.num_samples=4`` needs no import.

    Gin files that import the modules they use (``from __gin__ import dynamic_registration``) refer
    to the same configurables.
    """
    import decoding_jax
    from decoding_jax import infer, transforms

    modules = {
        "decoding_jax": (decoding_jax, [n for n in decoding_jax.__all__ if n != "generate"]),
        "decoding_jax.transforms": (transforms, ["Chain", *transforms.__all__]),
        "decoding_jax.infer": (infer, infer.__all__),
    }
    registered = set()
    for module_name, (module, names) in modules.items():
        for name in names:
            value = getattr(module, name)
            # A transform has two names, of which gin gets the one in lower case.
            is_alias = module is transforms and name != "Chain" and name[0].isupper()
            is_configurable = inspect.isfunction(value) or inspect.isclass(value)
            if is_alias or value in registered or not is_configurable:
                continue
            registered.add(value)
            gin.external_configurable(value, name=name, module=module_name)


def _join(values: flags.FlagValues) -> None:
    """Starts ``jax.distributed`` if ``--distributed`` is given."""
    address: Any = values.coordinator_address
    num_processes: Any = values.num_processes
    process_id: Any = values.process_id
    missing = [f"--{name}" for name in _CLUSTER_FLAGS if values[name].value is None]
    given = [f"--{name}" for name in _CLUSTER_FLAGS if values[name].value is not None]
    if not values.distributed:
        if given:
            raise UsageError(f"{given[0]}: expected --distributed beside it, got none")
        return
    if given and missing:
        raise UsageError(
            f"--distributed: expected {_CLUSTER_USAGE}, got no {' and no '.join(missing)}"
        )
    if given and not re.fullmatch(r".+:\d+", address):
        raise UsageError(f"--coordinator_address: expected HOST:PORT, got {address!r}")
    if given and process_id >= num_processes:
        raise UsageError(
            f"--process_id: expected 0 to {num_processes - 1}, got {process_id} of {num_processes} "
            "processes"
        )
    try:
        # A process that has finished its shards waits for the others, which may take long.
        jax.distributed.initialize(
            address, num_processes, process_id, shutdown_timeout_seconds=_WEEK
        )
    except ValueError as e:
        raise UsageError(
            f"--distributed: expected {_CLUSTER_USAGE}, found no cluster to join"
        ) from e
    except RuntimeError as e:
        raise UsageError(f"--distributed: {_first_line(e)}") from e


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_multi_string(
        "gin_file",
        [],
        "A gin file: a path, or its name below a search path or the library's own gin folder. "
        "May be given several times; later files override earlier ones.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "gin_bindings",
        [],
        "A gin binding such as 'SEED = 1', read after the files. --gin.SEED=1 means the same.",
        flag_values=values,
    )
    flags.DEFINE_list(
        "gin_search_paths", [], "Folders that are searched for gin files.", flag_values=values
    )
    flags.DEFINE_boolean(
        "distributed",
        False,
        "Start jax.distributed, and share the shards among its processes, or a mesh of all their "
        "devices. On TPUs, under Slurm and under Open MPI the processes find each other; elsewhere "
        "give the next three flags too.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "coordinator_address",
        None,
        "With --distributed: HOST:PORT of process 0, the same for every process.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_processes",
        None,
        "With --distributed: the number of processes.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "process_id",
        None,
        "With --distributed: the index of this process, from 0.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_boolean("traceback", False, "Show the traceback of an error.", flag_values=values)
    flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", flag_values=values)
    return values


def _first_line(error: BaseException) -> str | None:
    """The message of an invalid job, without gin's additions; None for a bug in the program."""
    if isinstance(error, jax.errors.JaxRuntimeError) and _is_waited_for():
        reason = str(error).partition("\n")[0]
        return (
            f"the devices of the mesh cannot go on, as when another process ends ({reason}); the "
            "same command on all processes continues after the last finished shard"
        )
    if not isinstance(error, (ValueError, OSError, TypeError)):
        return None
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    called = re.search(r"In call to configurable '(\w+)'", text)
    if called and called[1] in STRATEGIES and first.startswith("model: ") and "got none" in first:
        return f"{first}; gin names a strategy without parentheses, @decoding_jax.{called[1]}"
    if isinstance(error, TypeError):
        if "required" not in first or "In call to configurable" not in text:
            return None
        return f"gin: {first}"
    return first


def _fail(message: str, status: int) -> int:
    print(f"decoding_jax.infer: {message}", file=sys.stderr)
    return status
