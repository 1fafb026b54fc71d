"""The quick form of the experiment on best-k search, and its figures of single inputs."""

import json

import numpy as np
import pytest
from pages import ROOT

from decoding_jax.text import Completion
from experiments.papers import best_k, best_k_results, command
from experiments.papers.metrics import Scores


def completion(text, finished=True):
    return Completion(text, [3], -1.0, -1.0, finished)


def test_the_figures_of_an_input():
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    measure = best_k.Measure(None, Scores(["rouge1"], [["a b", "a c"]]), 0)
    row = [completion("a b"), completion("a b"), completion("d"), completion("a", finished=False)]
    figures = measure.figures(0, best_k.completed(row))
    assert (figures["S"], figures["unique"]) == (3, 2)
    assert figures["distinct-1"] == pytest.approx(3 / 5)
    assert figures["rouge1"] == pytest.approx(200 / 3, abs=1e-3)
    assert figures["rouge1 oracle"] == 100
    nothing = measure.figures(0, [])
    assert (nothing["S"], nothing["unique"], nothing["rouge1"]) == (0, 0, 0)


def test_only_what_a_search_took_from_its_frontier_is_completed():
    class Info:
        completed = np.int32(1)

    row = [completion("a")._replace(info=Info()), completion("b")._replace(info=Info())]
    assert [c.text for c in best_k.completed(row)] == ["a"]
    assert best_k.completed([]) == []


def test_a_batch_that_is_not_full_has_no_seconds():
    rows = [{"S": n, "seconds": 0.5 if i < 2 else None} for i, n in enumerate([0, 2, 4])]
    found = best_k_results.analyse({"x": rows}, {"batch_size": 2, "seed": 0})["x"]
    assert found["seconds"] == (0.5, 0.5, 0.5)
    assert found["S"].value == 2
    assert found["none"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("--gin.KAPPA=0.3", "kappa: got 0.3"),
        ("--gin.GROUPS=(3,)", "groups: got 3"),
        ('--gin.STRATEGIES=("beams",)', "strategies: got 'beams'; takes beam search"),
    ],
)
def test_refusals(binding, words, monkeypatch, capsys, tmp_path):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/best_k_quick.gin", binding]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.best_k", arguments) == 1
    assert words in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_quick_form(tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "sacrebleu", "rouge_score"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/best_k_quick.gin", f'--gin.OUTPUT_DIR="{tmp_path}"']
    assert command.main("experiments.papers.best_k", arguments) == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "best_k.json").read_text())
    assert list(data["results"])[:3] == ["beam search", "beam + nucleus", "best-first"]
    assert len(data["results"]) == 7
    for found in data["results"].values():
        value, low, high = found["S"]
        assert low <= value <= high
    assert (tmp_path / "best_k.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "best_k.png").stat().st_size > 10_000
