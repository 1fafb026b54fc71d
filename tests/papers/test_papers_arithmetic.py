"""The quick form of the experiment on arithmetic sampling, from the command line to its files."""

import json

import pytest
from pages import ROOT

from experiments.papers import command


@pytest.mark.release
@pytest.mark.parametrize("name", ["arithmetic", "arithmetic_spread"])
def test_the_quick_form_and_its_continuation(name, tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "sacrebleu", "rouge_score"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = [f"--gin_file=configs/papers/{name}_quick.gin", f'--gin.OUTPUT_DIR="{tmp_path}"']
    assert command.main("experiments.papers.arithmetic", arguments) == 0, capsys.readouterr().err
    found = (tmp_path / "arithmetic.json").read_text()
    data = json.loads(found)
    assert data["model"] == "translation-en-fr-draft"
    assert [r["N"] for r in data["results"]["deviation"]] == [2, 4, 2, 4]
    assert (tmp_path / "arithmetic.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "arithmetic.png").stat().st_size > 10_000
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:2] + lines[3:]))
    assert command.main("experiments.papers.arithmetic", arguments) == 0
    assert (tmp_path / "arithmetic.json").read_text() == found
