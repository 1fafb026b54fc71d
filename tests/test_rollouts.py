"""Errors of policy gradients: by the moments of groups, by all groups, and by all shifts."""

import itertools
import json
import re

import numpy as np
import pytest
from pages import ROOT

from experiments import rollouts, rollouts_training
from experiments.papers.fewer_samples_truth import Pieces, pieces_of_lattice

LENGTH, SIZE = 2, 3


def policy(seed):
    rng = np.random.default_rng(seed)
    tokens, prob, gradients = rollouts.texts_of(rng.normal(size=(SIZE, SIZE)), LENGTH)
    return tokens, prob, gradients, tokens[:, -1] == 1


def by_groups(groups, chance, reward, gradients, advantage, share):
    """The mean and the mean square of the estimate, from all groups and their probabilities."""
    count = groups.shape[1]
    yes, no = rollouts.weights(advantage, count, share)
    k = reward[groups].sum(1)
    each = np.where(reward[groups], yes[k][:, None], no[k][:, None]) / count
    drawn = (each[..., None] * gradients[groups]).sum(1)
    return chance @ drawn, chance @ (drawn**2).sum(1)


@pytest.mark.parametrize("advantage", rollouts.ADVANTAGES)
def test_an_estimate_is_that_of_all_groups(advantage):
    _, prob, gradients, reward = policy(0)
    share, gradient = prob @ reward, (prob * reward) @ gradients
    # The gradient of the mean reward, by differences.
    logits = np.random.default_rng(0).normal(size=(SIZE, SIZE))
    moved = logits.copy()
    moved[1, 2] += 1e-5
    change = rollouts.texts_of(moved, LENGTH)[1] @ reward - share
    assert change / 1e-5 == pytest.approx(gradient.reshape(SIZE, SIZE)[1, 2], abs=1e-5)

    groups = np.array(list(itertools.product(range(len(prob)), repeat=3)))
    mean, square = by_groups(groups, prob[groups].prod(1), reward, gradients, advantage, share)
    alone = Pieces(np.ones(1), np.zeros((1, 3), int), np.zeros(1, int), np.array([len(prob)]))
    found = rollouts.moments(alone, prob, reward, gradients)
    assert found.chance == pytest.approx(
        [(1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3]
    )
    expected = rollouts._estimate(mean, square, gradient, found.chance[0] + found.chance[-1])
    result = rollouts.estimate(found, advantage, share, gradient)
    assert result == pytest.approx(expected)
    # Given their number of rewards, independent samples have the gradient's direction.
    assert result.bias == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("carried", [False, True])
def test_groups_of_a_lattice_are_those_of_all_shifts(carried):
    """20,000 shifts in the middle of equal cells, and later tokens by all outcomes."""
    _, prob, gradients, reward = policy(1)
    share, gradient = prob @ reward, (prob * reward) @ gradients
    pieces = pieces_of_lattice(prob.reshape(SIZE, SIZE), 2, carried)
    found = rollouts.moments(pieces, prob, reward, gradients)
    shifts = (np.arange(20_000) + 0.5) / 40_000
    ends = np.cumsum(prob)
    texts = np.searchsorted(ends, shifts[:, None] + np.arange(2) / 2, side="right")
    first = texts // SIZE
    width = prob.reshape(SIZE, SIZE).sum(1)
    mean, square = 0, 0
    for later in itertools.product(range(SIZE), repeat=2):
        # A sample whose first token has at most 1/2 is alone, and draws its second one.
        alone = (width[first] <= 0.5) & (not carried)
        groups = np.where(alone, first * SIZE + np.array(later), texts)
        draw = prob.reshape(SIZE, SIZE)[first, later] / width[first]
        chance = np.where(alone, draw, 1 / SIZE).prod(1) / len(shifts)
        part = by_groups(groups, chance, reward, gradients, "group", share)
        mean, square = mean + part[0], square + part[1]
    expected = rollouts._estimate(mean, square, gradient, 0.0)[:2]
    assert rollouts.estimate(found, "group", share, gradient)[:2] == pytest.approx(
        expected, rel=1e-3, abs=1e-3
    )


def test_a_baseline_that_depends_on_no_sample_has_no_bias():
    _, prob, gradients, reward = policy(2)
    share, gradient = prob @ reward, (prob * reward) @ gradients
    for carried in (False, True):
        pieces = pieces_of_lattice(prob.reshape(SIZE, SIZE), 4, carried)
        found = rollouts.moments(pieces, prob, reward, gradients)
        known = rollouts.estimate(found, "mean", share, gradient)
        assert known.bias == pytest.approx(0, abs=1e-9)
        assert rollouts.estimate(found, "group", share, gradient).bias > 1e-6


def test_intervals_of_the_page_are_those_of_the_committed_results():
    data = json.loads((ROOT / "docs" / "measured" / "rollouts.json").read_text())
    number = r"[-+]?\d+(?:\.\d+)?"
    page = (ROOT / "docs" / "rollouts.md").read_text()
    found = re.findall(rf"(?<![\w.])({number} \({number} to {number}\))", page)
    assert len(found) > 20
    trained = json.loads((ROOT / "docs" / "measured" / "rollouts_training.json").read_text())
    made = rollouts.markdown(data["rows"]) + rollouts_training.markdown(trained["rows"])
    assert [interval for interval in found if interval not in made] == []
