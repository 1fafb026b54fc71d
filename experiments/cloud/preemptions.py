"""Kills batch jobs of several processes at random moments, starts them again, and compares the end.

Each job has two to four processes that find each other over loopback, and decodes lines with
refilled arithmetic samples. All its processes get SIGKILL at a random moment, or one of them, and
the others are ended then, as a scheduler does. It is started again, perhaps with another number of
processes, and perhaps killed once more. In the end its directory has to hold the files of a job
that was never killed, byte for byte: every input once, and no lock that stops a start.

    python -m experiments.cloud.preemptions --jobs 100 --out runs/preemptions

A command that is started again goes on after the last job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from decoding_jax.models import T5, T5Config, save_model

INPUTS = 160
LONGEST_WAIT = 120.0  # seconds until processes that have lost another one are ended


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


class Job:
    """The processes of a job.

    Args:
      folder: the folder with the model and the inputs.
      out: the directory of the job.
      num_processes: how many processes share it.
    """

    def __init__(self, folder: Path, out: Path, num_processes: int):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        bindings = {
            "MODEL_DIR": str(folder / "model"),
            "INPUT": str(folder / "inputs.txt"),
            "OUTPUT_DIR": str(out),
            "MAX_INPUT_LENGTH": 16,
            "MAX_NEW_TOKENS": 24,
            "NUM_SAMPLES": 2,
            "BATCH_SIZE": 8,
            "SHARD_SIZE": 4,
        }
        command = [sys.executable, "-m", "decoding_jax.infer"]
        for name in ("models/directory.gin", "strategies/arithmetic_sample.gin", "runs/infer.gin"):
            command.append(f"--gin_file={name}")
        command += [f"--gin.{name}={value!r}" for name, value in bindings.items()]
        if num_processes > 1:
            command += [
                "--distributed",
                f"--coordinator_address={address}",
                f"--num_processes={num_processes}",
            ]
        self._processes = [
            subprocess.Popen(
                [*command, *([f"--process_id={i}"] if num_processes > 1 else [])],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
            )
            for i in range(num_processes)
        ]

    def is_running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def kill(self, one: bool, draw: random.Random) -> None:
        """Kills one process or all of them; those that are left are ended."""
        for process in [draw.choice(self._processes)] if one else self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        self.wait()

    def wait(self) -> list[tuple[int, str]]:
        """The exit status of each process, and what it wrote to standard error."""
        ended = []
        for process in self._processes:
            try:
                errors = process.communicate(timeout=LONGEST_WAIT)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                errors = process.communicate()[1]
            ended.append((process.returncode, errors.decode(errors="replace")))
        return ended


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a job without summaries, which have times."""
    paths = [p for p in sorted(directory.iterdir()) if not p.name.startswith("summary")]
    return {p.name: p.read_bytes() for p in paths}


def prepare(folder: Path) -> tuple[float, dict[str, bytes]]:
    """Makes the model and the inputs, and runs a job that is not killed.

    Returns:
      The seconds that the job takes, and its files.

    Raises:
      RuntimeError: if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_small_model(folder / "model")
    (folder / "inputs.txt").write_text("".join(f"number {i}\n" for i in range(INPUTS)))
    shutil.rmtree(folder / "whole", ignore_errors=True)
    started = time.monotonic()
    ((status, errors),) = Job(folder, folder / "whole", 1).wait()
    if status:
        raise RuntimeError(errors)
    return time.monotonic() - started, files_of(folder / "whole")


def run_job(number: int, folder: Path, duration: float, expected: dict[str, bytes]) -> dict:
    """Runs one job, kills it once or twice, and runs it to its end.

    Raises:
      RuntimeError: if it does not end with the expected bytes.
    """
    draw = random.Random(number)
    out = folder / f"job-{number}"
    shutil.rmtree(out, ignore_errors=True)
    kills: list[dict[str, Any]] = []
    for _ in range(draw.choice([1, 1, 2])):
        processes, one = draw.randint(2, 4), draw.random() < 0.5
        seconds = draw.uniform(0.2, 1.0) * duration
        job = Job(folder, out, processes)
        started = time.monotonic()
        while job.is_running() and time.monotonic() - started < seconds:
            time.sleep(0.01)
        was_running = job.is_running()
        job.kill(one, draw)
        shards = len(list(out.glob("decodes-*"))) if out.exists() else 0
        kills.append({"processes": processes, "one": one, "shards": shards, "hit": was_running})
    processes = draw.randint(2, 4)
    ended = Job(folder, out, processes).wait()
    if any(status for status, _ in ended) or files_of(out) != expected:
        raise RuntimeError(f"job {number}: {kills} {ended}")
    shutil.rmtree(out)
    return {"job": number, "kills": kills, "processes": processes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    args = parser.parse_args()
    folder = args.out.resolve()
    duration, expected = prepare(folder)
    log = folder / "preemptions.jsonl"
    done = log.read_text().splitlines() if log.exists() else []
    for number in tqdm(range(len(done), args.jobs), initial=len(done), total=args.jobs):
        row = run_job(number, folder, duration, expected)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    kills = [kill for row in rows for kill in row["kills"]]
    hits = [kill for kill in kills if kill["hit"]]
    partly = [kill for kill in hits if 0 < kill["shards"] < INPUTS // 4]
    print(
        f"{len(rows)} jobs ended with the same bytes after {len(kills)} kills: {len(hits)} of "
        f"running processes, {len(partly)} of a job with some shards finished"
    )


if __name__ == "__main__":
    main()
