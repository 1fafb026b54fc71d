"""What a run of a job has done, in ``summary.json`` and in a line of the log."""

from __future__ import annotations

import json
from typing import NamedTuple

from decoding_jax.infer import manifest
from decoding_jax.storage import StoragePath
from decoding_jax.storage import write as write_file


class Summary(NamedTuple):
    """The counts of a job, or of this process's part of a distributed job.

    Attributes:
      inputs: the number of inputs.
      faults: the number of faulty inputs of each kind.
      finished_before: the number of shards that an earlier run had finished.
      batches: the number of batches decoded in this run; where batches are refilled, of the groups
        of inputs begun.
      compilations: the number of compilations in this run.
      tokens: the number of tokens of all completions of this run, with their end tokens.
      seconds: the time in which this run has decoded and written shards, without compilation.
      compilation_seconds: the time that compilation took in this run, or reading what an earlier
        run had compiled.
      waste: the part of the steps of rows in which a row had ended or held no input. None if
        batches were not refilled, or nothing was decoded.
    """

    inputs: int
    faults: dict[str, int]
    finished_before: int
    batches: int
    compilations: int
    tokens: int
    seconds: float
    compilation_seconds: float = 0.0
    waste: float | None = None

    @property
    def faulty(self) -> int:
        """The number of faulty inputs."""
        return sum(self.faults.values())


def file_name(process: int, num_processes: int) -> str:
    """Returns the name of the summary of a process.

    Example:
      >>> file_name(0, 1), file_name(1, 2)
      ('summary.json', 'summary-00001-of-00002.json')
    """
    of_process = f"-{process:05d}-of-{num_processes:05d}" if num_processes > 1 else ""
    return f"summary{of_process}.json"


def write(directory: StoragePath, summary: Summary, process: int, num_processes: int) -> None:
    """Writes the summary of a process atomically, in the place of that of an earlier run.

    Raises:
      OSError: if the system cannot write the file; the error names the file.
    """
    with_compilation = summary.seconds + summary.compilation_seconds
    environment = manifest.environment()
    values = {
        **summary._asdict(),
        "faulty": summary.faulty,
        "faults": dict(sorted(summary.faults.items())),
        "seconds": round(summary.seconds, 3),
        "compilation_seconds": round(summary.compilation_seconds, 3),
        "waste": None if summary.waste is None else round(summary.waste, 4),
        "tokens_per_second": _rate(summary.tokens, summary.seconds),
        "tokens_per_second_with_compilation": _rate(summary.tokens, with_compilation),
        "process": process,
        "processes": num_processes,
        "versions": environment["versions"],
        "device": environment["device"],
    }
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    write_file(directory / file_name(process, num_processes), [text])


def to_text(summary: Summary, directory: StoragePath | None) -> str:
    """Returns the line that a job logs at its end."""
    kinds = f" ({_kinds(summary)})" if summary.faults else ""
    parts = [
        f"inputs: {summary.inputs:,}",
        f"faulty: {summary.faulty:,}{kinds}",
        f"batches: {summary.batches:,}",
        f"compilations: {summary.compilations}",
    ]
    if summary.finished_before:
        parts.append(f"shards finished before: {summary.finished_before:,}")
    if directory is not None:
        parts.append(f"output: {directory}")
    return ", ".join(parts)


def fault_line(summary: Summary) -> str | None:
    """Returns the line with which a job warns of faulty inputs, or None if there are none.

    Example:
      >>> fault_line(Summary(4, {"empty": 1}, 0, 1, 1, 9, 0.5))
      'faulty inputs: 1 of 4 (empty: 1); their records have an error'
    """
    if not summary.faulty:
        return None
    return (
        f"faulty inputs: {summary.faulty:,} of {summary.inputs:,} ({_kinds(summary)}); their "
        "records have an error"
    )


def _kinds(summary: Summary) -> str:
    return ", ".join(f"{kind}: {n:,}" for kind, n in sorted(summary.faults.items()))


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 1) if count and seconds else None
