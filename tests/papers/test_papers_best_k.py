"""The quick form of the experiment on best-k search, and its figures of single inputs."""

import importlib.util
import json

import numpy as np
import pytest
from pages import ROOT

from decoding_jax.text import Completion
from experiments.papers import best_k_differences, best_k_measure, best_k_results, command
from experiments.papers.metrics import Scores


def completion(text, finished=True, log_prob=-1.0):
    return Completion(text, [3] * len(text.split()), log_prob, log_prob, finished)


def test_the_figures_of_an_input():
    scores = Scores(["rouge1"], [["a b", "a c"]])
    measure = best_k_measure.Measure(None, scores, "rouge1", [], 0)
    row = [completion("a b"), completion("a b"), completion("d"), completion("a", finished=False)]
    figures = measure.figures(0, best_k_measure.completed(row))
    assert (figures["S"], figures["unique"]) == (3, 2)
    assert figures["distinct-1"] == pytest.approx(3 / 5)
    assert figures["rouge1"] == pytest.approx(200 / 3, abs=1e-3)
    assert figures["rouge1 oracle"] == 100
    nothing = measure.figures(0, [])
    assert (nothing["S"], nothing["unique"], nothing["rouge1"]) == (0, 0, 0)
    chosen = measure.figures(0, [completion("d"), completion("a b", log_prob=-0.5)], rerank=True)
    assert [chosen[rule] for rule in best_k_results.RULES] == [100] * 3


def test_each_rule_chooses_a_text():
    row = [
        completion("a b c d", log_prob=-4.0),
        completion("x", log_prob=-2.0),
        completion("a b c e", log_prob=-4.5),
        completion("a b c d", log_prob=-9.0),
    ]

    def shared(text, references):
        return len({*text.split()} & {*references[0].split()})

    chosen = best_k_measure.reranked(row, shared)
    assert list(chosen.values()) == ["x", "a b c d", "a b c d"]
    assert set(best_k_measure.reranked(row, shared, candidates=1).values()) == {"x", "a b c d"}
    assert set(best_k_measure.reranked([], shared).values()) == {""}


def test_only_what_a_search_took_from_its_frontier_is_completed():
    class Info:
        completed = np.int32(1)

    row = [completion("a")._replace(info=Info()), completion("b")._replace(info=Info())]
    assert [c.text for c in best_k_measure.completed(row)] == ["a"]
    assert best_k_measure.completed([]) == []


def test_a_batch_that_is_not_full_has_no_seconds():
    rows = [
        {"S": n, "bleu": 10.0 * n, "seconds": 0.5 if i < 2 else None, "calls": 4}
        for i, n in enumerate([0, 2, 4])
    ]
    given = {"batch_size": 2, "seed": 0, "metrics": ["bleu"], "ks": []}
    found = best_k_results.analyse({"best-first": rows}, given)
    assert found["results"]["best-first"]["S"].value == 2
    assert found["results"]["best-first"]["none"].value == pytest.approx(1 / 3)
    times = found["times"]["best-first"]
    assert times["seconds"] == (0.5, 0.5, 0.5)
    assert times["calls"].value == 4


def test_times_are_beside_those_of_beam_search_and_best_first():
    given = {"batch_size": 1, "seed": 0, "metrics": ["bleu"], "ks": []}

    def rows(*seconds, calls=None):
        return [{"S": 1, "bleu": 1.0, "seconds": s, "calls": calls} for s in seconds]

    measured = {"beam search": rows(1, 2), "best-first": rows(3, 6), "other": rows(1.5, 3, calls=7)}
    times = best_k_results.analyse(measured, given)["times"]
    assert times["other"]["over beam search"] == (1.5, 1.5, 1.5)
    assert times["other"]["best-first over it"] == (2, 2, 2)
    assert "calls" not in times["beam search"]


def test_changes_are_from_the_first_kappa():
    given = {"batch_size": 1, "seed": 0, "metrics": ["bleu"], "ks": [2], "kappas": [0.0, 0.1]}

    def rows(*bleu):
        return [{"S": 1, "unique": 3, "bleu": b, "seconds": 1.0, "calls": 1} for b in bleu]

    names = best_k_results.ablated_names(given)
    measured = dict(zip(names, (rows(1, 5), rows(3, 7), rows(2, 2), rows(1, 1)), strict=True))
    found = best_k_results.analyse(measured, given)["results"]
    assert [found[name]["bleu, change"].value for name in names] == [0, 2, 0, -1]
    assert found[names[1]]["bleu, change"] == (2, 2, 2)
    assert found[names[1]]["unique, change"].value == 0


def test_differences_are_of_the_same_inputs_and_the_same_budget():
    given = {"batch_size": 1, "seed": 0, "metrics": ["bleu"], "ks": []}

    def rows(*bleu):
        rules = dict.fromkeys(best_k_results.RULES, 9.0)
        timed = {"seconds": 1.0, "calls": 1}
        return [
            {"S": int(b > 0), "unique": 3, "bleu": b, "bleu oracle": b, **rules, **timed}
            for b in bleu
        ]

    def small(*completed):
        return [{"S": n, "unique": n, "bleu": 0.0, "seconds": 1.0, "calls": 1} for n in completed]

    given |= {"kappas": [0.0], "kappa": 0.0, "ks": [2], "budgets": [3]}
    best_k = [best_k_results.name_of(2, score, 0) for score in best_k_results.SCORES]
    measured = {
        "beam search": rows(10, 90),
        "nucleus": rows(8, 88),
        "best-first": rows(0, 90),
        **{name: rows(0, 90) for name in best_k},
        best_k_results.with_budget("best-first", 3): small(0, 1),
        best_k_results.with_budget(best_k[0], 3): small(0, 0),
    }
    found = best_k_differences.analyse(measured, given)
    assert found["above"]["beam search"]["nucleus"]["bleu"] == (-2, -2, -2)
    assert found["above"]["best-first"]["nucleus"]["by log-probability"] == (0, 0, 0)
    assert list(found["above"]["best-first"]) == ["beam search", "nucleus", *best_k]
    assert found["failures"] == [(0.5, 0, 1), (0, 0, 0)]
    assert found["searches"] == ["best-first", best_k[0]]


def test_names_of_the_first_tables():
    data = {"ks": [2], "kappas": [0.0, 0.1], "kappa": 0.1}
    small = best_k_results.with_budget("best-first", 3)
    names = ["beam search", *best_k_results.ablated_names(data), small]
    first = best_k_results.first_names(names, data)
    assert first == ["beam search", "best-2 last, kappa 0.1", "best-2 mean, kappa 0.1"]


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("--gin.KAPPA=0.3", "kappa: expected one of kappas, [0.05, 0.2], got 0.3"),
        ("--gin.GROUPS=(3,)", "groups: expected divisors of beam_size, 2, got 3"),
        ("--gin.BUDGETS=(12,)", "budgets: expected 1 to 11, below the budget, got 12"),
        ('--gin.STRATEGIES=("beams",)', "strategies: expected beam search"),
    ],
)
def test_refusals(binding, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/best_k_quick.gin", binding]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.best_k", arguments) == 1
    assert words in capsys.readouterr().err


@pytest.mark.release
def test_the_quick_form(tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "sacrebleu", "rouge_score"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/best_k_quick.gin", f'--gin.OUTPUT_DIR="{tmp_path}"']
    mauve = importlib.util.find_spec("mauve") is not None
    arguments.append(f"--gin.MAUVE={mauve}")
    assert command.main("experiments.papers.best_k", arguments) == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "best_k.json").read_text())
    assert list(data["results"])[:3] == ["beam search", "beam + nucleus", "best-first"]
    assert len(data["results"]) == 7 + 2
    assert list(data["times"]) == list(data["results"])[:7]
    for found in data["results"].values():
        value, low, high = found["S"]
        assert low <= value <= high
    assert ("naturalness" in data) == mauve
    assert (tmp_path / "best_k.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "best_k.png").stat().st_size > 10_000
    apart = json.loads((tmp_path / "best_k_differences.json").read_text())
    assert list(apart["above"]) == ["beam search", "best-first"]
    assert (tmp_path / "best_k_differences.png").stat().st_size > 10_000
