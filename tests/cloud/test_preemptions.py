"""A job of several processes that is killed and started again ends as one that was not."""

import pytest

from experiments.cloud import preemptions


@pytest.mark.release
def test_a_job_that_is_killed_ends_with_the_same_bytes(tmp_path):
    preemptions.prepare(tmp_path)
    whole = preemptions.run_whole(tmp_path, "drawn", processes=(1,))
    assert preemptions.run_job(1, "drawn", tmp_path, *whole)["kills"]
