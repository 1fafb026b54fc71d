"""Locks an output directory, so that only one job at a time writes to it.

On a disk the lock is ``flock``, which ends with its process. In a bucket, where nothing notices
that a process has ended, the lock of process i is an object ``.lock-i.1``, created by a conditional
request and written anew every few seconds. If it stays the same for as long as a lease lasts, its
holder is dead, and the next job creates ``.lock-i.2``, which exactly one job can. Clocks are not
compared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from decoding_jax.storage import CloudPath, StorageError, StoragePath

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOGGER = logging.getLogger(__name__)

FILE = ".lock"
LEASE = 60.0  # Seconds for which a lock in a bucket is respected without being renewed.
_PATIENCE = 5.0  # Seconds to wait for a shared lock.
_BEATS = 6  # renewals in the time of a lease
_LOOKS = 20  # looks at another job's lock in that time
_LEFT_BEHIND = re.compile(
    r"\.((job|summary)\.json|.+-\d{5,}-of-\d{5,}\.jsonl?)(\..+)?\.tmp|\.lock-\d+"
)


@contextlib.contextmanager
def hold(
    directory: StoragePath, process: int = 0, processes: int = 1, seconds: float = LEASE
) -> Iterator[Callable[[], None]]:
    """Keeps other jobs out of an output directory while the block runs.

    The lock is ``flock`` on files in the directory, so the operating system releases it when the
    process ends for any reason. A job of one process locks the file ``.lock`` exclusively. The
    processes of a distributed job share that lock, and each also locks ``.lock-INDEX``
    exclusively. A second distributed job is refused, because its process 0 cannot lock
    ``.lock-0``. The lock files are removed at the end, together with temporary files and locks that
    killed processes have left behind.

    In a bucket, a lock that is not renewed lapses after ``seconds``.

    Yields:
      A function that raises an error if, in a bucket, another job has taken the lock over.

    Raises:
      ValueError: if another job uses the directory; the message is one line that names the process
        that holds it.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as name, hold(pathlib.Path(name)):
      ...     pass
    """
    if isinstance(directory, CloudPath):
        with _leased(directory, process, processes, seconds) as check:
            yield check
        return
    if fcntl is None:
        yield lambda: None
        return
    with contextlib.ExitStack() as stack:
        distributed = processes > 1
        handles = [stack.enter_context(_locked(directory, FILE, shared=distributed))]
        if not distributed and handles[0] is not None:
            _remove_what_was_left(directory)
        if distributed:
            own_lock = _locked(directory, f"{FILE}-{process}", shared=False)
            handles.append(stack.enter_context(own_lock))
        for handle in handles:
            if handle is not None:
                _write_holder(handle)
        yield lambda: None


@contextlib.contextmanager
def _locked(directory: Path, name: str, *, shared: bool) -> Iterator[int | None]:
    path = directory / name
    handle = _acquire(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    if handle is None:
        yield None
        return
    try:
        yield handle
    finally:
        # Only the last process that shares a lock can lock it exclusively. It removes the files.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if shared:
                _remove_what_was_left(directory)
            path.unlink()
        os.close(handle)


def _write_holder(handle: int) -> None:
    """Writes the holder of the lock into its file, for the error message of other jobs."""
    text = f"process {os.getpid()} on {socket.gethostname()}".encode()
    os.pwrite(handle, text, 0)
    os.ftruncate(handle, len(text))


def _acquire(path: Path, mode: int) -> int | None:
    """Opens and locks a file. Returns its handle, or None if the file system has no locks."""
    until = time.monotonic() + (_PATIENCE if mode == fcntl.LOCK_SH else 0.0)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
            if _is_at(handle, path):  # False if the last holder has just removed the file.
                return handle
        except OSError as e:
            if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(handle)
                _LOGGER.warning(
                    "%s cannot be locked (%s): nothing keeps a second job out", path.parent, e
                )
                return None
            if time.monotonic() >= until:
                holder = os.pread(handle, 1000, 0).decode("utf-8", "replace") or "another process"
                os.close(handle)
                raise ValueError(
                    "output_dir: expected a directory that no running job writes to, got "
                    f"{path.parent}, which is in use by {holder}"
                ) from e
            # A process of an earlier distributed job may be about to end and release the lock.
            time.sleep(0.05)
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is the file of that path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _remove_what_was_left(directory: Path) -> None:
    """Removes the temporary files and locks that killed processes have left behind."""
    for path in directory.iterdir():
        if _LEFT_BEHIND.fullmatch(path.name):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _leased(
    directory: CloudPath, process: int, processes: int, seconds: float
) -> Iterator[Callable[[], None]]:
    """``hold`` in a bucket."""
    lease = _Lease(directory, f"{FILE}-{process}", processes, seconds)
    lease.acquire()
    try:
        # A job of another number of processes holds locks of other names.
        for path in directory.iterdir():
            other, dot, number = path.name.rpartition(".")
            is_lock = other.startswith(f"{FILE}-") and dot and number.isdigit()
            is_foreign = is_lock and other != lease.name and lease.of_another_job(path)
            if is_foreign and lease.watch(path):
                path.remove()
        lease.start()
        yield lease.check
    finally:
        lease.release()


class _Lease:
    def __init__(self, directory: CloudPath, name: str, processes: int, seconds: float):
        self.name = name
        self._directory = directory
        self._seconds = seconds
        self._holder = {
            "holder": f"process {os.getpid()} on {socket.gethostname()}",
            "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "processes": processes,
            "id": secrets.token_hex(8),
        }
        self._beats = 0
        self._number = 0  # 0 before the lock is acquired.
        self._lost: StorageError | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def acquire(self) -> None:
        while True:
            number = 1
            while (found := _read(self._path(number))) is not None:
                last, number = found, number + 1
            if number > 1 and not self.watch(self._path(number - 1)):
                continue  # Its holder has ended in the meantime.
            if not self._path(number).create(self._contents()):
                continue  # Another job was faster.
            self._number = number
            before = _read(self._path(number - 1)) if number > 1 else None
            after = _read(self._path(number + 1))
            if after is None and (number == 1 or before == last):
                return
            self._path(number).remove()
            self._number = 0

    def watch(self, path: CloudPath) -> bool:
        """Waits until it is clear that the holder of a lock is dead.

        Returns:
          False if the lock was released.

        Raises:
          ValueError: if the lock is renewed, so that its holder is alive.
        """
        first = _read(path)
        if first is None:
            return False
        _LOGGER.info(
            "%s is locked by %s; waiting up to %g s for a sign of it",
            self._directory,
            _holder(first),
            self._seconds,
        )
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            time.sleep(self._seconds / _LOOKS)
            now = _read(path)
            if now is None:
                return False
            if now != first:
                raise ValueError(
                    "output_dir: expected a directory that no running job writes to, got "
                    f"{self._directory}, which is in use by {_holder(now)} (the lock of a dead job "
                    f"lapses after {self._seconds:g} s)"
                )
        _LOGGER.info("%s was left by %s, which is dead", self._directory, _holder(first))
        return True

    def of_another_job(self, path: CloudPath) -> bool:
        found = _read(path)
        return found is not None and found.get("processes") != self._holder["processes"]

    def beat(self) -> None:
        """Renews the lock, or notices that another job has taken it over."""
        successor = _read(self._path(self._number + 1))
        if successor is not None:
            self._lost = StorageError(
                f"output_dir: {self._directory} was taken over by {_holder(successor)}, as this "
                f"job did not renew its lock for {self._seconds:g} s"
            )
            return
        self._beats += 1
        self._path(self._number).write_bytes(self._contents())

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        # From the last to the first, so that a job that comes now finds all or none of them.
        with contextlib.suppress(OSError):
            for number in range(self._number if self._lost is None else 0, 0, -1):
                self._path(number).remove()

    def _renew(self) -> None:
        while self._lost is None and not self._end.wait(self._seconds / _BEATS):
            try:
                self.beat()
            except OSError as e:  # The bucket may be reached again before the lease ends.
                _LOGGER.warning("%s", e)

    def _path(self, number: int) -> CloudPath:
        return self._directory / f"{self.name}.{number}"

    def _contents(self) -> bytes:
        return json.dumps({**self._holder, "beat": self._beats}).encode()


def _read(path: CloudPath) -> dict[str, Any] | None:
    """The contents of a lock; an empty object if it was cut off, and None if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _holder(contents: dict[str, Any]) -> str:
    who, since = contents.get("holder", "another process"), contents.get("since")
    return f"{who} since {since}" if since else str(who)
