"""Small models (a table with a tokenizer of digits, and a T5 over bytes) and runners of jobs."""

import jax
import numpy as np
import pytest
from infer_fakes import INFER, Digits, draw, files_of
from machine import need_devices

from decoding_jax import infer
from decoding_jax.infer.command import main
from decoding_jax.testing import TableLM
from experiments.cloud.preemptions import save_small_model


@pytest.fixture(scope="session")
def table():
    normal = np.random.default_rng(0).normal
    # The table has eleven checksums and seven tokens. NumPy makes it without a compilation.
    table, features = normal(size=(11, 8, 7, 7)), normal(size=(11, 7, 4))
    made = jax.device_put((table.astype(np.float32), features.astype(np.float32)))
    return TableLM(*made), Digits()


@pytest.fixture(scope="session")
def byte_t5(tmp_path_factory):
    directory = tmp_path_factory.mktemp("byte_t5")
    save_small_model(directory)
    return directory


@pytest.fixture
def place(request, tmp_path):
    """The folder of a job: on the disk, or by the parameter "gs" in a bucket."""
    is_bucket = getattr(request, "param", "disk") == "gs"
    return request.getfixturevalue("gs").path if is_bucket else tmp_path


@pytest.fixture
def decode(table, place, monkeypatch):
    """Runs a job and returns the files of its directory as bytes."""

    def run(lines, directory="out", devices=1, **settings):
        need_devices(devices)
        first = jax.devices()[:devices]
        monkeypatch.setattr(jax, "local_devices", lambda: first)
        path = place / "inputs.txt"
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        settings = {"strategy": draw, "batch_size": 8, "max_input_length": 16, **settings}
        infer.run(table, infer.TextLines(str(path)), output_dir=place / directory, **settings)
        return files_of(place / directory)

    return run


@pytest.fixture
def command(monkeypatch, tmp_path, byte_t5):
    """Runs the command with the byte model and a small job, in a new working directory."""
    (tmp_path / "inputs.txt").write_text("one\ntwo\n\nfour, five, six, seven\n")
    (tmp_path / "models").mkdir()  # Without the library, gin searches it as a Python package.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])

    def run(*args, files=INFER, **bindings):
        settings = {
            "MODEL_DIR": str(byte_t5),
            "INPUT": "inputs.txt",
            "OUTPUT_DIR": "out",
            "MAX_NEW_TOKENS": 3,
            "MAX_INPUT_LENGTH": 16,
            "BATCH_SIZE": 4,
            **bindings,
        }
        given = [f"--gin.{k}={v!r}" for k, v in settings.items() if v is not None]
        return main(["infer", *(f"--gin_file={f}" for f in files), *given, *args])

    return run
