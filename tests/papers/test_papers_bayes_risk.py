"""The quick form of the experiment on minimum Bayes risk, from the command line to its files."""

import json

import pytest
from pages import ROOT

from experiments.papers import command


@pytest.mark.release
def test_the_quick_form(tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "sacrebleu"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/bayes_risk_quick.gin"]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.bayes_risk", arguments) == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "bayes_risk.json").read_text())
    assert list(data["results"]) == ["alpha 0.9", "8 of 12 samples"]
    assert (tmp_path / "bayes_risk.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "bayes_risk.png").stat().st_size > 10_000


@pytest.mark.release
def test_the_quick_form_of_spread_samples(tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "sacrebleu"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/bayes_risk_spread_quick.gin"]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    status = command.main("experiments.papers.bayes_risk_spread", arguments)
    assert status == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "bayes_risk_spread.json").read_text())
    assert [row["metric"] for row in data["results"]] == ["chrf", "bleu"]
    assert (tmp_path / "bayes_risk_spread.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "bayes_risk_spread.png").stat().st_size > 10_000
