"""The experiments on the embedded model of code: their quick forms, and what they check."""

import json

import pytest
from pages import ROOT

from experiments import code_data
from experiments.papers import code_lines, command, samplers


def test_the_held_out_lines_fit_in_their_places():
    lines = code_lines.read()
    assert all(code_data.parses(line, line.reference) for line in lines)
    assert all(line.prompt[-1].isspace() and line.reference.startswith(" ") for line in lines)
    assert not any(code_data.parses(line, " return return") for line in lines)
    # What follows the line break of a sample is not looked at.
    assert code_data.parses(lines[0], lines[0].reference + "\nreturn return")
    assert len(code_lines.read(8)) == 8


def test_the_checks_of_functions():
    functions = code_lines.read_functions(8)
    # A reference of 64 tokens may end inside a statement: some do, and others end a text.
    assert 0 < sum(code_lines.check(x, x.reference + "\n")["parses"] for x in functions) < 8
    assert all(code_lines.check(x, x.reference)["line"] for x in functions)
    assert not any(code_lines.check(x, " +")["parses"] for x in functions)


def test_rows_of_the_results():
    """Of two lines, one is right in a quarter of the samples, and the other never."""
    settings = {"temperatures": [1.0], "counts": [2], "lanes": 2, "seed": 0}
    settings["samplers"] = [samplers.PEER, "lattice"]

    def value(right, passed):
        return {"right": right, samplers.PEER: [0.0], "lattice": [passed]}

    vote = {"independent": [0.25, 0.25, 0.5, 1.0], samplers.PEER: [0.25], "lattice": [0.5]}
    both = {"parses": value(4, 1.0), "line": value(0, 0.0), "vote": vote}
    made = {"temperature 1, line 0": both, "temperature 1, line 1": {**both, "line": value(1, 1.0)}}
    rows = code_lines.analyse(made, settings)
    assert [row["sampler"] for row in rows] == [samplers.PEER, "lattice"] * 3
    parse, line, vote = rows[1::2]
    assert (parse["arithmetic"], parse["independent"]) == (1, 1)
    assert (line["arithmetic"], line["independent"]) == (0.5, 0.25)
    assert line["gain"] == pytest.approx((0.25, 0, 0.5))
    assert line["above_peer"] == pytest.approx((0.5, 0, 1))
    assert vote["as_many"] == pytest.approx((3, 3, 3))


def run(module, name, folder, *more):
    arguments = [f"--gin_file=configs/papers/{name}.gin", f'--gin.OUTPUT_DIR="{folder}"', *more]
    return command.main(f"experiments.papers.{module}", arguments)


def test_refusals(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    assert run("code_lines", "code_lines_quick", tmp_path, "--gin.COUNTS=(3,)") == 1
    assert "counts: expected divisors of the last and of lanes, 8, got 3" in capsys.readouterr().err


@pytest.mark.release
def test_the_quick_form_of_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert run("code_lines", "code_lines_quick", tmp_path) == 0, capsys.readouterr().err
    data = json.loads((tmp_path / "code_lines.json").read_text())
    assert [row["criterion"] for row in data["results"]] == list(code_lines.CRITERIA)
    assert (tmp_path / "code_lines.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "code_lines.png").stat().st_size > 10_000
