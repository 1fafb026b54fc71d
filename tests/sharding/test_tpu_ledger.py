"""The ledger's command: it continues, filters and reports; its page shows the committed file."""

import json
from pathlib import Path

import pytest

from experiments import results
from experiments.tpu_ledger import report, rows, topology
from experiments.tpu_ledger.__main__ import main
from experiments.tpu_ledger.grid import grid

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture
def measured(monkeypatch):
    """The settings that are measured, without compiling them; a third one is interrupted."""
    settings = []

    def measure(setting):
        if len(settings) == 2:
            raise KeyboardInterrupt
        settings.append(setting)
        memory = dict.fromkeys(("argument", "temp", "output", "alias", "generated_code"), 2**30)
        return {
            "setting": {"strategy": setting.strategy, "model": setting.model,
                        "topology": setting.topology, "mesh": setting.mesh, "batch": setting.batch},
            "memory": memory, "step_bytes": 3, "floor_bytes": 2, "compile_cpu_s": 1.0,
            "collectives": {"all-reduce over model": {"count": 5, "bytes": 2048}},
        }  # fmt: skip

    monkeypatch.setattr(rows, "measure", measure)
    monkeypatch.setattr(topology, "is_installed", lambda: True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    return settings


def test_a_run_that_was_killed_continues(measured, tmp_path):
    out = tmp_path / "ledger.json"
    arguments = ["--out", str(out), "--only", "Llama 70B"]
    with pytest.raises(KeyboardInterrupt):
        main(arguments)
    first = [s.name() for s in measured]
    assert list(json.loads(out.read_text())["rows"]) == first
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        main(arguments)
    second = [s.name() for s in measured]
    expected = [s.name() for s in grid() if "Llama 70B" in s.name()]
    assert first + second == expected[:4]
    row = json.loads(out.read_text())["rows"][first[0]]
    assert row["jax"] == row["libtpu"] == "1"

    assert report.table(json.loads(out.read_text())).splitlines()[2] == (
        "| greedy | Llama 70B | v5e:16x16 | 16x16 | 64 | 3.0 of 16 | 1.50 | 5 all-reduce, 2.0 KB |"
        "  | 1 s |"
    )


def test_settings_are_listed_once(capsys):
    assert main(["--list", "--only", "T5"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [s.name() for s in grid() if "T5" in s.name()]
    assert len({s.name() for s in grid()}) == len(list(grid()))


def test_a_missing_compiler_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(topology, "is_installed", lambda: False)
    assert main(["--out", str(tmp_path / "ledger.json")]) == 1
    assert capsys.readouterr().err.startswith("libtpu: expected an environment with")


def test_the_page_shows_the_committed_ledger():
    ledger = json.loads((DOCS / "tpu_ledger.json").read_text())
    page = (DOCS / "tpu.md").read_text() + (DOCS / report.LEDGER).read_text()
    assert set(report.tables(ledger)) == {"what fits", "the ledger"}
    for name, table in report.tables(ledger).items():
        begin, end = results.marks(name)
        assert page.split(begin)[1].split(end)[0].strip() == table
    assert f"the table has all {len(ledger['rows'])} of the grid's settings" in page
    scalars = [
        found["count"]
        for row in ledger["rows"].values()
        for over, found in row["collectives"].items()
        if over.endswith(" over data")
    ]
    assert f"| `data` | {min(scalars)} to {max(scalars)} a step |" in page
