"""Beam search and its relatives: lanes, streams, hostile rows, refusals, and each other."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from test_beam_widths import KEY, PROMPT

import decoding_jax
from decoding_jax import Stop, strategies
from decoding_jax.loop import shared_cache
from decoding_jax.strategies.beam.competition import Pool, Rules, initial_beam, may_improve
from decoding_jax.strategies.beam.length_penalty import PowerPenalty
from decoding_jax.strategies.beam.loop import shared_tokens
from decoding_jax.testing import TableLM, same_bits

SEARCHES = {
    "beam_search": {"beam_size": 4, "length_penalty": 0.7},
    "beam_sample": {"beam_size": 4, "length_penalty": 0.7},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2, "diversity_penalty": 0.8},
    "stochastic_beam_search": {"beam_size": 4},
}
# Each group of a diverse search has an empty sequence, and a stochastic search dead ends of its
# own. Hypotheses that are drawn are those of beam_search otherwise.
LATER = ("diverse_beam_search", "stochastic_beam_search")
every = pytest.mark.parametrize(
    "name", tiers.of_table(SEARCHES, release=["beam_sample"], exhaustive=LATER)
)
WIDER = TableLM.random(jax.random.key(4), 5, zeros=0.2)


def run(name, *, model=WIDER, prompt=PROMPT, key=KEY, **settings):
    args = (key,) if name in ("beam_sample", "stochastic_beam_search") else ()
    settings = {"max_new_tokens": 5, "stop": Stop(eos_ids=(0,))} | SEARCHES[name] | settings
    return jax.device_get(getattr(decoding_jax, name)(model, prompt, *args, **settings))


@pytest.mark.exhaustive
@every
def test_lanes_that_are_gathered_give_what_a_tree_gives(name):
    tree, gathered = run(name), run(name, model=WIDER.lockstep())
    for part in ("tokens", "length", "finished"):
        assert same_bits(getattr(tree, part), getattr(gathered, part))
    np.testing.assert_allclose(tree.log_prob, gathered.log_prob, rtol=2e-6)
    np.testing.assert_allclose(tree.score, gathered.score, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("width", "is_tree"), [(64, True), (65, False)])
def test_wide_searches_gather_lanes_on_a_cpu(width, is_tree):
    if jax.default_backend() != "cpu":
        pytest.skip("GPUs and TPUs keep every search as a tree")
    _, shared = jax.eval_shape(lambda: shared_cache.open_cache(WIDER, PROMPT, width, 3))
    assert (shared.ancestors is not None) == is_tree


@every
def test_all_banned_an_empty_row_and_a_dead_end(name):
    """Row 0 may not continue, row 1 has a limit of 0, row 2 has a dead end after every token."""

    stop = Stop(eos_ids=(0,), max_new_tokens=(5, 0, 5))
    output = run(name, stop=stop, transform=Dead())
    assert not np.isnan(output.log_prob).any()
    assert not np.isnan(output.score).any()
    assert not output.finished[:2].any()
    assert output.length[:2].tolist() == [[0] * 4] * 2
    exists = output.log_prob > -np.inf
    want = [1, 1]  # the empty sequence, once; groups of a diverse search have one each
    if name == "diverse_beam_search":
        want = [2, 2]
    assert exists.sum(-1)[:2].tolist() == want
    assert (output.log_prob[:2][exists[:2]] == 0).all()
    assert (output.length[2] <= 1).all()
    assert output.finished[2].tolist() == [
        bool(e) and t[0] == 0 for e, t in zip(exists[2], output.tokens[2].tolist(), strict=True)
    ]


class Dead:
    """Bans everything in row 0, and after the first token in row 2."""

    def __call__(self, logits, prefix):
        row = jnp.arange(logits.shape[0])[:, None, None]
        dead = (row == 0) | ((row == 2) & (prefix.length > 0))
        return jnp.where(dead[..., None], -jnp.inf, logits)


@pytest.mark.exhaustive
@every
def test_a_width_above_the_number_of_sequences(name):
    output = run(name, max_new_tokens=1, beam_size=16, **_groups(name, 1))
    exists = np.asarray(output.log_prob) > -np.inf
    for row in range(3):
        count = exists[row].sum()
        assert 1 <= count <= 5
        assert exists[row, :count].all()
        first = output.tokens[row, :count, 0].tolist()
        assert len(set(first)) == count
        assert not output.length[row, count:].any()


def _groups(name, groups):
    return {"num_groups": groups} if name == "diverse_beam_search" else {}


@every
def test_a_prompt_that_fills_the_context(name):
    model = TableLM.random(jax.random.key(4), 5, max_positions=5)
    output = run(name, model=model, max_new_tokens=3)
    assert np.isfinite(output.score).all()
    with pytest.raises(
        ValueError, match=r"^max_new_tokens: expected at most 3 after a prompt of 3, got 4:"
    ):
        run(name, model=model, max_new_tokens=4)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "beam_search",
            {"num_return": 5},
            "num_return: expected 1 to beam_size, which is 4, got 5",
        ),
        (
            "beam_search",
            {"length_penalty": "long"},
            r"length_penalty: expected a number, one for each row \[B\], or",
        ),
        (
            "diverse_beam_search",
            {"num_groups": 3},
            "num_groups: expected a divisor of beam_size, which is 4,",
        ),
        (
            "stochastic_beam_search",
            {"key": jnp.uint32([0, 1])},
            "key: expected a typed key such",
        ),
    ],
)
def test_bad_settings_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        run(name, **settings)


def test_a_model_that_can_neither_branch_nor_gather_is_refused():
    class Bare:
        tree, ragged, max_positions, vocab_size = False, False, None, 5
        prefill = extend = None

    with pytest.raises(ValueError, match=r"^model: expected one with tree or select, since hypoth"):
        strategies.beam_search(Bare(), PROMPT, beam_size=2, max_new_tokens=3)


@pytest.mark.exhaustive
def test_diverse_groups_without_a_penalty_are_beam_searches_of_their_width():
    output = run("diverse_beam_search", diversity_penalty=0.0)
    beam = run("beam_search", beam_size=2, length_penalty=0.0)
    for n in range(4):  # two groups, each hypothesis twice, ranked together
        assert same_bits(output.tokens[:, n], beam.tokens[:, n // 2])
        assert same_bits(output.score[:, n], beam.score[:, n // 2])
    one = run("diverse_beam_search", num_groups=1, diversity_penalty=5.0)
    assert same_bits(one[:5], run("beam_search", length_penalty=0.0)[:5])


def test_a_penalty_that_forbids_makes_groups_differ_at_every_step():
    model = TableLM.random(jax.random.key(5), 5)
    settings = {"num_groups": 4, "diversity_penalty": 100.0, "stop": Stop()}
    output = run("diverse_beam_search", model=model, **settings)
    for row in output.tokens.tolist():
        for position in zip(*row, strict=True):
            assert len(set(position)) == 4


@pytest.mark.exhaustive
@pytest.mark.optimized
def test_the_loop_gives_no_operation_a_whole_cache_as_its_result():
    """Keys and values are part of the loop's state, and all updates of them happen in place."""
    model = decoding_jax.load("translation-en-fr")[0]
    bound = model.bind(jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]))
    # Sizes that no other array has: 3 x 43 slots of 4 heads of 64.
    lowered = decoding_jax.beam_search.lower(
        bound, bound.start_prompt(), beam_size=3, max_new_tokens=44
    )
    program = lowered.compile().as_text()
    name = re.search(r"while\(.*body=(%?[\w.-]+)", program)[1].lstrip("%")
    lines = program.splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(rf"%?{re.escape(name)} ", line))
    body = lines[first : next(i for i in range(first, len(lines)) if lines[i].startswith("}"))]
    whole = [line for line in body if re.search(r"= f32\[2,(1,)?4,129,64\]", line)]
    assert sum("scatter" in line or "update" in line for line in whole) >= 8
    allowed = r"(get-tuple-element|bitcast|scatter|dynamic-update-slice|fusion)\("
    strays = [line for line in whole if not re.search(allowed, line)]
    fused = [line for line in whole if "fusion(" in line and "scatter" not in line]
    assert not strays
    assert not [line for line in fused if "update" not in line]


def test_a_positive_score_is_bounded_by_the_shorter_length():
    """5 over a length of 1 beats a pool's worst of 1, although 5 over the limit, 10, does not."""
    rules = Rules(Stop(), PowerPenalty(1.0), "never")
    empty = initial_beam(1, 1, 10, Stop())
    running = empty.running._replace(score=jnp.array([[5.0]]))
    pool = empty.pool._replace(score=jnp.array([[1.0]]))
    assert may_improve(rules, running, pool, jnp.int32(1), jnp.int32([10])).all()
    assert not may_improve(rules, running, pool, jnp.int32(6), jnp.int32([10])).any()
    negative = running._replace(score=jnp.array([[-5.0]]))
    pool = pool._replace(score=jnp.array([[-1.0]]))
    assert may_improve(rules, negative, pool, jnp.int32(1), jnp.int32([10])).all()


def test_a_row_has_settled_as_far_as_its_hypotheses_agree():
    """Up to the shortest of those that exist: tokens 1; 1 2; none; and all of a single one."""
    tokens = np.array(
        [[[1, 2, 3], [1, 4, 3]], [[1, 2, 0], [1, 2, 3]], *[[[1, 2, 3], [9, 9, 9]]] * 2]
    )
    length = np.array([[3, 3], [2, 3], [3, 3], [3, 3]])
    score = np.where([[1, 1], [1, 1], [0, 0], [1, 0]], np.float32(-1), -np.inf)
    pool = Pool(tokens.astype(np.int32), length.astype(np.int32), score, score, length > 0)
    assert jax.jit(shared_tokens)(pool).tolist() == [1, 2, 0, 3]
