"""An output directory belongs to one job, which writes complete files."""

import errno
import os
import threading

import pytest

from decoding_jax import storage
from decoding_jax.infer import manifest


class KilledError(Exception):
    pass


@pytest.mark.parametrize("linked", [True, False])
def test_of_several_claims_at_once_one_wins(tmp_path, monkeypatch, linked):
    """Two pairs of equal claims compete for each of 25 new directories."""
    if not linked:

        def link(*args):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    for trial in range(25 if linked else 1):
        directory = tmp_path / f"{trial}"
        directory.mkdir()
        start = threading.Barrier(4 if linked else 1)
        accepted, errors = [], []

        def claim(seed, directory=directory, start=start, accepted=accepted, errors=errors):
            start.wait()
            try:
                manifest.claim(directory, {"seed": seed})
            except Exception as error:
                errors.append(str(error))
            else:
                accepted.append(seed)

        seeds = [0, 1, 0, 1]
        threads = [threading.Thread(target=claim, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
            if not linked:
                thread.join()
        for thread in threads:
            thread.join()
        assert len(accepted) == 2, errors
        assert len(set(accepted)) == 1
        assert all("belongs to another job (not the same: seed)" in e for e in errors)
        assert [p.name for p in directory.iterdir()] == ["job.json"]


def test_two_writers_of_one_file_do_not_interfere(tmp_path):
    path = tmp_path / "shard"

    def interrupted(end):
        yield "a" * 100_000
        storage.write(path, ["b\n"])
        assert path.read_text() == "b\n"
        yield from end

    storage.write(path, interrupted(["c\n"]))
    assert path.read_text() == "a" * 100_000 + "c\n"

    def killed():
        raise KilledError
        yield

    with pytest.raises(KilledError):
        storage.write(path, interrupted(killed()))
    assert path.read_text() == "b\n"


def test_the_error_of_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def fsync(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "decodes-00000-of-00001.jsonl"
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'") as caught:
        storage.write(path, ["text"])
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
