"""What a job of many inputs takes on its host: to count them, to hold a shard, to read it again.

The inputs are synthetic lines of 65 characters, and each has one output of twelve tokens. No model
is loaded. Times are of one processor.

    python -m experiments.benchmarks.job_start --inputs 1000000
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from decoding_jax.infer import TextLines, manifest, records, shards
from decoding_jax.text import Completion

T = TypeVar("T")
_PAGE = 4096 / 2**20  # MiB


def measured(what: str, function: Callable[[], T]) -> T:
    """Calls a function, and prints its processor time and what it adds to the process's memory."""
    before, start = _memory(), time.process_time()
    result = function()
    seconds, added = time.process_time() - start, _memory() - before
    print(f"{what}: {seconds:.2f} s, {added:.0f} MiB more", flush=True)
    return result


def measure(num_inputs: int, shard_size: int) -> None:
    """Prints what the parts of a job take.

    Args:
      num_inputs: the number of inputs.
      shard_size: the number of inputs of a shard.
    """
    with TemporaryDirectory() as folder:
        path, shard = Path(folder, "inputs.txt"), Path(folder, "shard.jsonl")
        with path.open("w") as file:
            for i in range(num_inputs):
                file.write(f"This is sentence number {i:8d}, which has some twelve words in it.\n")
        source = TextLines(str(path))
        measured(f"counting {num_inputs:,} inputs", lambda: manifest.survey(source, shard_size))
        items = measured(
            f"holding {shard_size:,} inputs", lambda: list(itertools.islice(source, shard_size))
        )
        text = "Ceci est la phrase, qui a une douzaine de mots."

        def made(i: int) -> records.Record:
            output = Completion(f"{text} {i}", list(range(12)), -3.2 - i, -3.2 - i, finished=True)
            return records.decoded(i, items[i].inputs, [output], seed=0)

        of_shard = measured("holding their records", lambda: [made(i) for i in range(len(items))])
        measured("writing their records", lambda: shards.write_records(shard, of_shard))
        size = shard.stat().st_size / 2**20
        found = measured(
            f"reading their records again ({size:.0f} MiB)",
            lambda: shards.read_records(shard, items, 0),
        )
        assert len(found) == len(items)


def _memory() -> float:
    """The memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--shard_size", type=int, default=65_536)
    args = parser.parse_args()
    measure(args.inputs, args.shard_size)


if __name__ == "__main__":
    main()
