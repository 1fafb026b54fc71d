"""The lock of a directory: one job at a time; in a bucket, the dead are replaced."""

import errno
import os
import types

import pytest

from decoding_jax.infer import locks
from decoding_jax.storage import CloudPath, StorageError

WEEK = 7.0 * 24 * 3600


class Clock:
    """A clock that passes only by ``sleep``; ``on_sleep`` is what happens in the meantime."""

    def __init__(self):
        self.now = 0.0
        self.on_sleep = lambda: None

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    names = {"monotonic": made.monotonic, "sleep": made.sleep}
    times = {"strftime": lambda form, when: "noon", "gmtime": lambda: None}
    monkeypatch.setattr(locks, "time", types.SimpleNamespace(**names, **times))
    return made


@pytest.fixture
def out(request):
    return CloudPath(f"memory://leases/{request.node.name}")


def names(directory):
    return [path.name for path in directory.iterdir()]


def dead(directory, process=0, processes=1):
    """The lock of a process that has ended without releasing it."""
    left = locks._Lease(directory, f".lock-{process}", processes, WEEK)
    left.acquire()
    return left


def test_a_live_job_keeps_others_out(out, clock):
    with locks.hold(out, seconds=WEEK) as check:
        [held] = names(out)
        assert held == ".lock-0.1"
        other = locks._Lease(out, ".lock-0", 1, WEEK)
        other._number = 1
        clock.on_sleep = other.beat  # As the thread of the first job renews it.
        line = rf"^output_dir: .* got {out}, which is in use by process {os.getpid()} on .* "
        with pytest.raises(
            ValueError, match=line + r"since noon \(the lock of a dead job lapses after 604800 s"
        ):
            locks.hold(out, seconds=WEEK).__enter__()
        check()
    assert names(out) == []


def test_a_dead_job_is_replaced_after_the_time_of_a_lease(out, clock):
    left = dead(out)
    with locks.hold(out, seconds=60.0):
        assert 60.0 <= clock.now < 70.0
        assert names(out) == [".lock-0.1", ".lock-0.2"]
        left.beat()  # It was not dead, but slow.
        with pytest.raises(StorageError, match=r"was taken over by process .* not renew its lock"):
            left.check()
        left.release()
        assert names(out) == [".lock-0.1", ".lock-0.2"]
    assert names(out) == []


def test_a_lock_that_was_cut_off_is_that_of_a_dead_job(out, clock):
    (out / ".lock-0.1").write_bytes(b'{"holder": "pro')
    with locks.hold(out):
        pass
    assert names(out) == []


def test_of_two_that_replace_a_dead_job_one_succeeds(out, clock):
    dead(out)
    second = locks._Lease(out, ".lock-0", 1, WEEK)
    first = locks._Lease(out, ".lock-0", 1, 60.0)

    def faster():
        clock.on_sleep = lambda: None
        first.acquire()
        clock.on_sleep = first.beat

    clock.on_sleep = faster
    with pytest.raises(ValueError, match="is in use by process"):
        second.acquire()
    assert names(out) == [".lock-0.1", ".lock-0.2"]


def test_a_lock_that_is_released_meanwhile_is_free(out, clock):
    left = dead(out)
    clock.on_sleep = left.release
    with locks.hold(out):
        assert names(out) == [".lock-0.1"]


def test_a_job_that_began_anew_meanwhile_keeps_its_lock(out, clock, monkeypatch):
    """The dead job's lock is replaced by that of a new job, under the same name."""
    left = dead(out)
    create = CloudPath.create

    def slow(path, data):
        if path.name == ".lock-0.2":
            monkeypatch.setattr(CloudPath, "create", create)
            left.release()
            new = dead(out)
            clock.on_sleep = new.beat
        return create(path, data)

    monkeypatch.setattr(CloudPath, "create", slow)
    with pytest.raises(ValueError, match="is in use by process"):
        locks._Lease(out, ".lock-0", 1, WEEK).acquire()
    assert names(out) == [".lock-0.1"]


def test_the_processes_of_a_job_hold_a_lock_each(out, clock):
    with locks.hold(out, 1, 2, WEEK), locks.hold(out, 0, 2, WEEK):
        assert names(out) == [".lock-0.1", ".lock-1.1"]
    assert names(out) == []
    left = dead(out, 1, 2)
    clock.on_sleep = left.beat
    with pytest.raises(ValueError, match="is in use by process"), locks.hold(out):
        pass
    assert names(out) == [".lock-1.1"]
    clock.on_sleep = lambda: None
    with locks.hold(out):
        assert names(out) == [".lock-0.1"]


def test_the_thread_renews_and_survives_a_bucket_that_is_away(out, monkeypatch):
    beats = []

    def beat(self):
        beats.append(1)
        if len(beats) == 1:
            raise StorageError("away")

    monkeypatch.setattr(locks._Lease, "beat", beat)
    with locks.hold(out, seconds=0.06) as check:
        while len(beats) < 3:
            pass
        check()


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
