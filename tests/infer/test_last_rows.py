"""The last inputs of a refilled batch, in jobs that are shuffled, and killed while few are left."""

import functools

import jax
import numpy as np
import pytest
from infer_fakes import Digits, files_of, records_of
from machine import need_devices

import decoding_jax
from decoding_jax import Stop, infer, transforms
from decoding_jax.testing import TableLM

COUNT = 30
MODEL = TableLM.random(jax.random.key(0), 7, sharpness=2.0, zeros=0.1)
DRAWN = np.random.default_rng(0)
TEXTS = [" ".join(map(str, DRAWN.integers(1, 7, 1 + i % 5))) for i in range(COUNT)]
PENALTIES = DRAWN.uniform(0.5, 1.5, COUNT).astype(np.float32)
LIMITS = np.where(np.arange(COUNT) % 10 == 7, 40, DRAWN.integers(1, 7, COUNT))


@pytest.fixture
def run(tmp_path, monkeypatch, caplog):
    """Runs a job of eight rows, and returns the files of its directory."""
    caplog.set_level("INFO", "decoding_jax")

    def run(name, order, killed_after=None, devices=1, **settings):
        need_devices(devices)
        first = jax.devices()[:devices]
        monkeypatch.setattr(jax, "local_devices", lambda: first)
        greedy = functools.partial(
            decoding_jax.greedy,
            max_new_tokens=40,
            transform=transforms.repetition_penalty(PENALTIES[order]),
        )
        reported = []

        def report(record):
            reported.append(record)
            if len(reported) == killed_after:
                raise KeyboardInterrupt

        infer.run(
            (MODEL, Digits()),
            [infer.Item(TEXTS[i], id=int(i)) for i in order],
            greedy,
            tmp_path / name,
            report,
            stop=Stop(eos_ids=(0,), max_new_tokens=LIMITS[order]),
            **{"batch_size": 8, "shard_size": 2, "max_input_length": 16, **settings},
        )
        return files_of(tmp_path / name)

    return run


def outputs_of(files):
    """The outputs of each input by its ``id``."""
    return {record["id"]: record["outputs"] for record in records_of(files)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_job_killed_among_its_last_inputs_ends_with_the_same_bytes(
    run, caplog, tmp_path, devices
):
    order = np.arange(COUNT)
    whole = run("whole", order, devices=devices)
    assert [m for m in caplog.messages if m.startswith("compilation")] == [
        "compilation 1: 8 inputs of up to 8 tokens",
        "compilation 2: 4 inputs of up to 8 tokens",
    ]
    with pytest.raises(KeyboardInterrupt):
        run("killed", order, COUNT - 3, devices)
    assert len(list((tmp_path / "killed").glob("decodes*"))) == COUNT // 2 - 1
    assert run("killed", order, devices=devices) == whole

    shuffled = np.random.default_rng(1).permutation(COUNT)
    assert outputs_of(run("shuffled", shuffled, devices=devices)) == outputs_of(whole)
