"""The quick form of the experiment on speculative sampling, and its estimates."""

import json

import numpy as np
import pytest
from pages import ROOT

from experiments.papers import command, speculative_results


def row(accepted, rejected, seconds):
    """An input of 11 tokens, the first of which is from the prefill."""
    plain = {"seconds": 1.0, "tokens": 10, "scores": {"bleu": 50.0}, "latencies": [1.0, 3.0]}
    counts = {"accepted": accepted, "rejected": rejected, "blocks": 5, "emitted": 10}
    return {
        "target": plain,
        "draft": {**plain, "seconds": 0.25},
        "2": {**plain, "seconds": seconds, "tokens": 20, **counts},
    }


def test_estimates_of_counts_and_times():
    rows = {"greedy": [row(6, 2, 0.5), row(6, 2, 1.5)]}
    given = {"seed": 0, "sizes": [2], "metrics": ["bleu"]}
    found = speculative_results.analyse(rows, {"2": 1.25}, given)["settings"]["greedy"]
    assert found["cost of a drafted token"].value == pytest.approx(0.25)
    value = found["ways"]["2"]
    assert value["acceptance"].value == pytest.approx(0.75)
    assert value["tokens a loop over K + 1"].value == pytest.approx(20 / 10 / 3)
    assert value["theory of tokens a loop"] == pytest.approx((1 + 0.75 + 0.75**2) / 3)
    assert value["ms a token"] == pytest.approx((50, 25, 75))
    assert value["ms a loop"].value == pytest.approx(200)
    assert value["speed-up"].value == pytest.approx(0.1 / 0.05)
    assert value["theory of speed-up"] == pytest.approx((1 + 0.75 + 0.75**2) / (2 * 0.25 + 1.25))
    assert value["latency"]["50"].value == 2


def test_percentiles_are_of_all_tokens():
    rows = [[1.0] * 99, [100.0]]
    found = speculative_results.percentile(rows, 90, 0)
    assert found.value == 1
    assert found.high == 100
    assert np.isnan(speculative_results.percentile([[]], 90, 0).value)


@pytest.mark.parametrize("binding", ["--gin.TABLE_SIZE=3", "--gin.REPEATS=0"])
def test_refusals(binding, monkeypatch, capsys, tmp_path):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/speculative_quick.gin", binding]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.speculative", arguments) == 1
    assert f"{binding[6:].partition('=')[0].lower()}: got" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_quick_form(tmp_path, monkeypatch, capsys):
    """The draft is the target itself, so every drafted token is accepted."""
    for package in ("matplotlib", "sacrebleu"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/speculative_quick.gin"]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.speculative", arguments) == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "speculative.json").read_text())
    (found,) = data["results"]["settings"].values()
    assert found["ways"]["2"]["acceptance"] == [1, 1, 1]
    assert found["ways"]["2"]["latency"]["50"][0] > 0
    assert (tmp_path / "speculative.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "speculative.png").stat().st_size > 10_000
