"""The ledger of GPU programs: its command, what it reads of a program, and its page."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import gpu_ledger, results
from experiments.gpu_ledger import Setting, main

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture
def measured(monkeypatch):
    """The settings that are measured, without compiling them; the third one is interrupted."""
    settings = []

    def measure(setting):
        if len(settings) == 2:
            raise KeyboardInterrupt
        settings.append(setting.name())
        return {
            "setting": {"strategy": "greedy", "model": "1B", "rows": 8, "prompt_length": 4096,
                        "weights": "int8"},
            "kernels_a_layer": 12.5, "kernels_besides": 20.0, "step_bytes": 3e9,
            "floor_bytes": 2e9, "predicted_seconds": 1e-3,
        }  # fmt: skip

    monkeypatch.setattr(gpu_ledger, "measure", measure)
    monkeypatch.setattr(gpu_ledger, "_is_installed", lambda: True)
    monkeypatch.setattr(gpu_ledger, "set_flags", lambda: None)
    return settings


def test_a_run_that_was_killed_continues(measured, tmp_path, capsys):
    out, page = tmp_path / "ledger.json", tmp_path / "page.md"
    with pytest.raises(KeyboardInterrupt):
        main(["--out", str(out)])
    first = list(measured)
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        main(["--out", str(out)])
    main(["--list"])
    assert first + measured == capsys.readouterr().out.splitlines()[:4]
    page.write_text("\n".join(results.marks(gpu_ledger.TABLE)))
    assert main(["--out", str(out), "--report", str(page)]) == 0
    line = "| greedy | 1B, int8 | 8 | 4,096 | 12.5 | 20 | 1.50 | 1.00 ms | 0.67 |"
    assert page.read_text().count(line) == 4


def test_the_compiler_is_asked_for(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_ledger, "_is_installed", lambda: False)
    assert main(["--out", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.startswith("--tools: expected a folder with jax-cuda12-plugin")


def test_the_page_has_the_table_of_the_committed_file():
    ledger = json.loads((DOCS / "gpu_ledger.json").read_text())
    assert gpu_ledger.table(ledger) in (DOCS / "gpu.md").read_text()
    assert set(ledger["rows"]) == {setting.name() for setting in gpu_ledger.grid()}


@pytest.mark.exhaustive
@pytest.mark.skipif(not find_spec("jax_cuda12_plugin"), reason="jax-cuda12-plugin is not installed")
def test_a_program_is_read():
    row = gpu_ledger.measure(Setting("greedy", "1B", 8))
    assert 10 <= row["kernels_a_layer"] <= 14
    assert 1 <= row["step_bytes"] / row["floor_bytes"] < 1.1
