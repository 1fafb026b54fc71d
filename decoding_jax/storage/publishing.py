"""Publishes whole files, on disks and in buckets."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from decoding_jax.storage.cloud_path import CloudPath
from decoding_jax.storage.paths import StoragePath


def write(path: StoragePath, text: Iterable[str]) -> None:
    """Writes a file atomically: it gets its name only when its contents are complete.

    On a disk the text is first written to a temporary file in the same directory, under a name that
    no other process or call uses, and then renamed. In a bucket, where a file cannot be renamed
    atomically, it is sent from a temporary file on the disk, and appears when it has arrived.

    Raises:
      OSError: if the file cannot be written; the error names it.
    """
    write_bytes(path, (part.encode("utf-8") for part in text))


def write_bytes(path: StoragePath, parts: Iterable[bytes]) -> None:
    """Writes the parts of a file as ``write`` does."""
    if isinstance(path, CloudPath):
        with tempfile.NamedTemporaryFile(prefix="decoding_jax_") as file:
            file.writelines(parts)
            file.flush()
            path.upload(file.name)
        return
    with _written(path, parts) as temporary:
        temporary.replace(path)


def create(path: StoragePath, text: Iterable[str]) -> bool:
    """Writes a file atomically, unless a file of that name exists.

    If several processes create the same file with different contents at the same time, exactly one
    of them succeeds. In a bucket that takes a conditional request (for Google Cloud Storage,
    ``ifGenerationMatch=0``).

    Returns:
      Whether the file was created by this call.

    Raises:
      OSError: if the file cannot be written; the error names it.
    """
    if isinstance(path, CloudPath):
        return path.create("".join(text).encode("utf-8"))
    with _written(path, (part.encode("utf-8") for part in text)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # The file system has no hard links.
            if path.exists():
                return False
            temporary.replace(path)
    return True


@contextlib.contextmanager
def local_copy(directory: StoragePath, names: Sequence[str]) -> Iterator[Path]:
    """Yields a local directory with some files of a directory, for libraries that need a path.

    Args:
      directory: a directory. A local one is yielded itself.
      names: the names of the files, those in folders with ``/``. Those that the directory lacks
        are left out.

    Example:
      >>> folder = CloudPath("memory://examples/copied")
      >>> (folder / "a.txt").write_bytes(b"Hello.")
      >>> with local_copy(folder, ["a.txt", "b.txt"]) as local:
      ...     [(path.name, path.read_text()) for path in local.iterdir()]
      [('a.txt', 'Hello.')]
    """
    if not isinstance(directory, CloudPath):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="decoding_jax_") as folder:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                content = (directory / name).read_bytes()
                Path(folder, name).parent.mkdir(exist_ok=True)
                Path(folder, name).write_bytes(content)
        yield Path(folder)


@contextlib.contextmanager
def _written(path: Path, parts: Iterable[bytes]) -> Iterator[Path]:
    """Writes a temporary file and yields its path; the file is removed afterwards if it remains."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    unique = f"{host}-{os.getpid()}-{secrets.token_hex(8)}"
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        with temporary.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
        temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as e:
        if e.filename is None:  # The error of a full disk names no file.
            raise OSError(e.errno, e.strerror, str(path)) from e
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Makes a rename durable in case of a power failure, if the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders.
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
