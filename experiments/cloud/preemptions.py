"""Kills batch jobs of several processes at random moments, starts them again, and compares the end.

Each job has two to four processes that find each other over loopback. At a random moment of its
life, or when a random number of its shards is finished, all its processes get SIGKILL, or one of
them, and the others are ended then, as a scheduler does. It is started again, perhaps with another
number of processes, and perhaps killed once more. In the end its directory has to hold the files of
a job that was never killed, byte for byte: every input once, and no lock that stops a start. The
inputs have several widths, and all of them share the refilled batches.

    python -m experiments.cloud.preemptions --jobs 100 --out runs/preemptions

A command that is started again goes on after the last job. Two in ten jobs decode greedily with a
small T5, in batches that are refilled. The others draw tokens without a model, by a strategy that
compiles in a fraction of a second: what is tested is the job. For the same reason, processes are
forked from one that has imported the library, and process 0 finds its programs compiled.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from decoding_jax.models import T5, T5Config, save_model
from experiments.cloud.forked_jobs import DRAWN, KINDS, SHARD_SIZE, Job

INPUTS = 400
SHARDS = INPUTS // SHARD_SIZE
PROCESSES = (2, 3, 4)


def save_small_model(directory: Path, seed: int = 3, **changes: int) -> None:
    """Saves a T5 over bytes with random weights, so that nearly all the time is not the model's.

    Args:
      directory: where it is saved.
      seed: of the weights.
      **changes: what differs from the smallest ``T5Config``.
    """
    shape: dict[str, Any] = {
        "vocab_size": 384,
        "emb_dim": 8,
        "num_heads": 1,
        "head_dim": 8,
        "mlp_dim": 8,
    }
    config = T5Config(**{**shape, "num_encoder_layers": 1, "num_decoder_layers": 1, **changes})
    normal = np.random.default_rng(seed).normal
    shapes = jax.eval_shape(lambda: T5.init(config, jax.random.key(0)))
    model = jax.tree.map(lambda x: normal(size=x.shape).astype(np.float32), shapes)
    save_model(model, directory, settings={"eos_token_id": 1})


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a job without summaries, which have times."""
    paths = [p for p in sorted(directory.iterdir()) if not p.name.startswith("summary")]
    return {p.name: p.read_bytes() for p in paths}


def text_of(i: int) -> str:
    """The text of input ``i``, of 8 to 46 bytes."""
    return f"number {i}" + " and more" * (i * i % 11 // 2)


def finished(out: Path) -> int:
    """The number of finished shards of a job."""
    return len(list(out.glob("decodes-*.jsonl")))


def prepare(folder: Path) -> None:
    """Makes the model and the inputs.

    Args:
      folder: where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_small_model(folder / "model")
    (folder / "drawn.gin").write_text(DRAWN)
    (folder / "inputs.txt").write_text("".join(text_of(i) + "\n" for i in range(INPUTS)))


def run_whole(
    folder: Path, kind: str, processes: Sequence[int] = (1, 3)
) -> tuple[float, dict[str, bytes]]:
    """Runs jobs that are not killed, and compares them.

    Args:
      folder: what ``prepare`` has made.
      kind: one of ``KINDS``.
      processes: the number of processes of each job.

    Returns:
      The seconds that the last job takes, and the files of all.

    Raises:
      RuntimeError: if one fails or does not have every input once, or they end with other files.
    """
    found, seconds = [], 0.0
    for number in processes:
        out = folder / f"{kind}-{number}"
        shutil.rmtree(out, ignore_errors=True)
        started = time.monotonic()
        ended = Job(folder, kind, out, number).wait()
        seconds = time.monotonic() - started
        if any(status for status, _ in ended):
            raise RuntimeError(f"{number} processes: {ended}")
        found.append(files_of(out))
    files = found[0]
    shards = [text for name, text in sorted(files.items()) if name.startswith("decodes-")]
    records = [json.loads(line) for text in shards for line in text.splitlines()]
    whole = [(r["index"], r["inputs"], len(r["outputs"])) for r in records]
    if whole != [(i, text_of(i), 1) for i in range(INPUTS)] or any(x != files for x in found):
        raise RuntimeError("jobs that are not killed do not have every input once")
    return seconds, files


def kill_once(folder: Path, kind: str, out: Path, seconds: float, draw: random.Random) -> dict:
    """Starts a job or starts it again, and kills it.

    Returns:
      What was drawn; the number of shards that were finished before, and when it was killed; and
      whether a process was running then.
    """
    processes, one = draw.choice(PROCESSES), draw.random() < 0.5
    before = finished(out)
    # A third of the moments are uniform in time, the others in the shards that are left.
    by_time = draw.random() < 1 / 3 or before == SHARDS
    limit = draw.uniform(0, seconds) if by_time else float("inf")
    enough = SHARDS + 1 if by_time else draw.randrange(before, SHARDS)
    job = Job(folder, kind, out, processes)
    started = time.monotonic()
    while job.is_running() and time.monotonic() - started < limit and finished(out) < enough:
        time.sleep(0.005)
    was_running = job.is_running()
    job.kill(one, draw)
    found = {"processes": processes, "one": one, "by_time": by_time, "before": before}
    return {**found, "shards": finished(out), "hit": was_running}


def run_job(
    number: int, kind: str, folder: Path, seconds: float, expected: dict[str, bytes]
) -> dict[str, Any]:
    """Runs one job, kills it once or twice while it runs, and runs it to its end.

    Args:
      number: what the moments are drawn from.
      kind: one of ``KINDS``.
      folder: what ``prepare`` has made.
      seconds: how long a job takes.
      expected: the files of a job that was not killed.

    Raises:
      RuntimeError: if it does not end with these files.
    """
    draw = random.Random(number)
    out = folder / f"job-{number}"
    wanted = draw.choice([1, 1, 2])
    kills: list[dict[str, Any]] = []
    while sum(kill["hit"] for kill in kills) < wanted:
        if not kills or not kills[-1]["hit"]:
            # Nothing to kill was left: the job begins anew.
            shutil.rmtree(out, ignore_errors=True)
            kills = []
        kills.append(kill_once(folder, kind, out, seconds, draw))
    processes = draw.choice(PROCESSES)
    ended = Job(folder, kind, out, processes).wait()
    if any(status for status, _ in ended) or files_of(out) != expected:
        raise RuntimeError(f"job {number}: {kills} {ended}")
    shutil.rmtree(out)
    return {"job": number, "kind": kind, "kills": kills, "processes": processes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    args = parser.parse_args()
    folder = args.out.resolve()
    prepare(folder)
    whole = {kind: run_whole(folder, kind) for kind in KINDS}
    log = folder / "preemptions.jsonl"
    done = log.read_text().splitlines() if log.exists() else []
    for number in tqdm(range(len(done), args.jobs), initial=len(done), total=args.jobs):
        kind = "greedy" if number % 5 == 0 else "drawn"
        row = run_job(number, kind, folder, *whole[kind])
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    kills = [kill for row in rows for kill in row["kills"]]
    partly = [kill for kill in kills if 0 < kill["shards"] < SHARDS]
    print(
        f"{len(rows)} jobs ended with the same bytes after {len(kills)} kills of running "
        f"processes, {len(partly)} of them of a job with some of its {SHARDS} shards finished"
    )


if __name__ == "__main__":
    main()
