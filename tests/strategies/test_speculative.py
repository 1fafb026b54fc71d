"""Speculative decoding: its sequences, its number of calls, and the arguments it refuses."""

import dataclasses
import math

import examples
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax import Prompt, Stop, loop, models, strategies
from decoding_jax.strategies.speculative import (
    VERIFIERS,
    Assistant,
    CodeVerifier,
    Eagle,
    ModelDrafter,
    MultiTokenPrediction,
    NextToken,
    PromptLookup,
    emitted_tokens,
)
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.table_head import TableAssistant, TableHead

KEY = jax.random.key(1)
MODEL = TableLM.random(jax.random.key(0), 5)
DRAFT = TableLM.random(jax.random.key(2), 5)
LENGTH = 9


def stop_at(eos_id, minimum=(0, 0), maximum=(9, 9)):
    """All stop conditions have one structure, so that they share a program; -1 ends nothing."""
    return Stop(np.full((2, 1), eos_id), (), np.array(minimum), np.array(maximum))


def prompt_of(tokens, length):
    return Prompt(np.array(tokens, np.int32), np.array(length, np.int32))


PROMPT = prompt_of([[1, 2, 3], [4, 0, 0]], [3, 1])
STOP = stop_at(0, (5, 0), (9, 7))


def run(verifier="token", *, model=MODEL, drafter=DRAFT, prompt=PROMPT, key=KEY, **settings):
    settings = {"num_draft_tokens": 3, "max_new_tokens": LENGTH, **settings}
    settings = {"num_samples": 4, "stop": stop_at(-1), **settings}
    return jax.device_get(
        decoding_jax.speculative_sample(model, drafter, prompt, key, verifier=verifier, **settings)
    )


def same_text(got, want):
    for field in ("tokens", "length", "finished"):
        np.testing.assert_array_equal(getattr(got, field), getattr(want, field))
    np.testing.assert_allclose(got.log_prob, want.log_prob, rtol=2e-6)


DRAFTERS = {
    **{name: drafter.make(MODEL) for name, drafter in examples.DRAFTERS.items()},
    "the most probable": ModelDrafter(DRAFT, greedy=True),
    "confident": ModelDrafter(DRAFT, min_confidence=0.5),
    "prompt lookup": PromptLookup(source=prompt_of([[4, 3, 2], [1, 0, 2]], [2, 3])),
}


@pytest.mark.parametrize(
    "name",
    tiers.of_table(
        DRAFTERS,
        exhaustive=["bigram, up to 6", "next token, 1"],
        release=[
            *("another, 3", "another, up to 8", "with zeros, 2", "prompt lookup, 7"),
            *("the most probable", "confident", "multi-token, 3", "dflash, 4", "assistant, 3"),
        ],
    ),
)
def test_greedy_does_not_depend_on_the_drafter(name):
    """The sequences equal those of ``greedy`` to the bit."""
    greedy = decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=LENGTH, stop=STOP)
    got = run("greedy", drafter=DRAFTERS[name], key=None, num_samples=1, stop=STOP)
    same_text(got, greedy)
    assert got.info.target_calls <= greedy.info.model_calls - 1


KINDS = ("eagle, 3", "prompt lookup")


@pytest.mark.parametrize(
    "name", tiers.values(exhaustive=KINDS, release=[n for n in DRAFTERS if n not in KINDS])
)
def test_code_and_gumbel_do_not_depend_on_the_drafter(name):
    """A drafter with distributions, and a guesser. Codes are those of ``arithmetic_sample``."""
    drafter, settings = DRAFTERS[name], {"max_new_tokens": LENGTH, "stop": STOP}
    spread = decoding_jax.arithmetic_sample(MODEL, PROMPT, KEY, num_samples=4, **settings)
    same_text(run("code", drafter=drafter, stop=STOP), spread)
    same_text(run("gumbel", drafter=drafter, stop=STOP), run("gumbel", stop=STOP))


@pytest.mark.release
def test_several_codes_are_those_of_arithmetic_sample():
    several = {"order": "probability", "after": "lattice"}
    spread = decoding_jax.arithmetic_sample(
        MODEL, PROMPT, KEY, num_samples=4, max_new_tokens=LENGTH, stop=STOP, **several
    )
    same_text(run(CodeVerifier(**several), stop=STOP), spread)


@pytest.mark.release
@pytest.mark.parametrize(
    ("verifier", "size"),
    [
        pytest.param("block", 3, marks=pytest.mark.exhaustive),
        pytest.param("greedy", 8, marks=pytest.mark.exhaustive),
        pytest.param("token", 1, marks=pytest.mark.release),
        *(
            pytest.param(name, 3, marks=pytest.mark.release)
            for name in VERIFIERS
            if name != "block"
        ),
    ],
)
def test_a_draft_that_is_its_target_takes_the_fewest_calls(verifier, size):
    """A gap in the draft's cache lowers acceptance without changing any distribution."""
    settings = {"key": None, "num_samples": 1} if verifier == "greedy" else {}
    got = run(verifier, drafter=MODEL, num_draft_tokens=size, **settings)
    assert got.info.target_calls == math.ceil((LENGTH - 1) / (size + 1))
    assert got.info.acceptance_rate == 1
    assert (got.info.rejected == 0).all()
    assert (got.info.emitted == LENGTH - 1).all()


@pytest.mark.release
@pytest.mark.parametrize(
    "case", tiers.values((3, 1), exhaustive=[(8, 1), (2, 2)], release=[(1, 1), (2, 1), (3, 3)])
)
def test_a_head_that_predicts_its_target_takes_the_fewest_calls(case):
    """Its table gives NaN after an entry that is missing, stale or of other features."""
    size, drafts = case
    ids = np.arange(5, dtype=np.int32)
    eagle = Eagle(TableHead(MODEL, MODEL, ids), vocab_size=5, token_ids=ids)
    got = run("token", drafter=eagle, num_draft_tokens=size, num_drafts=drafts)
    assert got.info.target_calls == math.ceil((LENGTH - 1) / (size + 1))
    assert got.info.acceptance_rate == 1
    assert (got.info.emitted == LENGTH - 1).all()


@pytest.mark.release
@pytest.mark.parametrize(
    "case",
    tiers.values((2, 3, 1), exhaustive=[(3, 5, 1)], release=[(1, 3, 1), (3, 3, 1), (3, 2, 2)]),
)
def test_blocks_that_predict_their_target_take_the_fewest_calls(case):
    """As above, with every number of blocks, and more drafted tokens than blocks."""
    blocks, size, drafts = case
    ids = np.arange(5, dtype=np.int32)
    made = [TableHead(MODEL, MODEL, ids, depth=k) for k in range(1, blocks + 1)]
    rows = np.asarray(PROMPT.length) >= blocks  # Others begin with tokens that no block can see.
    prompt = Prompt(np.asarray(PROMPT.tokens)[rows], np.asarray(PROMPT.length)[rows])
    got = decoding_jax.speculative_sample(
        MODEL,
        MultiTokenPrediction(made),
        prompt,
        KEY,
        num_samples=2,
        num_draft_tokens=size,
        num_drafts=drafts,
        max_new_tokens=LENGTH,
    )
    assert got.info.target_calls == math.ceil((LENGTH - 1) / (size + 1))
    assert got.info.acceptance_rate == 1


@pytest.mark.release
@pytest.mark.parametrize(
    "settings",
    tiers.values(
        {"num_draft_tokens": 3},
        exhaustive=[{"num_draft_tokens": 2, "num_drafts": 3}],
        release=[
            {"num_draft_tokens": 1},
            {"num_draft_tokens": 3, "num_drafts": 2, "tree": "dynamic", "tree_size": 5},
        ],
    ),
)
def test_an_assistant_that_predicts_its_target_reads_the_right_keys(settings):
    """Its table gives NaN after keys of another path than that of the state."""
    assistant = Assistant(TableAssistant(TableHead(MODEL, MODEL, np.arange(5, dtype=np.int32))))
    got = run("token", drafter=assistant, **settings)
    assert (got.info.emitted == LENGTH - 1).all()
    if "tree" in settings:  # whose texts need not be in the tree
        assert got.info.acceptance_rate > 0.5
    else:
        assert got.info.acceptance_rate == 1
        size = settings["num_draft_tokens"]
        assert got.info.target_calls == math.ceil((LENGTH - 1) / (size + 1))


def test_an_assistant_needs_a_model_whose_keys_it_may_read():
    assistant = Assistant(TableAssistant(TableHead(MODEL, MODEL, np.arange(5, dtype=np.int32))))
    without = models.product([MODEL, MODEL], [1, 1])
    with pytest.raises(ValueError, match=r"^model: expected one whose keys and values this dra"):
        run(model=without, drafter=assistant)


def test_a_drafter_of_features_needs_a_model_that_has_them():
    ids = np.arange(5, dtype=np.int32)
    eagle = Eagle(TableHead(MODEL, MODEL, ids), vocab_size=5, token_ids=ids)
    without = models.product([MODEL, MODEL], [1, 1])
    with pytest.raises(ValueError, match="model: expected one that returns the hidden states of"):
        run(model=without, drafter=eagle)


@pytest.mark.exhaustive
def test_counts_add_up():
    got = run(stop=STOP)
    info = got.info
    assert (info.emitted == got.length - 1).all()
    assert (info.accepted + info.rejected <= info.emitted).all()
    assert (info.accepted <= info.proposed).all()
    for total, name in (("proposed", "depth"), ("accepted", "depth"), ("accepted", "draft")):
        parts = getattr(info, f"{total}_by_{name}")
        assert (parts.sum(-1) == getattr(info, total)).all()
        assert (np.diff(parts) <= 0).all()
    assert (info.accepted_by_depth <= info.proposed_by_depth).all()
    assert np.isclose(info.acceptance_by_depth.sum(), info.accepted.sum() / info.blocks.sum())
    assert (info.blocks <= info.target_calls).all()
    assert info.target_calls == info.blocks.max()
    assert info.draft_calls <= 3 * info.target_calls
    # A GPU's division has an error in the last place.
    assert np.isclose(info.tokens_per_call, info.emitted.sum() / info.blocks.sum(), 1e-6)
    assert np.isclose(info.tokens_per_iteration, info.emitted.sum() / (8 * info.target_calls), 1e-6)


@pytest.mark.release
def test_a_token_that_the_target_bans_is_never_accepted():
    """The drafter always proposes one token, an end token that is banned by the minimum length."""
    stubborn = NextToken(np.full(5, 3, np.int32))
    for verifier in ("token", "block"):
        got = run(verifier, drafter=stubborn, stop=stop_at(3, (9, 9)))
        assert (got.info.accepted == 0).all()
        assert (got.info.proposed > 0).all()
        assert not (np.asarray(got.tokens) == 3).any()


@pytest.mark.exhaustive
def test_no_token_allowed_and_no_token_asked_for():
    nothing = run(transform=lambda logits, prefix: jnp.full_like(logits, -jnp.inf))
    assert (nothing.length == 0).all()
    assert not nothing.finished.any()
    assert nothing.info.target_calls == 0
    part = run(stop=stop_at(-1, (0, 0), (0, 9)))
    assert (part.length == np.array([[0] * 4, [9] * 4])).all()
    assert same_bits(part.tokens[1], run().tokens[1])


@pytest.mark.release
def test_a_context_that_is_full_takes_one_more_token():
    small = dataclasses.replace(MODEL, max_positions=4)
    full = run("greedy", model=small, drafter=small, max_new_tokens=2, num_samples=1)
    same_text(full, decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=2))
    for which in ({"model": small}, {"drafter": small}):
        with pytest.raises(
            ValueError, match="max_new_tokens: expected at most 2 after a prompt of 3, got"
        ):
            run(max_new_tokens=3, **which)
    with pytest.raises(ValueError, match=r"^drafter: max_new_tokens"):
        run(max_new_tokens=3, drafter=small)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"drafter": TableLM.random(KEY, 6)},
            "drafter: expected the model's vocabulary of 5, got one of 6",
        ),
        (
            {"drafter": MODEL.lockstep()},
            "drafter: expected a model with ragged=True, got one whose",
        ),
        ({"drafter": PROMPT}, "drafter: expected a language model or a drafter, got"),
        (
            {"num_drafts": 2, "verifier": "gumbel"},
            "verifier: expected token or block for several drafts, got gumbel",
        ),
        (
            {"num_drafts": 2, "drafter": ModelDrafter(DRAFT, greedy=True)},
            "drafter: expected drawn drafts of equal length where there are several, got",
        ),
        (
            {"num_drafts": 2, "drafter": PromptLookup()},
            "drafter: expected a language model or a drafter of trees, such as Eagle, for",
        ),
        ({"model": MODEL.lockstep()}, "model: expected one with ragged=True, got one whose rows"),
        ({"key": jnp.zeros(2, jnp.uint32)}, "key: expected a typed key"),
        (
            {"drafter": PromptLookup(source=Prompt(PROMPT.tokens[:1], PROMPT.length[:1]))},
            "source: expected as many rows as the prompt's 2, got 1",
        ),
    ],
)
def test_bad_arguments_get_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        run(**change)
    assert "\n" not in str(caught.value)


@pytest.mark.release
def test_a_constant_acceptance_rate_gives_the_closed_form():
    """The distributions do not depend on the path; 2**14 lanes, within five standard errors."""
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    flat = lambda x: dataclasses.replace(  # noqa: E731
        TableLM.random(KEY, 3), table=jnp.broadcast_to(x, (11, 4, 3, 3))
    )
    target, draft = flat(logits), flat(logits[::-1])
    prompt = Prompt(jnp.array([[1]]), jnp.array([1]))
    parts = loop.stream(
        strategies.speculative_sample,
        target,
        prompt,
        KEY,
        drafter=draft,
        num_samples=2**14,
        num_draft_tokens=3,
        max_new_tokens=5,
    )
    _, after_one_block = next(parts), next(parts)
    info = after_one_block.info
    verified = int((info.accepted + info.rejected).sum())
    assert abs(float(info.acceptance_rate) - 0.7) < 5 * np.sqrt(0.21 / verified)
    assert abs(float(info.tokens_per_call) - float(emitted_tokens(0.7, 3))) < 5 * 1.2 / 2**7


@pytest.mark.release
@pytest.mark.parametrize("verifier", ["token", "block"])
def test_a_tree_of_drafts_has_a_higher_acceptance_rate_than_one_draft(verifier):
    """Other tests check its distribution."""
    settings = {"num_samples": 64, "num_draft_tokens": 3, "verifier": verifier}
    one, three = run(**settings), run(num_drafts=3, **settings)
    assert three.info.acceptance_rate > one.info.acceptance_rate + 0.05
    assert run(num_drafts=3, drafter=MODEL, **settings).info.target_calls == 2
