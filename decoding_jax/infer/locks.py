"""Locks an output directory on a disk, so that only one job at a time writes to it.

The lock is ``flock``, which ends with its process. It only spares work that would be done twice:
``job.json`` refuses any other job, and the shards of one job are the same bytes whoever writes
them, and appear whole. A bucket, where nothing notices that a process has ended, therefore has no
lock, and a job that is started again goes on at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from decoding_jax.storage import CloudPath, StoragePath

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOGGER = logging.getLogger(__name__)

FILE = ".lock"
_PATIENCE = 5.0  # Seconds to wait for a shared lock.
_LEFT_BEHIND = re.compile(
    r"\.((job|summary)\.json|.+-\d{5,}-of-\d{5,}\.jsonl?)(\..+)?\.tmp|\.lock-\d+"
)


@contextlib.contextmanager
def hold(directory: StoragePath, process: int = 0, processes: int = 1) -> Iterator[None]:
    """Keeps other jobs out of an output directory while the block runs.

    The lock is ``flock`` on files in the directory, so the operating system releases it when the
    process ends for any reason. A job of one process locks the file ``.lock`` exclusively. The
    processes of a distributed job share that lock, and each also locks ``.lock-INDEX``
    exclusively. A second distributed job is refused, because its process 0 cannot lock
    ``.lock-0``. The lock files are removed at the end, together with temporary files and locks that
    killed processes have left behind. A directory in a bucket is not locked.

    Raises:
      ValueError: if another job uses the directory; the message is one line that names the process
        that holds it.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as name, hold(pathlib.Path(name)):
      ...     pass
    """
    if isinstance(directory, CloudPath) or fcntl is None:
        yield
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
        yield


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
