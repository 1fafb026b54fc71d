"""Paths in buckets, through fsspec."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import importlib
import logging
import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

_BLOCK = 8 << 20  # bytes of one request of a file that is read in order
_MAX_REASON = 200  # characters
_SECONDS = 5.0  # to wait for a host
_PART = 16 << 20  # bytes of one of several simultaneous requests


class StorageError(OSError):
    """A bucket cannot be reached, read or written. The message is one line with the URL."""


class _Backend(NamedTuple):
    module: str
    name: str
    options: Mapping[str, Any]


# A listing that is kept would hide what other processes write.
_BACKENDS = {
    "gs": _Backend("gcsfs.core", "GCSFileSystem", {"consistency": "md5"}),
    "s3": _Backend("s3fs", "S3FileSystem", {}),
    "memory": _Backend("fsspec.implementations.memory", "MemoryFileSystem", {}),
}
SCHEMES = tuple(_BACKENDS)


@dataclasses.dataclass(frozen=True, order=True)
class CloudPath:
    """A file or a folder in a bucket, with the methods of ``pathlib.Path`` that are used here.

    A file has its name only when it is complete. Its existence and its contents are always read
    from the file itself, so a listing that lags behind affects only ``is_dir``, ``iterdir`` and
    ``glob``.

    Attributes:
      url: the URL without a slash at its end, such as ``"gs://bucket/out"``.

    Example:
      >>> path = CloudPath("memory://examples/out") / "a.txt"
      >>> path.write_bytes(b"Hello.")
      >>> path.read_text(), path.name, path.parent
      ('Hello.', 'a.txt', CloudPath(url='memory://examples/out'))
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: object) -> CloudPath:
        return CloudPath(f"{self.url}/{name}".rstrip("/"))

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def key(self) -> str:
        """The bucket and the path in it."""
        return self.url.partition("://")[2]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> CloudPath:
        return CloudPath(self.url.rpartition("/")[0])

    @property
    def suffix(self) -> str:
        start, dot, end = self.name.rpartition(".")
        return dot + end if start else ""

    def with_name(self, name: str) -> CloudPath:
        return self.parent / name

    def resolve(self) -> CloudPath:
        return self

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        with _one_line(self, "read"):
            try:
                return self._files.info(self.key)["type"] == "file"
            except FileNotFoundError:
                return False

    def is_dir(self) -> bool:
        """Whether there is a file below this path; buckets have no empty folders."""
        return any(True for _ in self.iterdir())

    def iterdir(self) -> Iterator[CloudPath]:
        """Yields the files and folders in this folder, none if there is no such folder."""
        with _one_line(self, "listed"):
            try:
                found = self._files.ls(self.key, detail=False, refresh=True)
            except (FileNotFoundError, NotADirectoryError):
                return
        names = {str(path).rstrip("/").rpartition("/")[2] for path in found}
        # A file is listed as itself.
        if not (names == {self.name} and self.is_file()):
            yield from (self / name for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[CloudPath]:
        """Yields the files and folders in this folder whose names match a pattern."""
        yield from (p for p in self.iterdir() if fnmatch.fnmatchcase(p.name, pattern))

    def matches(self) -> list[CloudPath]:
        """Returns the files that this path names as a pattern, sorted.

        ``*`` and ``?`` stand for any characters of a name, ``[ab]`` for one of these, and ``**``
        for any folders. As on a disk, hidden files, whose names begin with a dot, do not match.
        """
        with _one_line(self, "listed"):
            found = self._files.glob(self.key, detail=True)
        keys = [str(key).lstrip("/") for key, info in found.items() if info["type"] == "file"]
        files = [CloudPath(f"{self.scheme}://{key}") for key in keys]
        return sorted(f for f in files if not f.name.startswith("."))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder is there as soon as it has a file."""

    def read_bytes(self) -> bytes:
        with _one_line(self, "read"):
            return self._files.cat_file(self.key)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def read_range(self, start: int, stop: int) -> bytes:
        """Returns some bytes of the file, long ranges by several requests at a time.

        Raises:
          StorageError: if the file ends before ``stop``.
        """
        starts = list(range(start, stop, _PART))
        stops = [min(first + _PART, stop) for first in starts]
        keys = [self.key] * len(starts)
        with _one_line(self, "read"):
            parts = self._files.cat_ranges(keys, starts, stops, on_error="raise")
            if sum(map(len, parts)) != stop - start:
                raise EOFError(f"it ends before byte {stop}")
        return b"".join(parts)

    @contextlib.contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """Opens the file to read its bytes in order; errors while it is read are of one line."""
        if mode != "rb":
            raise ValueError(f"mode: expected 'rb', got {mode!r}")
        with _one_line(self, "read"):
            file = self._files.open(self.key, "rb", block_size=_BLOCK)
        with file:
            yield _Reader(self, file)  # type: ignore[misc]

    def write_bytes(self, data: bytes) -> None:
        """Writes the file in one piece, in the place of an earlier one."""
        with _one_line(self, "written"):
            self._files.pipe_file(self.key, data)

    def create(self, data: bytes) -> bool:
        """Writes the file unless there is one, by a conditional request to the bucket.

        Returns:
          Whether the file contains the data of this call. It does if an answer was lost, and the
          request was sent again.
        """
        with _one_line(self, "written"):
            try:
                self._files.pipe_file(self.key, data, mode="create")
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):
                    return self._files.cat_file(self.key) == data
                return False
        return True

    def upload(self, local: str) -> None:
        """Copies a local file to this path, which names it once it has arrived whole."""
        with _one_line(self, "written"):
            self._files.put_file(local, self.key)

    def remove(self) -> None:
        """Removes the file, if it is there."""
        with contextlib.suppress(FileNotFoundError), _one_line(self, "removed"):
            self._files.rm_file(self.key)

    @property
    def _files(self) -> Any:
        return file_system(self.scheme)


class _Reader:
    """Lines of an open file in a bucket, whose errors are of one line."""

    def __init__(self, path: CloudPath, file: Any):
        self._path = path
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            with _one_line(self._path, "read"):
                return value(*args, **kwargs)

        return call


@functools.cache
def file_system(scheme: str) -> Any:
    """Returns the one file system of fsspec for a scheme.

    Raises:
      StorageError: if its package is not installed.
    """
    backend = _BACKENDS[scheme]
    try:
        module = importlib.import_module(backend.module)
    except ImportError as e:
        raise StorageError(
            f"{scheme}://: needs {backend.module.partition('.')[0]}: "
            "pip install 'decoding_jax[cloud]'"
        ) from e
    _check_reachable(scheme)
    # Without a handler of the program's own, failed requests would be logged with tracebacks.
    logging.getLogger(backend.module.partition(".")[0]).addHandler(logging.NullHandler())
    return getattr(module, backend.name)(
        use_listings_cache=False, skip_instance_cache=True, **backend.options
    )


def _check_reachable(scheme: str) -> None:
    """Asks once for the host of a scheme, since the clients repeat a request for a minute.

    Behind a proxy nothing is asked, and of AWS, whose hosts depend on the region, an address alone.

    Raises:
      StorageError: for a host that has no address or gives no answer within some seconds.
    """
    variables = {"gs": ["STORAGE_EMULATOR_HOST"], "s3": ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]}
    named = [url for name in variables.get(scheme, ()) if (url := os.environ.get(name))]
    hosts = {"gs": "https://storage.googleapis.com", "s3": "https://s3.amazonaws.com"}
    if scheme not in hosts or urllib.request.getproxies():
        return
    url = next(iter(named), hosts[scheme])
    parsed = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    port = parsed.port or {"http": 80}.get(parsed.scheme, 443)
    try:
        if named or scheme == "gs":
            socket.create_connection((parsed.hostname or "", port), _SECONDS).close()
        else:
            socket.getaddrinfo(parsed.hostname, port)
    except OSError as e:
        raise StorageError(
            f"{scheme}://: no answer from {parsed.hostname} ({e}); expected a bucket that can be "
            "reached"
        ) from e


@contextlib.contextmanager
def _one_line(path: CloudPath, done: str) -> Iterator[None]:
    """Turns the errors of a request, which are of many types, into one line that names the URL."""
    try:
        yield
    except FileNotFoundError as e:
        raise FileNotFoundError(f"{path}: no such file") from e
    except (FileExistsError, StorageError):
        raise
    except EOFError as e:
        raise StorageError(f"{path}: cannot be {done} ({e})") from e
    except Exception as e:
        reason = " ".join(str(e).split())[:_MAX_REASON] or "no answer"
        raise StorageError(
            f"{path}: cannot be {done} ({type(e).__name__}: {reason}); expected a bucket that can"
            " be reached, and credentials for it"
        ) from e
