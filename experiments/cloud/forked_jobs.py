"""Batch jobs of several processes, forked from one that has imported the library, to be killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, Prompt, Stop
from decoding_jax.infer import command

SHARD_SIZE = 4
KINDS = ("greedy", "drawn")
_LONGEST_JOB = 900.0  # seconds
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL, for processes that have lost another one

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])
_CACHE = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
DRAWN = """
from __gin__ import dynamic_registration
from experiments.cloud import forked_jobs

STRATEGY = @forked_jobs.draw_tokens
"""
"""The gin file of the jobs of the kind ``drawn``."""


def draw_tokens(model: Any, prompt: Prompt, key: Array, *, stop: Stop) -> DecodeOutput:
    """A strategy that draws up to 24 tokens, which depend on the prompt and the key of each row."""
    is_token = jnp.arange(prompt.tokens.shape[1])[None] < prompt.length[:, None]
    sums = jnp.where(is_token, prompt.tokens, 0).sum(1).astype(jnp.uint32)
    words = (jax.random.key_data(key)[:, 0] + sums)[:, None, None]
    odd = 2 * jnp.arange(24, dtype=jnp.uint32)[None, None] + 1
    bits = words * (odd * jnp.uint32(0x9E3779B1)) >> 8
    length = bits[..., 0].astype(jnp.int32) % 24 + 1
    log_prob = -bits[..., 1].astype(jnp.float32) / 2.0**24
    tokens = jnp.where(jnp.arange(24)[None, None] < length[..., None], bits % 90 + 35, 0)
    return DecodeOutput(tokens.astype(jnp.int32), length, log_prob, log_prob, length < 24)


def run_command(arguments: list[str], cache: str, errors: str) -> None:
    """Runs the command of a job in a process of its own.

    Args:
      arguments: the flags.
      cache: the folder of compiled programs.
      errors: the file for what the process writes.
    """
    with open(errors, "w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    for name, value in (_CACHE | {"jax_compilation_cache_dir": cache}).items():
        jax.config.update(name, value)
    status = command.main(["decoding_jax.infer", *arguments])
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    sys.exit(status)


class Job:
    """The processes of a job.

    Args:
      folder: the folder with the model and the inputs.
      kind: one of ``KINDS``.
      out: the directory of the job.
      num_processes: how many processes share it.
    """

    def __init__(self, folder: Path, kind: str, out: Path, num_processes: int):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        bindings = {
            "MODEL_DIR": str(folder / "model"),
            "INPUT": str(folder / "inputs.txt"),
            "OUTPUT_DIR": str(out),
            "MAX_INPUT_LENGTH": 64,
            "BATCH_SIZE": 8,
            "SHARD_SIZE": SHARD_SIZE,
        }
        strategy = "strategies/greedy.gin"
        if kind == "drawn":
            strategy = str(folder / "drawn.gin")
        else:
            # A refilled batch takes 64 inputs, so a job has seven of them.
            bindings |= {"MAX_NEW_TOKENS": 24, "BATCH_SIZE": 2}
        files = ("models/directory.gin", strategy, "runs/infer.gin")
        flags = [f"--gin_file={name}" for name in files]
        flags += [f"--gin.{name}={value!r}" for name, value in bindings.items()]
        if num_processes > 1:
            flags += [
                "--distributed",
                f"--coordinator_address={address}",
                f"--num_processes={num_processes}",
            ]
        self._processes = []
        self._errors = [folder / f"errors-{i}.txt" for i in range(num_processes)]
        for i, errors in enumerate(self._errors):
            errors.write_text("")
            own = [f"--process_id={i}"] if num_processes > 1 else []
            process = _FORKS.Process(
                target=run_command, args=([*flags, *own], str(folder / "programs"), str(errors))
            )
            process.start()
            self._processes.append(process)

    def is_running(self) -> bool:
        return any(process.is_alive() for process in self._processes)

    def kill(self, one: bool, draw: random.Random) -> None:
        """Kills one process or all of them; those that are left are ended."""
        for process in [draw.choice(self._processes)] if one else self._processes:
            process.kill()
        for process in self._processes:
            process.terminate()
        self.wait(_GRACE)

    def wait(self, seconds: float = _LONGEST_JOB) -> list[tuple[int | None, str]]:
        """The exit status of each process, and what it wrote, after so many seconds at most."""
        limit = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, limit - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        texts = [file.read_text(errors="replace") for file in self._errors]
        return [(p.exitcode, text) for p, text in zip(self._processes, texts, strict=True)]
