"""The lock of a directory on a disk: one job at a time."""

import errno
import os

import pytest

from decoding_jax.infer import locks
from decoding_jax.storage import CloudPath


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)


def refused(directory, *which):
    with (
        pytest.raises(
            ValueError, match=rf"expected a dir.*, which is in use by process {os.getpid()} on "
        ),
        locks.hold(directory, *which),
    ):
        pass


def test_a_directory_is_held_by_one_job(tmp_path):
    with locks.hold(tmp_path):
        refused(tmp_path)
        refused(tmp_path, 0, 2)
        refused(tmp_path, 1, 2)
    assert list(tmp_path.iterdir()) == []
    with locks.hold(tmp_path, 1, 3), locks.hold(tmp_path, 0, 3), locks.hold(tmp_path, 2, 3):
        refused(tmp_path)
        refused(tmp_path, 0, 3)
        refused(tmp_path, 1, 2)
    with locks.hold(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_last_process_removes_what_killed_ones_left(tmp_path):
    names = [".job.json.host-1-00ff.tmp", ".decodes-00000-of-00002.jsonl.host-2-00ff.tmp"]
    names += [".summary.json.host-1-00ff.tmp", ".summary-00001-of-00002.json.host-1-00ff.tmp"]
    names += [".lock-3"]  # of a process of a job that had more of them
    for name in [*names, ".own.tmp"]:
        (tmp_path / name).touch()
    with locks.hold(tmp_path, 0, 2):
        with locks.hold(tmp_path, 1, 2):
            pass
        assert (tmp_path / names[1]).exists()  # Process 0 may be writing this file.
    assert [p.name for p in tmp_path.iterdir()] == [".own.tmp"]


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def flock(handle, mode):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with locks.hold(tmp_path):
        pass
    [message] = caplog.messages
    assert "cannot be locked ([Errno" in message
    assert "nothing keeps a second job out" in message


def test_a_bucket_has_no_lock(request):
    directory = CloudPath(f"memory://locks/{request.node.name}")
    with locks.hold(directory), locks.hold(directory):
        assert list(directory.iterdir()) == []
