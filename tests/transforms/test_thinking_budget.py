"""Budgets of thinking: by enumeration, with carried states, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import each, softmax, thinking_budget

import decoding_jax
from decoding_jax import Prefix, Prompt, Stop, transforms
from decoding_jax.testing import TableLM, enumerate_distribution, log_probs
from decoding_jax.transforms import carried

VOCAB, LENGTH = 4, 5
MODEL = TableLM.random(jax.random.key(0), VOCAB)
# Texts within a span, with half of a start mark, and outside of one.
PROMPT = Prompt(np.array([[1, 2], [2, 1], [3, 0], [1, 2]], np.int32), np.array([2, 2, 1, 2]))
STOP = Stop(eos_ids=(0,))
MARKS = {"start": (1, 2), "end": (2, 3), "then": (1,)}
LIMITS = (2, 1, 0, 0)
ENDED_INSIDE = ([0], [1, 0], [2, 0], [3, 0])  # of the first row
logits_after = functools.cache(lambda path: log_probs(MODEL, path))


def test_the_distribution_is_the_models_wherever_nothing_is_forced():
    """Every text of four rows, some of which end with an end token in the midst of a span."""
    budget = transforms.thinking_budget(**MARKS, max_tokens=each(*LIMITS))
    for row, limit in enumerate(LIMITS):
        given = {"max_new_tokens": LENGTH, "stop": STOP}
        exact = enumerate_distribution(MODEL, PROMPT, row, transform=budget, **given)
        start = PROMPT.tokens[row, : PROMPT.length[row]].tolist()
        assert exact.prob.sum() == pytest.approx(1, abs=1e-5)
        forced_texts = ended_inside = 0
        for tokens, length, prob in zip(exact.tokens, exact.length, exact.prob, strict=True):
            path, expected, is_forced = start, 1.0, False
            for token in tokens[:length].tolist():
                logits = logits_after(tuple(path))
                made = thinking_budget(logits, path, max_tokens=limit, **MARKS)
                is_forced |= made is not logits
                expected *= softmax(made)[token]
                path = [*path, token]
            assert prob == pytest.approx(expected, rel=1e-5)
            forced_texts += is_forced
            ended_inside += row == 0 and not is_forced and path[2:] in ENDED_INSIDE
        assert 0 < forced_texts <= len(exact.prob)
        assert ended_inside == (len(ENDED_INSIDE) if row == 0 else 0)
        if limit == 0 and row == 3:  # The first three tokens are certain.
            assert (exact.tokens[:, :3] == [1, 2, 3]).all()


@jax.jit
def whole(budget, prefix):
    return budget.states_after(prefix)


@jax.jit
def in_two_parts(budget, prefix, first):
    """The states after the first tokens of each path, and from them those after the others."""
    beginning = prefix._replace(length=jnp.minimum(first, prefix.length))
    states = decoding_jax.base.CarriedStates(budget.states_after(beginning), beginning.length)
    return carried.advance(budget, prefix, states, rest=prefix.tokens.shape[-1]).carried.states


@pytest.mark.parametrize(
    ("start", "end"), [((1, 2), (2, 1)), ((1, 1), (1, 1)), ((1, 2), (1, 2))], ids=str
)
def test_a_carried_state_is_that_of_the_whole_text(start, end):
    """Marks that overlap, with themselves and with each other, in texts of two tokens."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(1, 3, (8, 3)), draw.integers(1, 4, 8)
    tokens, length = draw.integers(1, 3, (8, 2, 2, 9)), draw.integers(0, 10, (8, 2, 2))
    prefix = jax.tree.map(lambda x: x.astype(np.int32), Prefix(*prompt, tokens, length))
    budget = transforms.thinking_budget(start, end, max_tokens=1)
    states = jax.device_get(whole(budget, prefix))
    for first in (0, 1, 4):
        found = jax.device_get(in_two_parts(budget, prefix, np.int32(first)))
        np.testing.assert_array_equal(found, states)
    assert len(np.unique(states[0])) > 4


def test_a_prompt_that_does_not_count_opens_no_span():
    prefix = Prefix(
        jnp.array([[1, 2]]), jnp.array([2]), jnp.array([[[[3, 1]]]]), jnp.array([[[2]]])
    )
    counted = transforms.thinking_budget((1, 2), (2,), max_tokens=0)
    assert whole(counted, prefix)[0] == 2
    new_only = transforms.thinking_budget((1, 2), (2,), max_tokens=0, include_prompt=False)
    assert whole(new_only, prefix)[0] == -1


def test_a_string_without_a_tokenizer_is_refused():
    budget = transforms.thinking_budget("<think>", (2,), max_tokens=1)
    with pytest.raises(ValueError, match=r"thinking_budget.start: expected token ids; .*<think>"):
        decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=2, transform=budget)


def test_what_is_forced_before_the_end_mark_does_not_contain_it():
    with pytest.raises(ValueError, match=r"thinking_budget.then: expected tokens without the end"):
        transforms.thinking_budget((1,), (2,), max_tokens=1, then=(3, 2))
