"""``python -m decoding_jax.infer``: flags and gin files in, a job run, faults in one line."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import gin.config as gin
import jax
from absl import flags

from decoding_jax.infer import gin_bindings, gin_files, gin_names, progress
from decoding_jax.infer.job import run

_USAGE = """Decodes a file of inputs, or a SeqIO task, as gin files say.

python -m decoding_jax.infer --gin_file=runs/demo.gin
python -m decoding_jax.infer --gin_file=models/translation_en_fr.gin \\
    --gin_file=strategies/sample.gin --gin_file=runs/infer.gin \\
    --gin.INPUT='"inputs.txt"' --gin.OUTPUT_DIR='"out"' --gin.SEED=1
"""


_CLUSTER = ("coordinator_address", "num_processes", "process_id")
_TAKES = (
    "takes --coordinator_address=HOST:PORT, --num_processes=N and --process_id=I (0 to N - 1) "
    "on each of the processes"
)
_WEEK = 7 * 24 * 3600


class UsageError(ValueError):
    """Flags or gin settings that do not serve, in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job that the arguments describe.

    Args:
      argv: the program's name and its arguments; by default those of this process.

    Returns:
      The exit status: 0, 1 for a fault of the job, 2 for one of the flags or gin settings, both
      told in one line on standard error, or 130 when it was interrupted.
    """
    values = _define_flags()
    try:
        return _main(values, list(sys.argv if argv is None else argv))
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from the last finished shard", 130)
    except UsageError as e:
        return _fail(str(e), 2)
    except (ValueError, OSError, TypeError) as e:
        line = _first_line(e)
        if line is None or (values.is_parsed() and values.traceback):
            raise
        return _fail(line, 1)


def _main(values: flags.FlagValues, argv: list[str]) -> int:
    try:
        rest = values(_rewrite(argv))
    except flags.Error as e:
        raise UsageError(f"{' '.join(str(e).split())}; --help lists the flags") from e
    flags.FLAGS(argv[:1], known_only=True)  # modules that gin files import may read absl's own
    if values.help:
        print(_USAGE + values.get_help())
        return 0
    if len(rest) > 1:
        raise UsageError(f"got the argument {rest[1]!r}; takes flags alone, --help lists them")
    _join(values)
    gin_names.register()
    # Whatever state gin was in, it is in again afterwards.
    with gin.unlock_config():
        gin.clear_config()
        _read_gin(values.gin_file, values.gin_bindings, values.gin_search_paths)
        with progress.log_lines():
            gin.get_configurable(run)()
    return 0


def _join(values: flags.FlagValues) -> None:
    """Starts ``jax.distributed`` if the flags ask for it."""
    address: Any = values.coordinator_address
    count: Any = values.num_processes
    number: Any = values.process_id
    missing = [f"--{name}" for name in _CLUSTER if values[name].value is None]
    given = [f"--{name}" for name in _CLUSTER if values[name].value is not None]
    if not values.distributed:
        if given:
            raise UsageError(f"{given[0]}: got it without --distributed; takes both")
        return
    if given and missing:
        raise UsageError(f"--distributed: got no {' and no '.join(missing)}; {_TAKES}")
    if given and not re.fullmatch(r".+:\d+", address):
        raise UsageError(f"--coordinator_address: got {address!r}; takes HOST:PORT")
    if given and number >= count:
        raise UsageError(f"--process_id: got {number} of {count} processes; takes 0 to {count - 1}")
    try:
        # A process that is done waits for the others, however long their shards take.
        jax.distributed.initialize(address, count, number, shutdown_timeout_seconds=_WEEK)
    except ValueError as e:
        raise UsageError(f"--distributed: found no cluster to join; {_TAKES}") from e
    except RuntimeError as e:
        raise UsageError(f"--distributed: {_first_line(e)}") from e


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_multi_string(
        "gin_file",
        [],
        "A gin file: a path, or its name below a search path or the library's own gin folder. "
        "May be given several times; later ones win.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "gin_bindings",
        [],
        "A gin binding such as 'SEED = 1', read after the files. --gin.SEED=1 is the same.",
        flag_values=values,
    )
    flags.DEFINE_list(
        "gin_search_paths", [], "Folders in which gin files are looked for.", flag_values=values
    )
    flags.DEFINE_boolean(
        "distributed",
        False,
        "Start jax.distributed, and share the shards among its processes. On TPUs, and under Slurm "
        "and Open MPI, it finds the other processes; elsewhere the next three flags name them.",
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
        "With --distributed: how many processes there are.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "process_id",
        None,
        "With --distributed: the number of this process, from 0.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "traceback", False, "Show where in the program a fault arose.", flag_values=values
    )
    flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", flag_values=values)
    return values


def _rewrite(argv: list[str]) -> list[str]:
    """``--gin.NAME=VALUE`` as ``--gin_bindings=NAME = VALUE``."""
    rewritten = []
    for argument in argv:
        if match := re.match(r"--?gin\.([^=]*)(=?)(.*)$", argument, re.DOTALL):
            name, equals, value = match.groups()
            if not equals or not name:
                raise UsageError(f"got {argument}; takes --gin.NAME=VALUE")
            argument = f"--gin_bindings={name} = {value}"
        rewritten.append(argument)
    return rewritten


def _read_gin(files: list[str], bindings: list[str], search_paths: list[str]) -> None:
    if not files and not bindings:
        raise UsageError("--gin_file: got none; takes one such as --gin_file=runs/demo.gin")
    try:
        with _includes_by_name(search_paths):
            for name in files:
                gin.parse_config_file(name)
        given = []
        for binding in bindings:
            gin.parse_config(binding)
            given += gin_bindings.bindings_in(binding)
        gin_bindings.excuse_unread()
        gin.finalize()
        gin_bindings.refuse_unread(given)
    except Exception as e:  # gin raises most kinds, whatever went wrong with a name
        raise UsageError(_explain(e)) from e


@contextlib.contextmanager
def _includes_by_name(search_paths: list[str]) -> Iterator[None]:
    """gin finds files, and those that they include, as ``gin_files.find`` does.

    By itself gin takes ``models/x.gin`` for a file in a Python package ``models`` as well, and
    fails where there is a folder of that name in the working directory.
    """
    parse = gin.parse_config_file

    def parse_by_name(name: str, *args: Any, **kwargs: Any) -> Any:
        return parse(str(gin_files.find(name, search_paths).resolve()), *args, **kwargs)

    gin.parse_config_file = parse_by_name
    try:
        yield
    finally:
        gin.parse_config_file = parse


def _explain(error: Exception) -> str:
    """One line for what gin tells in several."""
    text = " ".join(str(error).split())
    missing = r"for '(\w+)/gin\.macro' in config|(\w+)/(?:gin\.)?macro\.value set to"
    if match := re.search(missing, text):
        name = match[1] or match[2]
        return f"gin: {name} has no value; takes one from a gin file or --gin.{name}=..."
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        return f"gin: cannot read {line!r}; text is put in quotes, --gin.NAME='\"text\"'"
    return f"gin: {text}"


def _first_line(error: Exception) -> str | None:
    """What a fault of the job says, without what gin adds; None for a fault of the program."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if isinstance(error, TypeError):
        if "required" not in first or "In call to configurable" not in text:
            return None
        return f"gin: {first}"
    return first


def _fail(message: str, status: int) -> int:
    print(f"decoding_jax.infer: {message}", file=sys.stderr)
    return status
