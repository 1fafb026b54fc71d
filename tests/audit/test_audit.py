"""The audit finds a wrong sampler, passes an exact one, and its page shows the committed file."""

import ast
import dataclasses
import json
import re
import subprocess

import numpy as np
import pytest
from pages import ROOT

from experiments.audit import distributions, environments, figure, judge, measure, report
from experiments.audit.__main__ import PROJECTS, main, run
from experiments.audit.cases import CASES
from experiments.audit.distributions import Convention, conventions
from experiments.audit.rows import ROWS

REPORTS = ROOT / "docs" / "audit" / "reports"
EXPECTED = np.array([0.5, 0.3, 0.2])


def row_of(path, case):
    return next(row for row in ROWS if (row.path, row.case) == (path, case))


def shape_of(case):
    return distributions.of_case(CASES[case], Convention()).shape


def counts_of(distribution, samples=20_000):
    drawn = np.random.default_rng(0).multinomial(samples, distribution.ravel())
    return drawn.reshape(distribution.shape)


def test_the_noise_floor_is_the_mean_distance_of_exact_draws():
    draws = np.random.default_rng(0).multinomial(1000, EXPECTED, size=2000)
    mean = np.mean([measure.total_variation(counts, EXPECTED) for counts in draws])
    np.testing.assert_allclose(measure.noise_floor(EXPECTED, 1000), mean, rtol=0.05)


def test_p_values_of_exact_draws_are_uniform():
    distribution = np.append(EXPECTED * 0.999, 0.001)  # the last outcome is pooled
    draws = np.random.default_rng(1).multinomial(1000, distribution, size=1000)
    p = np.array([measure.p_value(counts, distribution) for counts in draws])
    assert abs(np.mean(p < 0.1) - 0.1) < 0.04  # four standard deviations


@pytest.mark.parametrize("samples", [1_500, 40_000])
def test_a_detectable_deviation_is_found_nine_times_in_ten(samples):
    distance = measure.detectable(EXPECTED, samples, judge.LEVEL)
    for scale, lowest, highest in ((1, 0.87, 0.93), (0.7, 0, 0.4)):
        # The deviation that is least visible: half the mass grows, and the rest shrinks.
        away = EXPECTED + scale * distance * np.array([1, -0.6, -0.4])
        draws = np.random.default_rng(2).multinomial(samples, away, size=1000)
        p = np.array([measure.p_value(counts, EXPECTED) for counts in draws])
        assert lowest < np.mean(p < judge.LEVEL) < highest  # three standard deviations
        np.testing.assert_allclose(measure.total_variation(away, EXPECTED), scale * distance)


def test_more_visible_deviations_are_found_more_often():
    distance = measure.detectable(EXPECTED, 1_500, judge.LEVEL)
    away = EXPECTED + distance * np.array([0, -1, 1])
    draws = np.random.default_rng(3).multinomial(1_500, away, size=500)
    p = np.array([measure.p_value(counts, EXPECTED) for counts in draws])
    assert np.mean(p < judge.LEVEL) > 0.93


def test_what_moves_among_pooled_outcomes_is_not_detectable():
    distribution = np.append(EXPECTED * 0.99, [0.005, 0.005])
    with_pool = measure.detectable(distribution, 900, judge.LEVEL)
    four_cells = np.append(EXPECTED * 0.99, 0.01)
    assert with_pool == pytest.approx(measure.detectable(four_cells, 900, judge.LEVEL) + 0.01)


@pytest.mark.parametrize(
    ("path", "case", "wrong"),
    [
        ("SpeculativeSampler", "draft", [0.5 / 0.6, 0, 0.1 / 0.6]),
        ("rejection_sample", "draft", [0.48, 0.32, 0.2]),
        ("SinglePositionMultiTokenCandidateGenerator", "draft", [0.5 / 0.6, 0, 0.1 / 0.6]),
    ],
)
def test_a_wrong_sampler_is_found_and_an_exact_one_passes(path, case, wrong):
    row = row_of(path, case)
    found = judge.judge(row, counts_of(np.array(wrong)))
    assert found["verdict"] == judge.DEVIATES
    assert found["distance"] > found["floor"]
    assert judge.judge(row, counts_of(EXPECTED))["verdict"] == judge.EXACT


def test_rows_with_equal_noise_are_found_though_each_is_exact():
    row = row_of("temperature of each row", "pair")
    one = distributions.softmax(np.array(CASES["plain"]["logits"]))
    assert judge.judge(row, np.diag(counts_of(one)))["verdict"] == judge.DEVIATES
    exact = counts_of(distributions.of_case(CASES["pair"], Convention()))
    assert judge.judge(row, exact)["verdict"] == judge.EXACT


def test_an_impossible_outcome_is_a_deviation():
    assert measure.p_value(np.array([5000, 3000, 2000, 1]), np.append(EXPECTED, 0.0)) == 0
    assert measure.p_value(np.array([10, 0]), np.array([1.0, 0.0])) == 1


@pytest.mark.parametrize("case", CASES)
def test_every_law_is_a_distribution(case):
    given = CASES[case]
    for convention in conventions(
        order=("temperature first", "temperature last"),
        ties=("lowest ids", "highest ids", "all"),
        top_p=("at least", "more than"),
        nucleus=("top_k", "all"),
        beams=("first", "best"),
    ):
        distribution = distributions.of_case(given, convention)
        assert distribution.min() >= 0
        np.testing.assert_allclose(distribution.sum(), 1)


@pytest.mark.parametrize(
    ("logits", "settings", "convention", "expected"),
    [
        ([0.5, 0.3, 0.2], {"temperature": 0.5}, {}, [25 / 38, 9 / 38, 4 / 38]),
        ([0.4, 0.2, 0.2, 0.2], {"top_k": 2}, {}, [2 / 3, 1 / 3, 0, 0]),
        ([0.4, 0.2, 0.2, 0.2], {"top_k": 2}, {"ties": "highest ids"}, [2 / 3, 0, 0, 1 / 3]),
        ([0.4, 0.2, 0.2, 0.2], {"top_k": 2}, {"ties": "all"}, [0.4, 0.2, 0.2, 0.2]),
        ([0.5, 0.25, 0.25], {"top_p": 0.5}, {}, [1, 0, 0]),
        ([0.5, 0.25, 0.25], {"top_p": 0.5}, {"top_p": "more than"}, [2 / 3, 1 / 3, 0]),
        ([0.64, 0.36], {"temperature": 2.0, "top_p": 0.6}, {}, [4 / 7, 3 / 7]),
        (
            [0.64, 0.36],
            {"temperature": 2.0, "top_p": 0.6},
            {"order": "temperature last"},
            [1, 0],
        ),
        ([0.4, 0.3, 0.3], {"top_k": 2, "top_p": 0.55}, {}, [1, 0, 0]),
        ([0.4, 0.3, 0.3], {"top_k": 2, "top_p": 0.55}, {"nucleus": "all"}, [4 / 7, 3 / 7, 0]),
        ([0.5, 0.3, 0.2], {"min_p": 0.5}, {}, [5 / 8, 3 / 8, 0]),
    ],
)
def test_laws_by_hand(logits, settings, convention, expected):
    distribution = distributions.token(np.log(logits), settings, Convention(**convention))
    np.testing.assert_allclose(distribution, expected, atol=1e-12)


def test_beams_by_hand():
    case = {"kind": "beams", "logits": np.log(EXPECTED), "settings": {"width": 1}}
    np.testing.assert_allclose(
        np.diag(distributions.of_case(case, Convention(beams="first"))), EXPECTED
    )
    best = np.diag(distributions.of_case(case, Convention(beams="best")))
    np.testing.assert_allclose(best[2], 0)
    np.testing.assert_allclose(best[1], 0.3 * 0.2 / 0.7 + 0.2 * 0.3 / 0.8)


def test_the_rows_belong_to_pinned_environments_and_to_their_programs():
    assert {row.project for row in ROWS} == set(environments.ENVIRONMENTS)
    for row in ROWS:
        program = (PROJECTS / environments.ENVIRONMENTS[row.project].program).read_text()
        assert f'"{row.path}"' in program, row
        assert row.case in CASES
    for name, made in environments.ENVIRONMENTS.items():
        assert all("==" in package for package in made.alone)
        assert all(re.fullmatch("[0-9a-f]{40}", c.commit) for c in made.checkouts)
        lines = environments.commands(name, ROOT)
        assert sum("fetch" in line for line in lines) == len(made.checkouts)


def test_a_checkout_may_be_repeated(tmp_path, monkeypatch):
    """As after a failure: of one folder of a repository, at a commit."""
    repository, made = tmp_path / "repository", tmp_path / "made"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for folder in ("kept", "left"):
        (repository / folder).mkdir(parents=True)
        (repository / folder / "file.py").write_text(folder)
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    for line in (["add", "."], ["commit", "--quiet", "-m", "files"]):
        subprocess.run([*git, *line], check=True)
    found = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    checkout = environments.Checkout(str(repository), found.stdout.strip(), ("kept",))
    monkeypatch.setitem(
        environments.ENVIRONMENTS,
        "t5x",
        dataclasses.replace(environments.ENVIRONMENTS["t5x"], packages=(), checkouts=(checkout,)),
    )
    for _ in range(2):
        for line in environments.commands("t5x", made)[1:]:  # without the virtual environment
            subprocess.run(line, check=True, capture_output=True)
    assert [path.name for path in (made / "t5x" / "source").iterdir()] == ["kept"]


def test_every_promise_has_a_permanent_link():
    for row in ROWS:
        link = environments.ENVIRONMENTS[row.project].link(row.at)
        if row.project == "decoding_jax":
            assert (ROOT / "docs" / "measured" / link).is_file()
        else:
            version = r"([0-9a-f]{40}|v[0-9.]+)"
            lines = r"(\?plain=1)?#L\d+(-L\d+)?"
            assert re.fullmatch(
                rf"https://github.com/[\w-]+/[\w-]+/blob/{version}/\S+{lines}", link
            )


def test_rows_of_several_projects_with_equal_counts_are_named():
    counts = {"a": [1, 2], "b": [1, 2], "c": [2, 1]}
    rows = [
        {"project": name, "path": "p", "case": case, "counts": counts[name]}
        for case in ("plain", "top_k")
        for name in "abc"
    ]
    rows.append({"project": "c", "path": "q", "case": "plain", "counts": [2, 1]})
    assert report.equal_counts(rows) == {(("a", "p"), ("b", "p")): ["plain", "top_k"]}


@pytest.mark.exhaustive
def test_the_picture_is_drawn_from_the_committed_file(tmp_path):
    figure.draw(json.loads((ROOT / "docs" / "audit.json").read_text()), tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes()[1:4] == b"PNG"


def test_what_failed_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environments, "commands", lambda name, directory: [["false", "a b"]])
    assert main(["--prepare", "t5x", "--environments", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "t5x: failed with status 1: false 'a b'\n"


@pytest.mark.release
def test_our_own_rows(tmp_path):
    chosen = [row for row in ROWS if row.project == "decoding_jax" and row.path == "sample"][3:6]
    rows = [dataclasses.replace(row, samples=4000) for row in chosen]
    for found in run(rows, tmp_path):
        assert found["verdict"] == judge.EXACT, found
        assert found["samples"] == 4000


def test_a_missing_environment_is_said(tmp_path, capsys):
    arguments = ["--only", "t5x", "--environments", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert "no environment" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_page_shows_the_committed_file(tmp_path):
    committed = json.loads((ROOT / "docs" / "audit.json").read_text())
    assert set(committed) == set(environments.ENVIRONMENTS)
    assert report.text(committed) == (ROOT / "docs" / "audit.json").read_text()
    for name, rows in committed.items():
        ran = [(row.path, row.case) for row in ROWS if row.project == name]
        assert [(row["path"], row["case"]) for row in rows] == ran
        for row in rows:
            [wanted] = [
                r for r in ROWS if (r.project, r.path, r.case) == (name, row["path"], row["case"])
            ]
            judged = judge.judge(wanted, np.array(row["counts"]).reshape(shape_of(row["case"])))
            assert judged.items() <= row.items()
    page = ROOT / "docs" / "measured" / "audit.md"
    copy = tmp_path / "audit.md"
    copy.write_text(page.read_text())
    report.write(committed, copy)
    assert copy.read_text() == page.read_text()


def test_every_report_is_complete_and_the_page_links_it():
    page = (ROOT / "docs" / "audit.md").read_text()
    reports = sorted(REPORTS.glob("*.md"))
    findings = re.search(r"## What was found\n(.*?)\n## ", page, re.DOTALL)[1]
    assert sorted(re.findall(r"\(audit/reports/(\w+\.md)\)", findings)) == [p.name for p in reports]
    for path in reports:
        text = path.read_text()
        parts = re.findall(r"^\*\*(.+?)[.*]", text, re.MULTILINE)
        assert parts == ["Versions", "Smallest program", "Expected", "Seen", "Cause", "A fix"], path
        (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        ast.parse(program)
        assert len(re.findall(r"https://github.com/\S+/blob/\S+#L\d+", text)) >= 1, path
