"""One job at a time in an output directory."""

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

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOGGER = logging.getLogger(__name__)

FILE = ".lock"
_PATIENCE = 5.0  # seconds
_TEMPORARY = re.compile(r"\.(job\.json|.+-\d{5,}-of-\d{5,}\.jsonl)(\..+)?\.tmp")


@contextlib.contextmanager
def hold(directory: Path, process: int = 0, processes: int = 1) -> Iterator[None]:
    """Keeps other jobs out of an output directory for as long as the block runs.

    The lock is ``flock`` on files in the directory: the system releases it when the process ends,
    however it ends. A job of one process holds ``.lock`` exclusively. The processes of a
    distributed job share it, and each holds ``.lock-INDEX`` exclusively, so that a second job of
    that kind is kept out: its process 0 finds the lock of process 0 taken. The files are removed at
    the end, and so are temporary files that killed processes left behind.

    Args:
      directory: an existing directory.
      process: the index of this process in its job.
      processes: how many processes the job has.

    Raises:
      ValueError: in one line, with the process that holds the directory.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as name, hold(pathlib.Path(name)):
      ...     pass
    """
    if fcntl is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        alone = processes == 1
        handles = [stack.enter_context(_locked(directory, FILE, shared=not alone))]
        if alone and handles[0] is not None:
            _sweep(directory)
        if not alone:
            slot = _locked(directory, f"{FILE}-{process}", shared=False)
            handles.append(stack.enter_context(slot))
        for handle in handles:
            if handle is not None:
                _sign(handle)
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
        # The last process that shares a lock is alone with it, and removes what there is to remove.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if shared:
                _sweep(directory)
            path.unlink()
        os.close(handle)


def _sign(handle: int) -> None:
    """Writes who holds the lock into its file, for the error of those that it keeps out."""
    text = f"process {os.getpid()} on {socket.gethostname()}".encode()
    os.pwrite(handle, text, 0)
    os.ftruncate(handle, len(text))


def _acquire(path: Path, mode: int) -> int | None:
    """An open file that is locked; None where the file system has no locks."""
    until = time.monotonic() + (_PATIENCE if mode == fcntl.LOCK_SH else 0.0)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
            if _is_at(handle, path):  # and not one that its last holder has just removed
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
                    f"output_dir: {path.parent} is in use by {holder}; "
                    "takes a directory that no running job writes to"
                ) from e
            # Another process of a distributed job may be about to end, which takes a moment.
            time.sleep(0.05)
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sweep(directory: Path) -> None:
    """Removes the temporary files of processes that were killed."""
    for path in directory.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
