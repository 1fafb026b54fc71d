"""Locks an output directory in a bucket, where nothing notices that a process has ended.

The lock of process i is an object ``.lock-i.1``, created by a conditional request and written anew
every few seconds. If it stays the same for as long as a lease lasts, its holder is dead, and the
next job creates ``.lock-i.2``, which exactly one job can. Clocks are not compared.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from decoding_jax.storage import CloudPath, StorageError

_LOGGER = logging.getLogger(__name__)

_BEATS = 6  # renewals in the time of a lease
_LOOKS = 20  # looks at another job's lock in that time


@contextlib.contextmanager
def hold(
    directory: CloudPath, name: str, process: int, processes: int, seconds: float
) -> Iterator[Callable[[], None]]:
    """Keeps other jobs out of a directory in a bucket while the block runs.

    Args:
      directory: the directory.
      name: the first part of the names of locks.
      process: the index of this process in its job.
      processes: the number of processes of the job.
      seconds: how long a lock that is not renewed is respected.

    Yields:
      A function that raises ``StorageError`` if another job has taken the lock over.

    Raises:
      ValueError: if another job uses the directory; the message is one line that names the process
        that holds it.
    """
    lease = _Lease(directory, f"{name}-{process}", processes, seconds)
    lease.acquire()
    try:
        # A job of another number of processes holds locks of other names.
        for path in directory.iterdir():
            other, dot, number = path.name.rpartition(".")
            is_lock = other.startswith(f"{name}-") and dot and number.isdigit()
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
                    f"output_dir: {self._directory} is in use by {_holder(now)}; takes a directory "
                    "that no running job writes to (the lock of a dead job lapses after "
                    f"{self._seconds:g} s)"
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
