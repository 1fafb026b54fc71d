"""The quick form of the experiment on speculative sampling, and its estimates."""

import json

import numpy as np
import pytest
from pages import ROOT

from experiments.papers import command, speculative_results


def row(accepted, rejected, seconds):
    """An input of 11 tokens, the first of which is from the prefill, which takes 0.5 seconds."""
    plain = {"seconds": 1.5, "tokens": 11, "scores": {"bleu": 50.0}, "latencies": [1.0, 3.0]}
    counts = {"accepted": accepted, "rejected": rejected, "blocks": 5, "emitted": 10}
    return {
        "first": {"target": 0.5, "draft": 0.05, "speculation": 0.5},
        "target": plain,
        "draft": {**plain, "seconds": 0.3},
        "2": {**plain, "seconds": 0.5 + seconds, "scores": {"bleu": 40.0}, **counts},
    }


GIVEN = {"seed": 0, "sizes": [2], "metrics": ["bleu"]}
COSTS = {"2": 1.25, "operations": 0.1}


@pytest.mark.exhaustive
def test_estimates_of_counts_and_times():
    rows = {"greedy": [row(6, 2, 0.5), row(6, 2, 1.5)]}
    found = speculative_results.analyse(rows, COSTS, GIVEN)["settings"]["greedy"]
    assert found["cost of a drafted token"].value == pytest.approx(0.25)
    value = found["ways"]["2"]
    assert value["acceptance"].value == pytest.approx(0.75)
    assert value["tokens a loop over K + 1"].value == pytest.approx(20 / 10 / 3)
    expected = 1 + 0.75 + 0.75**2
    assert value["theory of tokens a loop"] == pytest.approx(expected / 3)
    assert value["ms a token"].value == pytest.approx(3e3 / 22)
    assert value["ms a loop"].value == pytest.approx(200)
    assert value["speed-up"].value == pytest.approx(1)
    assert value["loop over a plain token"].value == pytest.approx(2)
    assert value["latency over plain"]["90"] == (1, 1, 1)
    assert value["speed-up of the loop"] == pytest.approx((1, 2 / 3, 2))
    assert value["theory of speed-up"] == pytest.approx(expected / (2 * 0.25 + 1.25))
    assert value["theory of speed-up, v = 1"] == pytest.approx(expected / (2 * 0.25 + 1))
    assert value["speed-up by counted tokens"] == pytest.approx(2 / 1.75)
    assert value["speed-up over that"].value == pytest.approx(1.75 / 2)
    assert value["operations"].value == pytest.approx(10 * 3.2 / 20)
    assert value["theory of operations"] == pytest.approx(3.2 / expected)
    assert value["score above plain"] == (-10, -10, -10)
    assert value["latency"]["50"].value == 2
    assert value["domains"] == {}


def test_acceptance_of_each_domain():
    rows = {"greedy": [row(6, 2, 0.5), row(2, 2, 0.5), row(3, 1, 0.5)]}
    found = speculative_results.analyse(rows, COSTS, GIVEN, ["code", "news", "code"])
    domains = found["settings"]["greedy"]["ways"]["2"]["domains"]
    assert list(domains) == ["code", "news"]
    assert domains["code"] == {"inputs": 2, "acceptance": pytest.approx((0.75, 0.75, 0.75))}
    assert domains["news"]["acceptance"].value == 0.5


def test_percentiles_are_of_all_tokens():
    rows = [[1.0] * 99, [100.0]]
    found = speculative_results.percentile(rows, 90, 0)
    assert found.value == 1
    assert found.high == 100
    assert np.isnan(speculative_results.percentile([[]], 90, 0).value)
    halves = speculative_results.percentile([[1.0, 2.0], []], 50, 0, below=[[2.0, 4.0], [3.0]])
    assert halves.value == 0.5


@pytest.mark.parametrize("binding", ["--gin.TABLE_SIZE=3", "--gin.REPEATS=0"])
def test_refusals(binding, monkeypatch, capsys, tmp_path):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/speculative_quick.gin", binding]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.speculative", arguments) == 1
    assert f"{binding[6:].partition('=')[0].lower()}: expected" in capsys.readouterr().err


@pytest.mark.release
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
    assert sum(d["inputs"] for d in found["ways"]["2"]["domains"].values()) == 3
    assert found["ways"]["2"]["theory of operations"] == pytest.approx((2 + 3) / 3)
    assert found["ways"]["2"]["latency"]["50"][0] > 0
    assert (tmp_path / "speculative.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "speculative.png").stat().st_size > 10_000
