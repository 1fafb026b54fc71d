"""The certificate accepts correct strategies and finds mistakes."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiers
import tiny_strategies
from machine import need_devices

from decoding_jax.testing import certify
from decoding_jax.testing.certificate import comparisons, expectations, problems, running
from decoding_jax.testing.certificate.cases import TREES, all_cases, problem_of, programs_of
from decoding_jax.testing.certificate.enumeration import enumerate_distribution
from decoding_jax.testing.certificate.problems import TRANSFORMS, MergedProblem, Problem
from decoding_jax.testing.certificate.running import certify_case, check_refusal, results
from decoding_jax.testing.certificate.strategies import DRAFTS, PENALTIES, find, known


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch):
    """1,024 rows a prompt: half of what the command takes."""
    monkeypatch.setattr(running, "REPEATS", 1024)


def test_right_strategies_pass():
    """A level of 1e-3 for all 48 tests."""
    result = certify_case(tiny_strategies.tiny_sampler(), Problem(stop="sequences"), "one key")
    assert result.failure is None
    assert len(result.p_values) == 48
    assert min(result.p_values) > 1e-3 / 48
    result = certify_case(tiny_strategies.tiny_search(), Problem(stop="sequences"), "alone")
    assert result == (None, [])
    assert check_refusal(tiny_strategies.tiny_search()) is None


FOUND = {
    "overwritten slot": "no possible output|log_prob",
    "transformed log_prob": "log_prob",
    "key of the batch": "another order",
    "no end": "no possible output|finished",
    "unpadded": "not 0 after the end",
    "eos before minimum": "no possible output",
    "sequence before minimum": "no possible output|finished",
    "limit is an end": "finished",
    "retraces": "traced again",
}


@pytest.mark.parametrize("mistake", FOUND)
def test_a_mistake_is_found(mistake):
    strategy = tiny_strategies.tiny_sampler(mistake)
    stop = (
        "end tokens" if mistake in ("transformed log_prob", "eos before minimum") else "sequences"
    )
    result = certify_case(strategy, Problem(stop=stop), "as is")
    assert result.failure is not None
    assert any(part in result.failure for part in FOUND[mistake].split("|")), result.failure


@pytest.mark.parametrize("mistake", ["biased", "same lanes"])
def test_a_wrong_distribution_is_found(mistake):
    """At level 1e-6 for each of 48 tests."""
    result = certify_case(tiny_strategies.tiny_sampler(mistake), Problem(), "as is")
    assert result.failure is None
    assert min(result.p_values) < 1e-6


def test_mistakes_of_a_search_are_found():
    result = certify_case(tiny_strategies.tiny_search("biased"), Problem(), "as is")
    assert "tokens: expected" in result.failure
    likeliest = expectations.is_likeliest
    worse = dataclasses.replace(tiny_strategies.tiny_search(), expectation=likeliest)
    assert "expected a log-probability" in certify_case(worse, Problem(), "as is").failure
    assert check_refusal(tiny_strategies.tiny_search("never refuses")) is not None


def test_what_runs_otherwise_must_give_the_same():
    """Equal outputs pass; a different token, or a log-probability beyond rounding, fails."""
    output = comparisons.DecodeOutput(
        np.zeros((2, 1, 3), np.int32),
        np.full((2, 1), 3),
        np.full((2, 1), -4.0, np.float32),
        np.full((2, 1), -4.0, np.float32),
        np.zeros((2, 1), bool),
    )
    comparisons.check_same(output, output, "same")
    near = output._replace(log_prob=np.nextafter(output.log_prob, np.float32(0)))
    comparisons.check_same(near, output, "rounding", rounding=2e-6)
    with pytest.raises(AssertionError, match=r"log_prob \[0, 0\]"):
        comparisons.check_same(near, output, "bits")
    with pytest.raises(AssertionError, match="2 of 2 differ"):
        comparisons.check_same(output._replace(log_prob=output.log_prob + 1e-4), output, "x", 2e-6)
    tokens = output.tokens.copy()
    tokens[1, 0, 2] = 1
    with pytest.raises(AssertionError, match=r"tokens \[1, 0, 2\] is 1, not 0"):
        comparisons.check_same(output._replace(tokens=tokens), output, "x", rounding=2e-6)


def test_prefix_counts_tell_a_lattice_from_independent_draws():
    distribution = Problem(stop="one token").distributions()[:1]
    rng = np.random.default_rng(0)
    lattice = (rng.random((500, 1)) + np.arange(4)) / 4
    edges = np.cumsum(distribution[0].prob)
    pick = lambda codes: np.minimum(np.searchsorted(edges, codes, side="right"), 3)  # noqa: E731
    comparisons.check_prefix_counts(pick(lattice), distribution, 1.0)
    with pytest.raises(AssertionError, match="are expected to begin with"):
        comparisons.check_prefix_counts(pick(rng.random((500, 4))), distribution, 1.0)


def test_own_strategies_are_found_by_name(monkeypatch, capsys):
    monkeypatch.setattr(
        certify, "certify", lambda strategies, extent, **_: print(strategies, extent)
    )
    monkeypatch.setattr(certify.devices, "prepare_host", lambda *args, **kwargs: None)
    with pytest.raises(TypeError):  # the stand-in returns None, which is not a number
        certify.main(["--strategy", "tiny_strategies:my_sampler", "--strategy", "greedy"])
    shown = capsys.readouterr().out
    assert "my_sampler" in shown
    assert "name='greedy'" in shown
    assert certify.main(["--strategy", "nothing"]) == 2
    assert certify.main(["--strategy", "nothing:here"]) == 2
    assert capsys.readouterr().err.count("--strategy: expected") == 2


def test_the_command_prints_a_line_a_case_and_counts_failures(monkeypatch, capsys, tmp_path):
    good, bad = tiny_strategies.tiny_search(), tiny_strategies.tiny_search("limit is an end")
    case = {
        "strategy": "tiny",
        "transform": "none",
        "stop": "one token",
        "model": "smooth",
        "run": "as is",
        "draft": "-",
    }
    monkeypatch.setattr(certify, "cases_of", lambda strategies, extent: [case])
    summary = tmp_path / "summary.json"
    assert certify.certify([good], bar=False, summary=summary) == 0
    written = json.loads(summary.read_text())
    assert written["cases_by_strategy"] == {"tiny": 1}
    assert (written["failures"], written["level"]) == (0, 1e-3)
    assert written["versions"]["jax"] == jax.__version__
    assert certify.certify([bad], bar=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[2].endswith("ok")
    assert "FAILED finished" in lines[7]
    assert "1 cases, 1 failed" in lines[8]


def test_a_run_goes_on_where_it_was_killed(monkeypatch, capsys, tmp_path):
    good = tiny_strategies.tiny_search()
    factors = {"strategy": ["tiny"], "transform": ["none"], "stop": ["one token"], "draft": ["-"]}
    factors |= {"model": ["smooth", "zeros", "ties"], "run": ["as is"]}
    every = all_cases(factors)
    monkeypatch.setattr(certify, "cases_of", lambda strategies, extent: every)
    log = tmp_path / "log"
    assert certify.certify([good], sample=2, log=log, bar=False) == 0
    with open(log, "a") as out:
        out.write('{"case": {"str')  # killed while it was writing
    run, ran = good.function, []
    counted = dataclasses.replace(good, function=lambda *a, **s: [ran.append(1), run(*a, **s)][1])
    assert certify.certify([counted], log=log, bar=False) == 0
    assert capsys.readouterr().out.count("ok\n") == 5
    assert len(log.read_text().splitlines()) == 3
    assert len(ran) == 3  # a case, again in another order, and a refusal


@pytest.mark.release
def test_cases_pair_every_setting_with_every_strategy():
    strategies = list(find([]))
    drafted = [s for s in strategies if s.draft is not None]
    plain, drafts = len(strategies) - len(drafted), len(DRAFTS) - len(TREES)
    cases = certify.cases_of(strategies, "pairs")
    assert len(cases) <= 9 * len(strategies)
    count = 4 * len(strategies)
    # Searches of trees and speculation take no model without trees. Some are not given the model
    # with ties, and a beam of one no penalties that depend on the signs of logits.
    not_taken = sum(not s.lockstep for s in strategies) + sum(not s.ties for s in strategies)
    signless = sum(not s.logits for s in strategies)
    want = {"transform": count - signless, "stop": count, "model": count - not_taken}
    for name, pairs in want.items():
        assert len({(case["strategy"], case[name]) for case in cases}) == pairs
    runs = {(case["strategy"], case["run"]) for case in cases}
    searches = [s for s in strategies if not s.sampler]
    assert len(searches) >= 9
    assert len(runs) == 5 * len(strategies) - len(searches)
    # Several drafts go with two verifiers.
    trees = 2 * len(TREES)
    pairs = {(case["strategy"], case["draft"]) for case in cases}
    assert len(pairs) == plain + drafts * len(drafted) + trees
    # A merged case has every transform and stop condition.
    everything = certify.cases_of(strategies, "full")
    models = 4 * plain - (not_taken - len(drafted))
    assert len(everything) == models + 3 * (drafts * len(drafted) + trees)
    by_name = {strategy.name: strategy for strategy in strategies}
    covered = [problem_of(case, by_name[case["strategy"]]).combinations for case in everything]
    narrow = sum(not by_name[case["strategy"]].logits for case in everything)
    assert sum(map(len, covered)) == 16 * len(everything) - 4 * narrow


def test_merged_cases_run_every_strategy_in_every_way():
    strategies = find([])
    cases = certify.cases_of(strategies, "full")
    groups = programs_of(cases)
    assert sorted(map(str, cases)) == sorted(str(case) for group in groups for case in group)
    assert all(len({case["run"] for case in group}) == 1 for group in groups)
    way = lambda names: {one for case in names for one in case["run"].split(", ")}  # noqa: E731
    every = {"alone", "eager", "sharded", "one key"}
    for strategy in strategies:
        run = way([case for case in cases if case["strategy"] == strategy.name])
        assert run - {"as is"} == (every if strategy.sampler else every - {"one key"})
    for model in problems.MODEL_NAMES:
        assert way([case for case in cases if case["model"] == model]) >= every


def test_quick_cases_take_every_strategy_and_all_models_and_ways():
    strategies = find([])
    cases = certify.cases_of(strategies, "quick")
    assert [case["strategy"] for case in cases] == [strategy.name for strategy in strategies]
    assert {case["model"] for case in cases} == set(problems.MODEL_NAMES)
    assert {case["run"] for case in cases} == {"alone", "eager", "sharded", "one key"}
    assert len({case["draft"] for case in cases} - {"-"}) >= 5
    without = lambda case: {name: case[name] for name in case if name != "run"}  # noqa: E731
    every = [without(case) for case in certify.cases_of(strategies, "full")]
    assert all(without(case) in every for case in cases)


def test_the_bar_estimates_the_time_left_after_a_tenth_of_the_cases(capsys):
    """A bar of 40 cases, 20 of them from a log."""
    shown = []
    for _ in certify._with_bar(iter([None] * 20), 20, 40, bar=True):
        shown.append(capsys.readouterr().err)
    assert "20/40 [00:00]" in shown[0]
    assert "<" not in "".join(shown[:2])


@pytest.mark.release
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_merged_problem_has_the_distributions_of_its_parts(transform):
    """The merged transform and stop condition give each row the results of its single problem."""
    merged = MergedProblem("zeros", tuple((name, "sequences") for name in TRANSFORMS))
    rows, place = np.arange(merged.size), list(TRANSFORMS).index(transform)
    prompt = problems.prompt_of(rows)
    for row in (0, 3, 5):
        at = place * problems.PROMPTS + row
        model, settings = problems.MODELS()["zeros"], merged.settings(rows)
        got = enumerate_distribution(model, prompt, at, **settings)
        want = merged.exact(enumerate_distribution)[at]
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.release
def test_a_merged_case_finds_mistakes_of_one_combination(monkeypatch):
    monkeypatch.setattr(running, "MERGED_REPEATS", 16)
    merged = MergedProblem("smooth", (("none", "one token"), ("none", "sequences")))
    result = certify_case(tiny_strategies.tiny_sampler(), merged, "one key")
    assert result.failure is None
    wrong = tiny_strategies.tiny_sampler("sequence before minimum")
    assert certify_case(wrong, merged, "as is").failure is not None


@pytest.mark.release
def test_processes_share_the_cases():
    names = ["greedy", "tiny_strategies:my_sampler"]
    case = {"transform": "none", "stop": "one token", "model": "smooth", "run": "as is"}
    cases = [{"strategy": name, "draft": "-"} | case for name in names]
    found = {case["strategy"]: entry for case, entry in results(cases, find(names), jobs=2)}
    assert set(found) == set(names)
    assert all(entry.failure is None for entry in found.values())
    assert found["greedy"].smallest_p == 1
    assert 1e-3 / 48 < found[names[1]].smallest_p < 1


@pytest.mark.release
def test_mistakes_of_beams_are_found(monkeypatch):
    """Another penalty, and draws of fewer candidates: at level 1e-6 for each of 32 tests."""
    problem = Problem("zeros", "none", "end tokens")
    (diverse,) = find(["diverse_beam_search"])
    other = lambda rows: {"diversity_penalty": 2 * PENALTIES[rows % problems.PROMPTS]}  # noqa: E731
    wrong = dataclasses.replace(diverse, row_settings=other)
    assert "score" in certify_case(wrong, problem, "as is").failure
    (drawn,) = find(["beam_sample/2"])
    monkeypatch.setattr(Problem, "ways_to_end", 0)
    result = certify_case(drawn, problem, "as is")
    assert result.failure is not None or min(result.p_values) < 1e-6


@pytest.mark.parametrize(
    "name",
    tiers.of_table(
        # Other tests draw by the verifiers, and by the other point sets.
        (name for name in known() if not name.startswith(("arithmetic_", "speculative_"))),
        exhaustive=[
            *("arithmetic_sample/lattice", "best_k_search", "diverse_beam_search"),
            *("metropolis_sample", "sample", "smc_sample"),
        ],
        # Their distributions, or the searches of their papers, have tests in tests/strategies;
        # rows over devices are tested by another strategy of their kind.
        release=[
            *("beam_search/1", "beam_sample/1", "beam_sample/2", "best_first_search"),
            *("conditional_sample", "constrained_beam_search", "contrastive_search"),
            *("power_sample", "stochastic_beam_search"),
        ],
    ),
)
def test_the_library_holds(name):
    """One case of each on eight devices; 48 tests share a level of 1e-3."""
    (strategy,) = [s for s in find([name]) if s.name == name]
    need_devices(8)
    problem = Problem("zeros", "none", "end tokens")
    result = certify_case(strategy, problem, "sharded")
    assert result.failure is None
    assert min(result.p_values, default=1.0) > 1e-3 / 48
