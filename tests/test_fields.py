"""Settings of a user's own strategies and transforms: declared once, checked when they are made."""

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax
from decoding_jax import (
    Decay,
    Greedy,
    MeanLogProb,
    Prompt,
    Sample,
    fields,
    loop,
    registry,
    transforms,
)
from decoding_jax.rows import take_rows
from decoding_jax.testing import TableLM, same_bits

MODEL = TableLM.random(jax.random.key(0), 5)
PROMPT = Prompt(np.array([[1, 2], [3, 0]], np.int32), np.array([2, 1], np.int32))
KEY = jax.random.key(1)


@decoding_jax.pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tempered(Sample):
    """Sampling at a temperature. Its settings have names that other strategies use otherwise."""

    gamma: Any = fields.number("a number above 0", lambda x: x > 0, default=1.0)
    k: float = fields.static_number("a number of 1 or more", lambda x: x >= 1, default=1.0)
    points: int = fields.count(default=3)
    width: int = fields.count(default=2)
    order: str = fields.choice("up", "down", default="up")

    def choose(self, chooser, logits, step):
        logits = logits / jnp.asarray(self.gamma, jnp.float32).reshape(-1, 1, 1)
        return super().choose(chooser, logits, step)


tempered = loop.as_function(Tempered)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0}, r"gamma: expected a number above 0, or one for each row \[B\], got 0"),
        ({"gamma": float("nan")}, "gamma: expected a number above 0, .* got nan"),
        ({"gamma": "2"}, "gamma: expected a number above 0, .* got '2'"),
        ({"gamma": jnp.array([1.0, -1.0])}, r"gamma: expected a number above 0, .*-1.0\]"),
        ({"k": 0.5}, "k: expected a number of 1 or more, got 0.5"),
        ({"points": 0}, "points: expected an int of 1 or more, got 0"),
        ({"width": 2.5}, "width: expected an int of 1 or more, got 2.5"),
        ({"width": True}, "width: expected an int of 1 or more, got True"),
        ({"width": np.array([2, 3])}, r"width: expected an int of 1 or more, got int64\[2\]"),
        ({"order": "left"}, "order: expected one of 'up', 'down', got 'left'"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected an int of 1 or more, got 0"),
        (
            {"transform": transforms.top_k},
            "transform: expected transforms.top_k.*got it without.*",
        ),
        ({"stop": 1}, r"stop: expected a Stop, such as Stop\(eos_ids=\(1,\)\), got 1"),
    ],
)
def test_an_error_names_the_setting_of_the_strategy_and_what_it_takes(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Tempered(**{"max_new_tokens": 3, **settings})
    with pytest.raises(ValueError, match=f"^{message}$"):
        tempered(MODEL, PROMPT, KEY, **{"max_new_tokens": 3, **settings})


@pytest.mark.exhaustive
def test_values_of_their_own_meaning_are_taken():
    made = Tempered(max_new_tokens=3, gamma=2.0, k=1.5, points=3)
    warm = made(MODEL, PROMPT, KEY)
    transform = transforms.temperature(2.0)
    want = decoding_jax.sample(MODEL, PROMPT, KEY, max_new_tokens=3, transform=transform)
    assert same_bits(warm.tokens, want.tokens)


@pytest.mark.exhaustive
def test_a_strategy_is_a_pytree_whose_numbers_do_not_retrace():
    made = Tempered(max_new_tokens=2, gamma=1.0)
    made(MODEL, PROMPT, KEY)
    program = loop.strategy.program_of(Tempered)
    before = program.cache_size()
    dataclasses.replace(made, gamma=3.0)(MODEL, PROMPT, KEY)
    assert program.cache_size() == before
    dataclasses.replace(made, width=3)(MODEL, PROMPT, KEY)
    assert program.cache_size() == before + 1
    assert jax.tree.leaves(made)[-1] == 1.0


def test_rows_of_a_strategy_are_taken_as_those_of_a_transform():
    transform = transforms.temperature([0.0, 1.0, 2.0])
    made = Tempered(gamma=[1.0, 2.0, 3.0], width=3, transform=transform)
    taken = take_rows({"strategy": made}, [2, 0], 3)["strategy"]
    assert taken.gamma.tolist() == [3.0, 1.0]
    assert taken.transform.value.tolist() == [2.0, 0.0]
    assert taken.width == 3


@pytest.mark.exhaustive
def test_an_object_is_streamed_and_run_inside_of_jit():
    made = Greedy(max_new_tokens=4)
    want = decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=4)
    *_, last = loop.stream(made, MODEL, PROMPT)
    assert same_bits(last, want)
    assert same_bits(jax.jit(lambda p: loop.run(made, MODEL, p))(PROMPT), want)
    with pytest.raises(ValueError, match=r"^max_new_tokens: expected 4, .* beside it, got 3$"):
        next(loop.stream(made, MODEL, PROMPT, max_new_tokens=3))


def test_a_function_of_ones_own_is_not_run_in_steps():
    def once(model, prompt, **settings):
        raise AssertionError

    with pytest.raises(ValueError, match=r"^strategy: expected .*, got one with once, which runs"):
        next(loop.stream(once, MODEL, PROMPT))
    with pytest.raises(ValueError, match=r"^strategy: expected a subclass of loop\.Strategy, or "):
        registry.register(once)


def test_the_settings_of_a_partial_are_streamed():
    *_, last = loop.stream(functools.partial(decoding_jax.greedy, max_new_tokens=3), MODEL, PROMPT)
    assert same_bits(last, decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MeanLogProb([0.0, 2.0]),
            "mean_log_prob.alpha: expected a number of 0 or more, ",
        ),
        (lambda: Decay([0.0, 5.0]), "decay.kappa: expected a number of 0 or more, for all rows"),
        (lambda: Decay(1.0, jnp.ones(2)), "decay.beta: expected a number above 0, for all rows"),
    ],
)
def test_a_number_that_rows_share_is_one_number(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_numbers_beyond_int32_do_not_wrap():
    largest = 2**31 - 1
    assert decoding_jax.Stop(max_new_tokens=sys.maxsize).max_new_tokens == largest
    assert transforms.top_k(2**31).k == largest
    for wrong in (
        {"stop": decoding_jax.Stop(eos_ids=(2**32 + 1,))},
        {"stop": decoding_jax.Stop(sequences=((2**32 + 1,),))},
        {"transform": transforms.forced_first_token(2**32 + 1)},
    ):
        with pytest.raises(ValueError, match=f"expected ids from 0 to 4, .*got {largest}$"):
            decoding_jax.greedy(MODEL, PROMPT, max_new_tokens=2, **wrong)


def test_values_of_numpy_and_jax_are_taken_as_those_of_python():
    assert decoding_jax.Stop(eos_ids=jnp.int32(1)).eos_ids.tolist() == [1]
    made = decoding_jax.BeamSearch(beam_size=np.int64(2), early_stopping=np.str_("never"))
    assert (made.beam_size, made.early_stopping) == (2, "never")
    assert type(made.early_stopping) is str


@pytest.mark.release
def test_a_drafter_in_an_object_is_bound_by_generate():
    model, tokenizer = decoding_jax.load("translation-en-fr-draft")
    settings = {"num_draft_tokens": 2, "max_new_tokens": 4, "verifier": "greedy"}
    made = decoding_jax.SpeculativeSample(drafter=model, **settings)
    ((got,),) = decoding_jax.generate(model, tokenizer, ["I am hungry."], strategy=made)
    ((want,),) = decoding_jax.generate(model, tokenizer, ["I am hungry."], max_new_tokens=4)
    assert got.tokens == want.tokens
    with pytest.raises(ValueError, match=r"^drafter: expected drafter.bind\(tokens, length\)"):
        made(MODEL, PROMPT)
