"""Joins the shards of a job: ``python -m decoding_jax.infer.merge OUTPUT_DIR [-o FILE]``."""

from __future__ import annotations

import argparse
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from tqdm import tqdm

from decoding_jax.infer import manifest, parquet, progress, shards
from decoding_jax.infer.records import Record
from decoding_jax.storage import CloudPath, StoragePath, storage_path, write_bytes

_SHOWN_AFTER = 2.0  # seconds
_DESCRIPTION = "Joins the shards of a finished job in one file of JSON lines or Parquet."


def merge(
    output_dir: str | StoragePath, file: str | StoragePath | None = None
) -> tuple[StoragePath, int]:
    """Writes the records of a finished job to one file, in the order of the inputs.

    The lines of a file of JSON lines are those of the shards, byte for byte. The file is written
    atomically, in the place of a file of that name. A merge of more than two seconds shows its
    progress on standard error.

    Args:
      output_dir: the directory of the job.
      file: the path of the file. If its name ends in ``.parquet`` it is a Parquet file, and if in
        ``.gz`` it is compressed by gzip. The default is ``OUTPUT_DIR.jsonl``, beside the directory.

    Returns:
      The path of the file and the number of records.

    Raises:
      ValueError: if the job is not finished, if its shards do not have one record for each input,
        in order, if ``file`` is one of the job's own files, or if pyarrow is missing for Parquet;
        the message is one line.
      OSError: if the system cannot read or write a file.

    Example:
      >>> import json, pathlib, tempfile
      >>> directory = pathlib.Path(tempfile.mkdtemp()) / "out"
      >>> directory.mkdir()
      >>> job = {"inputs": {"count": 2}, "shard_size": 1, "name": "decodes"}
      >>> _ = (directory / "job.json").write_text(json.dumps(job))
      >>> for i in (0, 1):
      ...     record = {"index": i, "inputs": "a", "outputs": [], "seed": 0}
      ...     path = directory / f"decodes-0000{i}-of-00002.jsonl"
      ...     _ = path.write_text(json.dumps(record) + "\\n")
      >>> path, count = merge(directory)
      >>> path.name, count
      ('out.jsonl', 2)
    """
    directory = storage_path("output_dir", output_dir)
    if not directory.is_dir():
        raise ValueError(f"output_dir: expected the directory of a job, got {str(directory)!r}")
    count, shard_size, name = _job(directory)
    num_shards = -(-count // shard_size)
    paths = [directory / shards.shard_name(name, i, num_shards) for i in range(num_shards)]
    beside = directory.resolve()
    target = (
        beside.with_name(f"{beside.name}.jsonl") if file is None else storage_path("file", file)
    )
    in_folder = isinstance(target, CloudPath) or target.parent.is_dir()
    if target.is_dir() or not in_folder:
        raise ValueError(f"file: expected a file in a directory that exists, got {str(target)!r}")
    own = [directory / manifest.FILE, *paths]
    is_summary = target.resolve().parent == beside and re.fullmatch(
        r"summary(-\d+-of-\d+)?\.json", target.name
    )
    if is_summary or target.resolve() in {path.resolve() for path in own}:
        raise ValueError(f"file: expected another file than those of the job, got {str(target)!r}")
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ValueError(
            f"output_dir: expected the directory of a finished job, got {directory}, which lacks "
            f"{missing[0]} ({len(missing):,} of {num_shards:,} shards are missing)"
        )
    with tqdm(
        total=count, desc="merging", unit="record", delay=_SHOWN_AFTER, **progress.on_stderr()
    ) as bar:

        def records() -> Iterator[Record]:
            bar.reset()
            return (record for _, record in _lines(paths, count, shard_size, bar))

        if target.suffix == ".parquet":
            write_bytes(target, parquet.parts(records))
        else:
            lines = (line for line, _ in _lines(paths, count, shard_size, bar))
            write_bytes(target, _compressed(lines) if target.suffix == ".gz" else lines)
    return target, count


def _job(directory: StoragePath) -> tuple[int, int, str]:
    """The number of inputs, the number of inputs of a shard, and the name of a job."""
    path = directory / manifest.FILE
    if not path.is_file():
        raise ValueError(
            f"output_dir: expected the directory of a job, got {directory} without {path.name}"
        )
    try:
        job: Any = json.loads(path.read_text(encoding="utf-8"))
        count, shard_size, name = job["inputs"]["count"], job["shard_size"], job["name"]
    except (ValueError, KeyError, TypeError):
        raise _foreign(path) from None
    if not (isinstance(name, str) and all(type(n) is int and n > 0 for n in (count, shard_size))):
        raise _foreign(path)
    return count, shard_size, name


def _foreign(path: StoragePath) -> ValueError:
    return ValueError(f"output_dir: expected the directory of a job, got {path} of no job")


def _lines(
    paths: Sequence[StoragePath], count: int, shard_size: int, bar: tqdm
) -> Iterator[tuple[bytes, Record]]:
    """The lines of all shards and their records, each of which is checked when its turn comes."""
    for shard, path in enumerate(paths):
        first, found = shard * shard_size, 0
        wanted = min(shard_size, count - first)
        for line, record in shards.read_lines(path, first):
            found += 1
            if found > wanted:
                break
            yield line, record
            bar.update(1)
        if found != wanted:
            more = "more than " if found > wanted else ""
            raise ValueError(f"{path}: has {more}{min(found, wanted)} records of {wanted}")


def _compressed(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The parts of a gzip file, which has neither a name nor a time inside."""
    compressor = zlib.compressobj(wbits=31)
    for line in lines:
        yield compressor.compress(line)
    yield compressor.flush()


class _UsageError(ValueError):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"expected OUTPUT_DIR [-o FILE]: {message}")


def main(argv: Sequence[str] | None = None) -> int:
    """Merges the shards of the job that the command line names.

    Args:
      argv: the arguments. The default is those of the process.

    Returns:
      The exit status: 0 if the file is written, 1 if it is not, 2 if an argument is invalid, and
      130 if the merge was interrupted. Every failure is reported on standard error in one line.
    """
    parser = _Parser(prog="decoding_jax.infer.merge", description=_DESCRIPTION)
    parser.add_argument("output_dir", metavar="OUTPUT_DIR", help="the directory of a finished job")
    parser.add_argument(
        "-o",
        metavar="FILE",
        dest="file",
        help="the file to write: Parquet if it ends in .parquet, compressed if it ends in .gz "
        "(default: OUTPUT_DIR.jsonl)",
    )
    try:
        arguments = parser.parse_args(argv)
        path, count = merge(arguments.output_dir, arguments.file)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing is written", 130)
    except _UsageError as e:
        return _fail(str(e), 2)
    except (ValueError, OSError) as e:
        return _fail(re.sub(r"\s+", " ", str(e)), 1)
    print(f"records: {count:,}, output: {path}", file=sys.stderr)
    return 0


def _fail(message: str, status: int) -> int:
    print(f"decoding_jax.infer.merge: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
