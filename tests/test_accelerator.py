"""The benchmark of accelerators: its command, its processes, its floors and its report."""

import json
import os
import time

import jax
import jax.numpy as jnp
import pytest

from decoding_jax.models import Llama
from experiments.benchmarks.accelerator import __main__, device, measure, models, report
from experiments.benchmarks.accelerator.settings import (
    OURS,
    SMALL,
    TRANSFORMERS,
    Setting,
    grid,
    quick,
)
from experiments.benchmarks.accelerator.worker import EndedError, Worker, attempt
from experiments.tpu_ledger.cases import abstract

NAMES = [setting.name() for setting in quick()]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs the command in its quick form, on invented figures; the third setting is interrupted."""
    measured = []
    figures = {"first_s": 0.5, "compile_s": 2.0, "step_s": 0.25, "floor_bytes": 10**9}

    def measure_one(setting):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(setting.name())
        return dict(figures, prefill_operations=10**12)

    monkeypatch.setitem(__main__.MEASURES, OURS, measure_one)
    monkeypatch.setattr(device, "reaches", lambda quick: {"bandwidth": 8e9, "product": 8e12})
    out = tmp_path / "results.json"

    def run(*argv):
        measured.clear()
        status = __main__.main(["--quick", "--out", str(out), *argv])
        return status, list(measured), out

    return run


def test_a_run_that_was_killed_continues(command, capsys):
    with pytest.raises(KeyboardInterrupt):
        command()
    assert command()[1] == NAMES[2:]
    _, measured, out = command("--again", "--only", "greedy")
    assert measured == NAMES[:1]
    found = json.loads(out.read_text())
    assert list(found["rows"]) == NAMES
    assert found["device"]["platform"] == jax.default_backend()
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{NAMES[0]}: step 250.000 ms, 0.50 of the floor, first token 500.0 ms, 0.25 of the peak,"
        " compiled in 2.0 s"
    )


def test_a_run_stops_when_its_time_is_up(command, capsys):
    assert command("--minutes", "0")[:2] == (0, [])
    assert "The time is up; the same command goes on" in capsys.readouterr().err


def test_a_file_of_another_device_is_left_alone(command, capsys):
    _, _, out = command("--only", "greedy")
    found = json.loads(out.read_text())
    found["device"]["kind"] = "TPU v5e"
    out.write_text(json.dumps(found))
    assert command()[:2] == (1, [])
    assert "--out: expected results of kind cpu, got TPU v5e" in capsys.readouterr().err
    assert json.loads(out.read_text()) == found


def test_settings_are_listed_once(capsys):
    assert __main__.main(["--list", "--only", "8B", "beam", "--out", "none"]) == 0
    expected = [s.name() for s in grid() if "8B" in s.name() and "beam" in s.name()]
    assert capsys.readouterr().out.splitlines() == expected
    names = [s.name() for s in (*grid(), *quick())]
    assert len(set(names)) == len(names)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(n, marks=pytest.mark.exhaustive) for n in NAMES[1:])]
)
def test_the_quick_form(name, tmp_path):
    out = tmp_path / "results.json"
    assert __main__.main(["--quick", "--out", str(out), "--only", name]) == 0
    [row] = json.loads(out.read_text())["rows"].values()
    assert "error" not in row
    assert row["first_s"] > 0
    if SMALL in name:
        assert row["parts_s"] > 0
        assert 1 <= row["tokens_a_block"] <= measure.NUM_DRAFT_TOKENS + 1


def test_a_process_that_is_slow_or_ends():
    with Worker() as worker:
        assert worker.ask(divmod, 7, 2, seconds=60) == (3, 1)
        assert worker.ask(divmod, 7, 0, seconds=60)["error"].startswith("ZeroDivisionError: ")
        with pytest.raises(TimeoutError):
            worker.ask(time.sleep, 60, seconds=0.1)
    with Worker() as worker, pytest.raises(EndedError, match="its process ended with code 3"):
        worker.ask(os._exit, 3, seconds=60)


def test_what_does_not_fit_is_said_in_a_line():
    def fails():
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate\n...")

    assert attempt(fails) == {"error": "does not fit in the memory of the device"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "weights"), [("1B", 2.47e9), ("8B", 15.01e9)])
def test_bytes_and_operations(name, weights):
    config = models.CONFIGS[name]
    model = abstract(lambda: Llama.init(config, jax.random.key(0)))
    assert models.weight_bytes(model) == pytest.approx(weights, rel=1e-3)
    tokens = jax.ShapeDtypeStruct((3, 5), jnp.int32)
    length = jax.ShapeDtypeStruct((3,), jnp.int32)
    cache = jax.eval_shape(lambda m, *p: m.prefill(*p, lanes=1, slots=1)[1], model, tokens, length)
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache.prompt))
    assert 3 * 5 * models.token_bytes(config) == held
    # Twice the weights for each token, but for the logits of all tokens except the last.
    logits = config.vocab_size * config.emb_dim
    products = models.weight_bytes(model) // 2 - logits
    expected = 2 * 3 * (1000 * products + logits)
    assert models.prefill_operations(config, 3, 1000) == pytest.approx(expected, rel=0.08)


@pytest.mark.exhaustive
def test_bytes_of_narrow_weights():
    """Those of 8 bits take a byte each, and their scales 4 bytes a column."""
    sizes = {
        weights: models.weight_bytes(models.random_model("tiny", weights))
        for weights in ("bfloat16", "int8", "int4")
    }
    kernels = 16 * (16 + 2 * 8 + 16 + 3 * 32)
    logits, norms = 16 * 64, 3 * 16
    assert sizes["bfloat16"] == 2 * (kernels + logits + norms)
    columns = 16 + 2 * 8 + 16 + 2 * 32 + 16
    assert sizes["int8"] == kernels + logits + 4 * (columns + 64) + 2 * norms
    assert sizes["int4"] < sizes["int8"]


def test_the_report(tmp_path):
    def row(setting, **figures):
        return setting.name(), {"setting": vars(setting), **figures}

    common = {"first_s": 0.2, "compile_s": 11.6, "prefill_operations": 5 * 10**12}
    ours = Setting("8B", "greedy", 8, prompt_length=4096)
    found = {
        "device": {"kind": "GPU", "jax": "1", "python": "3", "date": "2030-01-01",
                   "bandwidth": 2e12, "product": 5e13},
        "rows": dict([
            row(ours, step_s=0.01, floor_bytes=10**10, **common),
            row(Setting("8B", "greedy", 8, prompt_length=4096, library=TRANSFORMERS),
                step_s=0.02, first_s=0.4, compile_s=70),
            row(Setting("8B", "sample", 64), error="does not fit in the memory of the device"),
            row(Setting("8B", SMALL, 8), step_s=0.02, parts_s=0.016, tokens_a_block=2.5,
                floor_bytes=2 * 10**10, **common),
        ]),
    }  # fmt: skip
    page = tmp_path / "page.md"
    report.write(found, page)
    lines = page.read_text().splitlines()
    assert "| 8B | greedy | 8 | 1 | 4,096 | 10.00 ms | 0.50 | 800 | 20.00 ms | 12 s |" in lines
    assert (
        "| 8B | sample | 64 | 1 | 128 | does not fit in the memory of the device |  |  |  |  |"
    ) in lines
    assert "| 8B | small draft | 8 | 20.00 ms | 1.25 | 0.50 | 2.50 | 12 s |" in lines
    assert "| 8B | 8 | 4,096 | 200.0 ms | 0.50 | 400.0 ms |" in lines
    assert "GPU, JAX 1, Python 3, 2030-01-01. A copy moves 2.00 TB/s" in page.read_text()
    assert (tmp_path / "figures" / report.FIGURE).stat().st_size > 5000
