"""Files in buckets, on emulators of Google Cloud Storage and S3 that fail."""

import gzip
import os
import sys
import threading
import urllib.request

import buckets
import pytest

from decoding_jax import storage
from decoding_jax.infer import input_files
from decoding_jax.storage import CloudPath, StorageError, cloud_path


def uploads(method, path):
    return method in ("POST", "PUT")


@pytest.mark.exhaustive
def test_files_as_on_a_disk(bucket, tmp_path):
    seen = []
    for folder in (bucket.path / "out", tmp_path / "out"):
        folder.mkdir(parents=True)
        file = folder / "a.txt"
        storage.write(file, ["ä\n", "b"])
        found = [storage.create(folder / "n", [text]) for text in ("1", "2")]
        found += [file.read_text(encoding="utf-8"), file.read_bytes(), file.suffix, file.name]
        found += [path.exists() for path in (file, folder, folder / "no", file / "no")]
        found += [path.is_file() for path in (file, folder, folder / "no")]
        found += [path.is_dir() for path in (file, folder, folder / "no")]
        found += [sorted(path.name for path in folder.glob("*.txt"))]
        found += [file.with_name("x") == folder / "x", file.parent == folder]
        with file.open("rb") as opened:
            found += list(opened)
        with pytest.raises(FileNotFoundError, match="none"):
            (folder / "none").read_bytes()
        seen.append([*found, (folder / "n").read_text()])
    assert seen[0] == seen[1]
    for path in (bucket.path / "out").iterdir():
        path.remove()
        path.remove()
    assert not (bucket.path / "out").exists()


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
def test_a_file_of_several_requests(bucket):
    data = bytes(range(256)) * (3 << 12)
    storage.write_bytes(bucket.path / "large", [data[:100], data[100:] * 3])
    whole = data + data[100:] * 2 + data[:0]
    assert (bucket.path / "large").read_range(200, 1000) == whole[200:1000]
    assert len((bucket.path / "large").read_bytes()) == len(data) * 3 - 200
    with pytest.raises(StorageError, match=r"large: cannot be read \(it ends before byte"):
        (bucket.path / "large").read_range(0, 3 * len(data))
    (bucket.path / "lines.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert list(input_files.lines(bucket.path / "lines.gz")) == [b"one\n", b"two\n"]
    (bucket.path / "cut.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-3])
    with pytest.raises(ValueError, match=r"expected a whole gzip file, got .*cut.gz' "):
        list(input_files.lines(input_files.find_inputs(str(bucket.path / "cut.gz"))))


def test_a_file_that_cannot_be_made_is_not_there(gs):
    def interrupted():
        yield "one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.write(gs.path / "file", interrupted())
    assert not (gs.path / "file").exists()


@pytest.mark.parametrize("fault", ["503", "cut", "lost"])
def test_a_request_that_fails_is_sent_again(gs, fault):
    for make in (CloudPath.write_bytes, CloudPath.create):
        path = gs.path / make.__name__
        gs.faults.first(2, fault, uploads)
        made = make(path, b"whole" * 100)
        assert made in (None, True)
        assert path.read_bytes() == b"whole" * 100
    gs.faults.first(2, fault, lambda method, path: method == "GET")
    assert path.read_bytes() == b"whole" * 100


def test_a_service_that_is_not_available_for_a_moment(bucket):
    bucket.faults.first(1, "503", uploads)
    (bucket.path / "a").write_bytes(b"whole")
    bucket.faults.first(1, "503", lambda method, path: method == "GET")
    assert (bucket.path / "a").read_bytes() == b"whole"


def test_exactly_one_of_many_creates_a_file(bucket):
    for name in ("a", "b"):
        path, made = bucket.path / name, {}

        def create(i, path=path, made=made):
            made[i] = storage.create(path, [f"by {i}"])

        threads = [threading.Thread(target=create, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [winner] = [i for i in made if made[i]]
        assert path.read_text() == f"by {winner}"


def test_a_listing_that_lags_hides_no_file_that_is_asked_for(gs):
    path = gs.path / "a"
    path.write_bytes(b"here")
    gs.faults.of = lambda method, path: "stale" if "/o?" in path and method == "GET" else None
    assert list(gs.path.iterdir()) == []
    assert path.is_file()
    assert path.exists()
    assert path.read_bytes() == b"here"
    assert not storage.create(path, ["another"])


def test_a_bucket_that_cannot_be_reached_is_one_line(gs):
    gs.faults.of = lambda method, path: "503"
    path = gs.path / "a"
    for call in (path.read_bytes, path.is_file, path.is_dir, lambda: path.write_bytes(b"")):
        with pytest.raises(StorageError, match=r"^gs://bucket/.*cannot be .*503") as e:
            call()
        assert "\n" not in str(e.value)
        assert "expected a bucket that can be reached, and credentials for it" in str(e.value)


@pytest.mark.parametrize(
    ("scheme", "variable"), [("gs", "STORAGE_EMULATOR_HOST"), ("s3", "AWS_ENDPOINT_URL")]
)
def test_a_host_without_an_answer_is_one_line_at_once(scheme, variable, monkeypatch):
    """The clients would repeat their requests for a minute."""
    pytest.importorskip({"gs": "gcsfs", "s3": "s3fs"}[scheme], reason="extra cloud")
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    cloud_path.file_system.cache_clear()
    try:
        with pytest.raises(
            StorageError, match=rf"^{scheme}://: no answer from 127.0.0.1 \("
        ) as error:
            CloudPath(f"{scheme}://bucket/file").read_bytes()
    finally:
        cloud_path.file_system.cache_clear()
    assert "\n" not in str(error.value)


def test_missing_credentials_are_one_line(amazon, monkeypatch):
    with buckets.folder("s3", amazon, "no credentials") as folder:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, os.devnull)
        with pytest.raises(
            StorageError, match=r"Unable to locate credentials\); expected a bucket"
        ):
            (folder.path / "a").read_bytes()


def test_a_bucket_that_does_not_exist(gs):
    with pytest.raises(FileNotFoundError, match=r"^gs://no-such-bucket/a: no such file"):
        CloudPath("gs://no-such-bucket/a").read_bytes()


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    cloud_path.file_system.cache_clear()
    with pytest.raises(StorageError, match=r"needs gcsfs: pip install 'decoding_jax\[cloud\]"):
        CloudPath("gs://bucket/a").read_bytes()


def test_urls_that_are_none():
    for url in ("gs://", "GS:/", "https://host/a"):
        with pytest.raises(
            ValueError, match=f"^path: expected a local path, or a URL of .*, got '{url}'"
        ):
            storage.storage_path("path", url)
    with (
        pytest.raises(ValueError, match=r"^mode: expected 'rb', got 'wb'"),
        CloudPath("gs://a").open("wb"),
    ):
        pass
