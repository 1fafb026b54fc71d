"""A job of several processes that is killed and started again ends as one that was not."""

import time

import pytest

from experiments.cloud import preemptions


@pytest.mark.exhaustive
def test_a_job_that_is_killed_ends_with_the_same_bytes(tmp_path):
    preemptions.save_small_model(tmp_path / "model")
    lines = "".join(f"number {i}\n" for i in range(preemptions.INPUTS))
    (tmp_path / "inputs.txt").write_text(lines)
    started = time.monotonic()
    ((status, errors),) = preemptions.Job(tmp_path, tmp_path / "whole", 1).wait()
    assert status == 0, errors
    duration = time.monotonic() - started
    expected = preemptions.files_of(tmp_path / "whole")
    assert preemptions.run_job(1, tmp_path, duration, expected)["kills"]
