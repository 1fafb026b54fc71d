"""Two processes whose devices are one mesh: what they agree on, and jobs that they run together."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from infer_fakes import files_of, records_of

from decoding_jax.infer import processes
from decoding_jax.infer.command import main
from decoding_jax.infer.processes import Processes, SharedError
from experiments.cloud.preemptions import save_small_model

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def both(monkeypatch):
    """Calls a function with ``Processes`` in two threads that exchange texts as processes do."""
    barrier, texts, me = threading.Barrier(2, timeout=10), ["", ""], threading.local()

    def exchanged(text):
        texts[me.index] = text
        barrier.wait()
        found = list(texts)
        barrier.wait()
        return found

    monkeypatch.setattr(processes, "_exchanged", exchanged)

    def call(function):
        results = [None, None]

        def run(index):
            me.index = index
            try:
                results[index] = function(Processes(index, 2, one_program=True))
            except SharedError as e:
                results[index] = str(e)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return call


def test_process_0_decides_and_an_error_is_everyones(both):
    def fail():
        raise OSError("no space left\nsecond line")

    assert both(lambda p: p.first(lambda: p.index + 5)) == [5, None]
    assert both(lambda p: p.agreed(lambda: [p.index, {"a": 1}])) == [[0, {"a": 1}]] * 2
    assert both(lambda p: p.each(lambda: p.index)) == [0, 1]
    assert both(lambda p: p.first(fail)) == ["no space left"] * 2
    assert both(lambda p: p.each(fail if p.index else lambda: None)) == ["no space left"] * 2
    assert both(lambda p: p.check_same({"seed": 0, "gin": ["a"]})) == [None] * 2
    expected = (
        "process 1: expected the same files, settings and inputs on all processes of a mesh, got "
        "another job than process 0 (not the same: inputs, name)"
    )
    settings = [{"inputs": 3, "seed": 0}, {"inputs": 4, "seed": 0, "name": "x"}]
    assert both(lambda p: p.check_same(settings[p.index])) == [expected] * 2
    assert both(lambda p: (p.writes, p.writer, p.assigned(5, 2))) == [
        (True, (0, 1), [0, 1, 2, 3, 4]),
        (False, (0, 1), [0, 1, 2, 3, 4]),
    ]


def test_processes_with_shards_of_their_own_exchange_nothing():
    alone = Processes(1, 2, one_program=False)
    assert alone.first(lambda: 5) == alone.agreed(lambda: 5) == alone.each(lambda: 5) == 5
    alone.check_same({"seed": 0})
    assert alone.writes
    assert (alone.writer, alone.assigned(5)) == ((1, 2), [1, 3])
    assert alone.assigned(7, together=2) == [2, 3, 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A T5 with eight heads, and inputs, one of them faulty."""
    directory = tmp_path_factory.mktemp("one_program")
    save_small_model(directory / "model", num_heads=8, head_dim=2)
    (directory / "inputs.txt").write_text("".join(f"number {i * i}\n" for i in range(9)) + "\n")
    return directory


def argv(folder, out, mesh, rows=4):
    bindings = {
        "MODEL_DIR": str(folder / "model"),
        "INPUT": str(folder / "inputs.txt"),
        "OUTPUT_DIR": str(out),
        "MAX_INPUT_LENGTH": 16,
        "MAX_NEW_TOKENS": 8,
        "BATCH_SIZE": rows,
        "SHARD_SIZE": 2,
        "MESH": mesh,
    }
    files = ("models/directory.gin", "strategies/greedy.gin", "runs/infer.gin")
    return [
        *(f"--gin_file={name}" for name in files),
        *(f"--gin.{name}={value!r}" for name, value in bindings.items()),
        "--gin.infer.run.with_token_log_probs=True",
        "--gin.infer.run.buckets=[9]",
    ]


def start(folder, out, *of_one, mesh=None, rows=4):
    """Starts two processes of four devices each, the second with further arguments."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    together = ["--distributed", f"--coordinator_address={address}", "--num_processes=2"]
    devices = "--xla_force_host_platform_device_count="
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace(f"{devices}8", f"{devices}4"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    given = argv(folder, out, mesh or {"model": 8}, rows)
    command = [sys.executable, "-m", "decoding_jax.infer", *given]
    return [
        subprocess.Popen(
            [*command, *together, f"--process_id={i}", *(of_one if i else ())],
            stderr=subprocess.PIPE,
            env=environment,
        )
        for i in range(2)
    ]


def end(jobs):
    """The exit status of each process, and what it printed."""
    try:
        printed = [job.communicate(timeout=120)[1].decode() for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    return [job.returncode for job in jobs], printed


@pytest.mark.release
def test_a_mesh_of_two_processes_decodes_as_one_device(folder, tmp_path):
    """One of them is killed; the other one ends by itself, and both are started again."""
    out = tmp_path / "two"
    jobs = start(folder, out)
    while not list(out.glob("decodes-*")) and all(job.poll() is None for job in jobs):
        time.sleep(0.002)
    jobs[1].send_signal(signal.SIGKILL)
    (status, killed), (printed, _) = end(jobs)
    assert (status, killed) == (1, -signal.SIGKILL), printed
    assert "the same command on all processes continues" in printed.splitlines()[-1]
    finished = len(list(out.glob("decodes-*")))
    assert 1 <= finished < 5
    status, printed = end(start(folder, out))
    assert status == [0, 0], printed
    for text in printed:
        assert "inputs: 10, faulty: 1 (empty: 1)" in text
        assert f"shards finished before: {finished}" in text
    assert ["input/s]" in text for text in printed] == [True, False]

    check_as_on_one_device(folder, out, tmp_path / "one")
    assert json.loads((out / "summary.json").read_text())["processes"] == 1


@pytest.mark.release
def test_rows_that_are_spread_over_processes_are_refilled(folder, tmp_path):
    """The batch gets fewer rows in the end, which are still spread."""
    status, printed = end(start(folder, tmp_path / "two", mesh={"data": 2, "model": 4}, rows=8))
    assert status == [0, 0], printed
    assert not any("not refilled" in text for text in printed)
    assert all(": 4 inputs of up to" in text for text in printed)
    check_as_on_one_device(folder, tmp_path / "two", tmp_path / "one", rows=8)


def check_as_on_one_device(folder, out, directory, rows=4):
    """The same records as those of a job of one process, with rounding of its own."""
    assert main(["infer", *argv(folder, directory, None, rows)]) == 0
    two, one = files_of(out), files_of(directory)
    assert two.keys() == one.keys()
    for found, expected in zip(records_of(two), records_of(one), strict=True):
        for made, output in zip(found.pop("outputs"), expected.pop("outputs"), strict=True):
            for name in ("log_prob", "score", "token_log_probs"):
                np.testing.assert_allclose(made.pop(name), output.pop(name), rtol=2e-5, atol=2e-5)
            assert made == output
        assert found == expected


@pytest.mark.release
def test_processes_with_different_inputs_are_refused(folder, tmp_path):
    (tmp_path / "other.txt").write_text("another input\n")
    other = f"--gin.INPUT={str(tmp_path / 'other.txt')!r}"
    status, printed = end(start(folder, tmp_path / "out", other))
    assert status == [1, 1], printed
    for text in printed:
        assert "got another job than process 0 (not the same: inputs)" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.release
def test_a_process_that_fails_alone_does_not_wait(folder, tmp_path):
    missing = f"--gin.MODEL_DIR={str(tmp_path / 'missing')!r}"
    status, printed = end(start(folder, tmp_path / "out", missing))
    assert 0 not in status
    assert "missing: no such directory; expect" in printed[1].splitlines()[-1], printed[1]
