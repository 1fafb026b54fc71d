"""Jobs whose inputs, model and outputs are in a bucket end with the bytes of a job on a disk."""

import gzip
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from infer_fakes import LINES, OWN, draw, files_of

from decoding_jax import infer, storage
from decoding_jax.infer import merge
from decoding_jax.infer.command import main

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SETTINGS = {"strategy": draw, "batch_size": 8, "max_input_length": 16, "shard_size": 2}


@pytest.fixture
def run(table, monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])

    def of(folder, out):
        storage.write(folder / "inputs.txt", [f"{line}\n" for line in LINES])
        source = infer.TextLines(str(folder / "inputs.txt"))
        infer.run(table, source, output_dir=folder / out, **SETTINGS)
        return files_of(folder / out)

    return of


def test_a_job_ends_with_the_bytes_of_one_on_a_disk(run, bucket, tmp_path):
    whole = run(tmp_path, "out")
    assert len(whole) == 4
    assert run(bucket.path, "out") == whole
    assert run(bucket.path, "out") == whole
    merge.merge(tmp_path / "out")
    path, count = merge.merge(bucket.path / "out")
    assert (path, count) == (bucket.path / "out.jsonl", len(LINES))
    assert path.read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    path, _ = merge.merge(bucket.path / "out", bucket.path / "all" / "out.jsonl.gz")
    assert gzip.decompress(path.read_bytes()) == (tmp_path / "out.jsonl").read_bytes()


@pytest.mark.parametrize("fault", ["503", "cut", "lost"])
def test_requests_that_fail_change_nothing(run, gs, tmp_path, fault):
    whole = run(tmp_path, "out")
    count = itertools.count()
    gs.faults.of = lambda method, path: fault if next(count) % 3 == 0 else None
    assert run(gs.path, "out") == whole


def test_a_listing_that_lags_costs_a_shard_and_no_record(run, gs, tmp_path):
    """Finished shards that are not listed are decoded again, with the same bytes."""
    whole = run(tmp_path, "out")
    assert run(gs.path, "out") == whole
    gs.faults.of = lambda method, path: "stale" if "/o?" in path and method == "GET" else None
    run(gs.path, "out")
    gs.faults.of = lambda method, path: None
    assert files_of(gs.path / "out") == whole


@pytest.fixture
def argv(byte_t5, gs, tmp_path):
    """The arguments of a job whose model, inputs and outputs are in the bucket or on the disk."""
    lines = "".join(f"number {i}\n" for i in range(60))
    for folder in (gs.path, tmp_path):
        folder.mkdir(exist_ok=True)
        storage.write(folder / "inputs.txt", [lines])
    for file in byte_t5.iterdir():
        (gs.path / "model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "own.gin").write_text(f"{OWN}MAX_INPUT_LENGTH = 16\nSHARD_SIZE = 1\n")

    def of(folder, model):
        bindings = {
            "MODEL_DIR": model,
            "INPUT": folder / "inputs.txt",
            "OUTPUT_DIR": folder / "out",
        }
        given = [f"--gin.{name}={str(value)!r}" for name, value in bindings.items()]
        return [f"--gin_file={tmp_path / 'own.gin'}", *given]

    return {"bucket": of(gs.path, gs.path / "model"), "disk": of(tmp_path, byte_t5)}


@pytest.mark.release
def test_a_job_ended_by_sigkill_is_continued(argv, gs, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    command = [sys.executable, "-m", "decoding_jax.infer", *argv["bucket"]]
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)

    try:
        while job.poll() is None and len(finished(gs)) < 2:
            time.sleep(0.02)
    finally:
        job.send_signal(signal.SIGKILL)
        printed = job.communicate()[1].decode()
    assert job.returncode == -signal.SIGKILL, printed
    assert 2 <= len(finished(gs)) < 60
    assert main(["infer", *argv["bucket"]]) == 0
    assert main(["infer", *argv["disk"]]) == 0
    assert files_of(gs.path / "out") == files_of(tmp_path / "out")
    assert len(files_of(tmp_path / "out")) == 61
    summary = json.loads((gs.path / "out" / "summary.json").read_text())
    assert summary["finished_before"] >= 2


@pytest.mark.release
def test_processes_of_one_job_share_a_bucket(argv, gs, tmp_path, monkeypatch):
    """Two processes are killed after a few shards, and two others end the job."""
    monkeypatch.syspath_prepend(HERE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}

    def start():
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        together = ["--distributed", f"--coordinator_address={address}", "--num_processes=2"]
        command = [sys.executable, "-m", "decoding_jax.infer", *argv["bucket"], *together]
        return [
            subprocess.Popen(
                [*command, f"--process_id={i}"],
                cwd=tmp_path,
                env=environment,
                stderr=subprocess.PIPE,
            )
            for i in range(2)
        ]

    def end(jobs):
        for job in jobs:
            if job.poll() is None:
                job.kill()
        return [job.communicate()[1].decode() for job in jobs]

    first = start()
    try:
        while all(job.poll() is None for job in first) and len(finished(gs)) < 4:
            time.sleep(0.02)
    finally:
        printed = end(first)
    assert 4 <= len(finished(gs)) < 60, printed
    second = start()
    try:
        ended = [job.wait(timeout=240) for job in second]
    finally:
        printed = end(second)
    assert ended == [0, 0], printed
    assert main(["infer", *argv["disk"]]) == 0
    assert files_of(gs.path / "out") == files_of(tmp_path / "out")
    assert len(files_of(tmp_path / "out")) == 61


def finished(gs):
    return list((gs.path / "out").glob("decodes-*"))


def test_faults_of_buckets_are_one_line(argv, gs, capsys):
    gs.faults.of = lambda method, path: "503" if "inputs" in path else None
    assert main(["infer", *argv["bucket"]]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("decoding_jax.infer: gs://bucket/")
    assert "inputs.txt: cannot be read (HttpError" in printed
    assert printed.count("\n") == 1
    sent = itertools.count()  # The manifest and the first shard.
    gs.faults.of = lambda method, path: "503" if method == "POST" and next(sent) > 0 else None
    assert main(["infer", *argv["bucket"]]) == 1
    printed = capsys.readouterr().err.splitlines()
    assert "decodes-00000-of-00060.jsonl: cannot be written (HttpError" in printed[-1]
