"""What the papers' experiments share: tasks, metrics, records, intervals, and the command line."""

import importlib
import itertools
import json

import gin.config as gin
import numpy as np
import pytest
from pages import ROOT
from scipy import stats

from decoding_jax import gin_config
from decoding_jax.infer.command import register_names
from experiments.papers import (
    arithmetic_estimates,
    arithmetic_report,
    arithmetic_variants,
    bayes_risk,
    bayes_risk_spread,
    best_k_differences,
    best_k_report,
    code_lines,
    command,
    fewer_samples_results,
    metrics,
    records,
    results,
    speculative_report,
    tasks,
    two_drafts,
)
from experiments.papers.arithmetic_bound import alone_after

EXPERIMENTS = {
    "arithmetic": arithmetic_report,
    "bayes_risk": bayes_risk,
    "bayes_risk_spread": bayes_risk_spread,
    "best_k": best_k_report,
    "best_k_differences": best_k_differences,
    "code_lines": code_lines,
    "fewer_samples": fewer_samples_results,
    "speculative": speculative_report,
    "speculative_code_drafts": two_drafts,
}


def name_of(path):
    """The experiment of a file: the longest name that the file's begins with."""
    return max((name for name in EXPERIMENTS if path.stem.startswith(name)), key=len)


def write_lines(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_json_lines(tmp_path):
    path = write_lines(
        tmp_path / "wmt.jsonl",
        '{"en": "one", "de": "eins"}',
        "",
        '{"en": "two", "de": ["zwei", "zwo"]}',
    )
    task = tasks.json_lines(path, inputs="en", targets="de", prefix="translate: ")
    assert list(task.inputs) == ["translate: one", "translate: two"]
    assert list(task.references) == [["eins"], ["zwei", "zwo"]]
    assert task.name == "wmt"
    assert task.describe()["inputs"] == 2
    assert len(tasks.json_lines(path, inputs="en", targets="de", count=1).inputs) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"inputs": "one"}', "expected a JSON object with 'inputs' and 'targets'"),
        ("[1]", "expected a JSON object"),
        ('{"inputs": " ", "targets": "x"}', "got an empty text"),
        ('{"inputs": "one", "targets": []}', "got an empty text"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, line, words):
    with pytest.raises(ValueError, match=words) as caught:
        tasks.json_lines(write_lines(tmp_path / "task.jsonl", line))
    assert "task.jsonl:1: " in str(caught.value)


def test_domains(tmp_path):
    lines = [
        '{"inputs": "one", "targets": "eins", "of": "numbers"}',
        '{"inputs": "blue", "targets": "blau", "of": ""}',
    ]
    path = write_lines(tmp_path / "task.jsonl", *lines)
    assert tasks.json_lines(path).domains is None
    with pytest.raises(ValueError, match=r"task\.jsonl:2: expected a text, got '' as 'of'"):
        tasks.json_lines(path, domain="of")
    path = write_lines(tmp_path / "one.jsonl", lines[0])
    assert tasks.json_lines(path, domain="of").domains == ["numbers"]
    with pytest.raises(ValueError, match="expected one domain for each of 1 inputs, got 2"):
        tasks.Task("none", ["one"], [["eins"]], ["numbers", "numbers"])
    assert set(tasks.tatoeba(60).domains) == {
        "questions",
        "up to five words",
        "more than five words",
    }


def test_held_out_functions():
    task = tasks.standard_library()
    assert set(task.domains) == {"code", "docstring or comment"}
    assert all(text.lstrip().startswith(("def ", "async def ")) for text in task.inputs)
    assert all(text.startswith("\n") for [text] in task.references)
    assert len(tasks.standard_library(8).inputs) == 8


def test_faulty_tasks_and_metrics():
    with pytest.raises(ValueError, match="expected a file"):
        tasks.json_lines("nothing.jsonl")
    with pytest.raises(ValueError, match="0 inputs"):
        tasks.Task("none", [], [])
    with pytest.raises(ValueError, match="count: expected 1 or more, or None for all, got 0"):
        tasks.tatoeba(0)
    with pytest.raises(ValueError, match="expected one of bleu, chrf"):
        metrics.metric("blue")


def test_meteor_with_exact_matches():
    import nltk.translate.meteor_score as nltk

    score = metrics.metric("meteor_exact")
    exact = metrics._Exact()
    text, reference = "une petite maison là-bas", "une maison, petite"
    expected = nltk.single_meteor_score(
        ["une", "maison", "petite"],
        ["une", "petite", "maison", "là", "bas"],
        stemmer=exact,
        wordnet=exact,
    )
    assert score(text, [reference]) == pytest.approx(100 * expected)
    assert 0 < expected < 1


def test_scores_of_sacrebleu_and_rouge():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    found = metrics.Scores(["bleu", "chrf"], [["one two three four"]])
    scores = found(0, ["one two three four", "five"])
    assert scores["bleu"][0] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx([100, 3.9062])


def test_records_continue(tmp_path):
    made = []

    def maker(name):
        return lambda: made.append(name) or {"of": name}

    settings = {"seed": 0, "sizes": (1, 2)}
    work = {name: maker(name) for name in "abc"}
    first = records.Records(tmp_path, settings).complete({"a": work["a"]})
    path = tmp_path / "records.jsonl"
    path.write_text(path.read_text() + '{"name": "b", "val')  # killed while it wrote
    assert records.Records(tmp_path, settings).complete(work) == {n: {"of": n} for n in "abc"}
    assert first == {"a": {"of": "a"}}
    assert made == ["a", "b", "c"]
    records.Records(tmp_path, settings).complete(work)
    assert made == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"other settings \(seed\)"):
        records.Records(tmp_path, {**settings, "seed": 1})


def test_an_interval_has_the_nominal_coverage_of_a_mean():
    """Of 200 intervals of 40 normal numbers, 95% would contain 0; 86% is 6 deviations below."""
    rng = np.random.default_rng(0)
    found = [results.interval(results.mean, rng.normal(size=40), resamples=400) for _ in range(200)]
    assert np.mean([low < 0 < high for _, low, high in found]) > 0.86


def test_a_difference_of_the_same_inputs_is_that_of_a_paired_bootstrap():
    """Where inputs differ by 20 and two strategies by 1, only the paired interval excludes 0."""
    rng = np.random.default_rng(0)
    theirs = rng.normal(50, 20, 60)
    ours = theirs + rng.normal(1, 1.5, 60)
    one, two = (results.interval(results.mean, x) for x in (ours, theirs))
    assert one.low < two.value
    assert two.low < one.value < two.high
    found = results.difference(results.mean, [ours], [theirs])
    assert found.value == pytest.approx(np.mean(ours - theirs))
    assert 0 < found.low < found.value < found.high < 2

    def apart(ours, theirs, axis):
        return ours.mean(axis) - theirs.mean(axis)

    expected = stats.bootstrap(
        (ours, theirs), apart, paired=True, method="percentile", n_resamples=4000, rng=rng
    ).confidence_interval
    assert found[1:] == pytest.approx(tuple(expected), abs=0.03)


def test_differences_of_equal_things_have_the_nominal_coverage():
    """Of 200 pairs of 40 inputs without a difference, 95% of the intervals would contain 0."""
    rng = np.random.default_rng(1)
    contained = []
    for _ in range(200):
        shared = rng.normal(0, 20, 40)
        ours, theirs = (shared + rng.normal(size=40) for _ in range(2))
        _, low, high = results.difference(results.mean, [ours], [theirs], resamples=400)
        contained.append(low < 0 < high)
    assert np.mean(contained) > 0.86


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_variance_of_lattices_is_unbiased(count):
    """Two runs of a lattice of 4 over a score of 8 steps of the code: the mean over all pairs."""
    score = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    shifts = np.array([[score[(s + 2 * i) % 8] for i in range(4)] for s in range(8)])
    pairs = np.array([[shifts[a], shifts[b]] for a in range(8) for b in range(8)])
    means = [np.mean([score[(s + 8 // count * i) % 8] for i in range(count)]) for s in range(8)]
    found = arithmetic_estimates.variance_lattice(pairs, count)
    assert found.mean() == pytest.approx(np.var(means))


def test_a_control_variate_that_is_the_score_leaves_no_variance():
    scores = np.random.default_rng(0).normal(size=(5, 3, 8))
    shifted = scores + np.arange(5.0)[:, None, None]
    for count in (2, 8):
        found = arithmetic_variants.variance_controlled(shifted, 2 * scores, count)
        np.testing.assert_allclose(found, 0, atol=1e-9)
        # Where no surprise varies, nothing is corrected.
        found = arithmetic_variants.variance_controlled(shifted, 0 * scores, count)
        expected = arithmetic_estimates.variance_lattice(shifted, count)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_best_of_independent_samples(count):
    scores = np.array([[[3.0, 1, 4], [1, 5, 9]]])
    best = [max(chosen) for chosen in itertools.combinations(scores.ravel(), count)]
    assert arithmetic_estimates.oracle_independent(scores, count) == pytest.approx(np.mean(best))


def test_when_a_sample_is_alone():
    log_probs = np.log(np.array([0.5, 0.5, 0.25], np.float32))
    assert [alone_after(log_probs, n) for n in (1, 2, 3, 4, 16, 64)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "--gin_file: expected one such as"),
        (["--gin_file=configs/papers/none.gin"], 2, "no such file"),
        (["--gin_file=configs/papers/arithmetic_quick.gin", "--gin.SEEED=1"], 2, "nothing reads"),
        (
            ["--gin_file=configs/papers/arithmetic_quick.gin", "--gin.MAX_SAMPLES=3"],
            1,
            "max_samples: expected a power of 2, 2 or more, got 3",
        ),
        (
            ["--gin_file=configs/papers/arithmetic_quick.gin", "--gin.RUNS=1"],
            1,
            "runs: expected 2 or",
        ),
    ],
)
def test_refusals_are_one_line(arguments, status, words, monkeypatch, capsys):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    monkeypatch.chdir(ROOT)
    assert command.main("experiments.papers.arithmetic", arguments) == status
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "path",
    sorted({*(ROOT / "configs" / "papers").glob("*.gin")} - {ROOT / "configs/papers/task.gin"}),
    ids=str,
)
def test_every_configuration_is_complete(path, monkeypatch):
    """Read, not run, with a model and a file of one's own where these are required."""
    monkeypatch.chdir(ROOT)
    module = f"experiments.papers.{name_of(path)}"
    names = ("MODEL_DIR", "DRAFT_DIR", "DATA")
    required = [name for name in names if f"\n{name} = %gin" in path.read_text()]
    given = [f'{name} = "name"' for name in required]
    register_names()
    with gin.unlock_config():
        command.registered(importlib.import_module(module).run, module)
        gin.clear_config()
        gin_config.read_gin([str(path)], given, [], f"{module}.run")
        gin.clear_config()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "papers").glob("*.json")), ids=str)
def test_committed_tables_are_those_of_the_committed_results(path):
    data = json.loads(path.read_text())
    assert path.with_suffix(".md").read_text() == EXPERIMENTS[name_of(path)].markdown(data)
