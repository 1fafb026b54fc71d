"""chrF and BLEU of all pairs on the device, and minimum Bayes risk decoding with them."""

import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages import ROOT

from decoding_jax.estimators import choice, ngrams, pairwise, pruning

EDGES = [
    "",
    " \n",
    "a",
    "é",
    "le le le le le",
    "Le chat.",
    "1,000.5 -- x",
    "a b",
    "&quot;b&quot;",
    "𝄞 a",
]


def texts():
    """64 texts: held-out sentences, random characters, and edges."""
    rng = np.random.default_rng(0)
    path = ROOT / "experiments" / "data" / "tatoeba_held_out.jsonl"
    lines = [json.loads(line)["fr"] for line in path.read_text("utf-8").splitlines()[:300:10]]
    lengths = rng.integers(0, 40, 64 - len(lines) - len(EDGES))
    return [*EDGES, *lines, *("".join(rng.choice(list("ab c.,-1é"), n)) for n in lengths)]


def counted(text, reference, n):
    grams = (Counter(tuple(t[i : i + n]) for i in range(len(t) - n + 1)) for t in (text, reference))
    return sum((next(grams) & next(grams)).values())


@pytest.mark.parametrize("table_size", [2**24, 100])
def test_matches_are_those_of_counters(table_size):
    rng = np.random.default_rng(1)
    sizes, length = ((2, 3, 8), (2, 2, 5)), ([[8, 1, 0], [5, 6, 7]], [[5, 4], [0, 3]])
    tokens = [rng.integers(-1, 2, size).astype(np.int32) for size in sizes]
    groups = [
        ngrams.PaddedTexts(t, np.array(n, np.int32)) for t, n in zip(tokens, length, strict=True)
    ]
    found = np.asarray(ngrams.matches(*groups, order=3, table_size=table_size))
    rows = [
        [[t[:n].tolist() for t, n in zip(*row, strict=True)] for row in zip(*group, strict=True)]
        for group in groups
    ]
    want = [
        [
            [[counted(a, b, n) for b in theirs] for a in ours]
            for ours, theirs in zip(*rows, strict=True)
        ]
        for n in (1, 2, 3)
    ]
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_scores_are_those_of_sacrebleu(name):
    """Within 1e-6 of the range of 0 to 100, for 64 x 64 pairs."""
    import sacrebleu

    theirs, rows = getattr(sacrebleu, f"sentence_{name}"), texts()
    found = np.asarray(getattr(pairwise, name)(rows))
    want = [[theirs(text, [reference]).score for reference in rows] for text in rows[::3]]
    np.testing.assert_allclose(found[::3], want, atol=1e-4)


def test_the_best_of_all_pairs():
    rows = [text for text in texts() if text.strip()]
    rows = (rows * 2)[:64]
    metric = lambda text, references: float(table[rows.index(text), rows.index(references[0])])  # noqa: E731
    table = np.asarray(pairwise.chrf(rows))
    index = int(pairwise.best(jnp.asarray(table)))
    assert index == choice.minimum_bayes_risk(rows, metric)
    assert int(pairwise.best(jnp.array([[jnp.nan, 1.0], [-jnp.inf, -jnp.inf]]))) == 1
    everything = pruning.minimum_bayes_risk(
        jax.random.key(0),
        rows,
        lambda a, b: np.array([[metric(x, [y]) for y in b] for x in a]),
        alpha=1,
    )
    assert everything.best == index
    assert everything.num_utilities == len(set(rows)) ** 2
    assert everything.left == tuple(rows.index(text) for text in dict.fromkeys(rows))


def test_pruning_drops_what_cannot_be_the_best_and_little_else():
    """Utilities are a candidate's worth plus noise; 1,000 resamples, 8 keys.

    The best is ahead of the second by 3 and the noise has a deviation of 1, so after 8 samples the
    others are behind by 8 deviations of the mean and more.
    """
    worth = np.array([0.0, 3, -20, 6, 2, 1, -1, 1])
    names = [f"candidate {i}" for i in range(8)]
    samples = [f"sample {i}" for i in range(32)]
    noise = np.random.default_rng(2).normal(size=(8, 32)).astype(np.float32)
    calls = []

    def utility(found, references):
        rows, columns = ([int(t.split()[1]) for t in group] for group in (found, references))
        calls.append(len(rows) * len(columns))
        return worth[rows, None] + noise[np.ix_(rows, columns)]

    for i in range(8):
        calls.clear()
        chosen = pruning.minimum_bayes_risk(
            jax.random.key(i), names, utility, references=samples, num_resamples=1000
        )
        assert chosen == (3, sum(calls), (3,))
        assert chosen.num_utilities == 8 * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"texts": []}, "texts: expected a list of one text or more, got []"),
        ({"references": "a"}, "references: expected a list of one text or more, got 'a'"),
        ({"alpha": 1.5}, "alpha: expected a number from 0 to 1, got 1.5"),
        ({"schedule": (2, 3)}, "schedule: expected rising numbers from 1 to the number"),
        (
            {"schedule": (2, 2)},
            "schedule: expected rising numbers from 1 to the number of references, 2, got [2, 2]",
        ),
        ({"schedule": ()}, "schedule: expected rising numbers"),
        ({"num_resamples": 0}, "num_resamples: expected 1 or more, got 0"),
        ({"key": 0}, "key: expected a typed key such as jax.random.key(0), got int"),
        ({"utility": lambda texts, references: np.zeros(2)}, "utility: expected scores [N, M], "),
    ],
)
def test_mistakes_in_pruning_are_one_line(settings, message):
    given = {"key": jax.random.key(0), "texts": ["a", "b"], "utility": pairwise.chrf, **settings}
    with pytest.raises(ValueError) as error:
        pruning.minimum_bayes_risk(**given)
    assert message in str(error.value)


def test_one_text_is_not_a_list():
    with pytest.raises(ValueError, match="texts: expected a list of texts, got 'abc'"):
        pairwise.chrf("abc")
