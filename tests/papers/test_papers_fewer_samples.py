"""The quick form of the experiment on fewer samples, and the probabilities that it computes."""

import itertools
import json

import numpy as np
import pytest
from pages import ROOT

from experiments.papers import command
from experiments.papers import fewer_samples_truth as truth
from experiments.papers.fewer_samples_results import as_many


@pytest.mark.parametrize("count", [1, 2, 3])
def test_votes_are_those_of_all_outcomes(count):
    prob = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    for row, found in zip(prob, truth.vote_of_independent(prob, count), strict=True):
        outcomes = np.array(list(itertools.product(range(3), repeat=count)))
        right = truth.vote_right(outcomes, int(row.argmax()), 3)
        assert found == pytest.approx((row[outcomes].prod(1) * right).sum(), abs=1e-12)


def test_pass_of_a_lattice_whose_samples_go_on_alone():
    """By hand, with N = 2: all of a text's first token carry codes if its probability is over 1/2.

    First tokens have 0.6 and 0.4, second ones halves. The shift u is below 1/2. The first sample is
    in 00 for u < 0.3 and in 01 after; the second, at u + 1/2, is in 01 for u < 0.1, and then alone.
    """
    prob = np.array([[0.3, 0.3], [0.2, 0.2]])
    only = lambda i, j: np.arange(4).reshape(2, 2) == 2 * i + j  # noqa: E731
    assert truth.pass_of_lattice(prob, only(0, 0), 2) == pytest.approx(0.6)
    assert truth.pass_of_lattice(prob, only(0, 1), 2) == pytest.approx(0.6)
    assert truth.pass_of_lattice(prob, only(1, 0), 2) == pytest.approx(0.4)
    assert truth.pass_of_lattice(prob, only(0, 1) | only(1, 0), 2) == pytest.approx(
        2 * (0.1 * 1 + 0.2 * 0.5 + 0.2 * 1)
    )
    assert truth.pass_of_lattice(prob, only(0, 0), 1) == pytest.approx(0.3)


def test_as_many_samples():
    curve, counts = np.array([0.1, 0.3, 0.2, 0.5]), np.array([1.0, 2, 4, 8])
    values = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    found = as_many(np.broadcast_to(curve, (7, 4)), counts, values)
    want = [1, 1, 2**0.5, 2, 4 * 2**0.5, 8, np.inf]
    np.testing.assert_allclose(found, want)


@pytest.mark.release
def test_the_quick_form(tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "sacrebleu"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/fewer_samples_quick.gin"]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.fewer_samples", arguments) == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "fewer_samples.json").read_text())
    assert [row["answer"] for row in data["results"]["pass"]] == ["first", "last", "whole"]
    assert (tmp_path / "fewer_samples.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "fewer_samples.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("--gin.TABLES=1", "tables: expected 2 or more"),
        ("--gin.TEXT_COUNTS=(3,)", "text_counts: expected div"),
    ],
)
def test_refusals(binding, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    arguments = ["--gin_file=configs/papers/fewer_samples_quick.gin", binding]
    arguments.append(f'--gin.OUTPUT_DIR="{tmp_path}"')
    assert command.main("experiments.papers.fewer_samples", arguments) == 1
    assert words in capsys.readouterr().err
