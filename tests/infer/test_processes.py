"""The command in separate processes: killed, refused, and several that share a job."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from infer_fakes import OWN, files_of

from decoding_jax.infer.command import main

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture
def start(byte_t5, tmp_path):
    """Starts the command with a small job."""
    lines = [f"number {i}" for i in range(150)]
    (tmp_path / "inputs.txt").write_text("\n".join(lines))
    (tmp_path / "own.gin").write_text(
        f"{OWN}"
        f"MODEL_DIR = {str(byte_t5)!r}\n"
        f"INPUT = {str(tmp_path / 'inputs.txt')!r}\n"
        "MAX_INPUT_LENGTH = 16\n"
        "SHARD_SIZE = 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    started = []

    def run(*args):
        process = subprocess.Popen(
            [sys.executable, "-m", "decoding_jax.infer", *args],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture
def argv(tmp_path):
    def of(directory):
        out = f"--gin.OUTPUT_DIR={str(tmp_path / directory)!r}"
        return [f"--gin_file={tmp_path / 'own.gin'}", out]

    return of


@pytest.mark.exhaustive
def test_a_job_ended_by_sigkill_ends_with_the_same_bytes(start, argv, tmp_path, capsys):
    """A stopped job still holds its directory; a killed job does not."""

    def shards():
        return list((tmp_path / "killed").glob("decodes-*"))

    job = start(*argv("killed"))
    while job.poll() is None and len(shards()) < 2:
        time.sleep(0.002)
    job.send_signal(signal.SIGSTOP)
    before = len(shards())
    assert main(["infer", *argv("killed")]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"is in use by process {job.pid} on {socket.gethostname()}" in printed
    assert len(shards()) == before
    job.send_signal(signal.SIGKILL)
    printed = job.communicate()[1].decode()
    assert job.returncode == -signal.SIGKILL, printed
    assert 2 <= len(shards()) < 150
    (tmp_path / "killed" / ".decodes-00149-of-00150.jsonl.host-1-00ff.tmp").write_text("half a rec")
    assert main(["infer", *argv("killed")]) == 0
    assert main(["infer", *argv("whole")]) == 0
    assert main(["infer", *argv("whole")]) == 0
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    assert len(files_of(tmp_path / "whole")) == 151


@pytest.mark.release
def test_processes_of_one_job_share_its_directory(start, argv, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    together = ["--distributed", f"--coordinator_address={address}", "--num_processes=2"]
    shards = ["--gin.SHARD_SIZE=25", '--gin.MESH={"data": 4, "model": 1}']
    jobs = [start(*argv("shared"), *shards, *together, f"--process_id={i}") for i in range(2)]
    for job in jobs:
        printed = job.communicate()[1].decode()
        assert job.returncode == 0, printed
        assert "inputs: 75, faulty: 0" in printed
    assert main(["infer", *argv("alone"), *shards]) == 0
    assert files_of(tmp_path / "shared") == files_of(tmp_path / "alone")
