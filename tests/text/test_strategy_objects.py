"""A strategy object is worth its name with its fields as settings, in ``generate`` and streams."""

import contextlib
import dataclasses
import functools
import inspect

import jax
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import Constraints, GNMTPenalty, Greedy, Stop, fields, loop, rows, transforms
from decoding_jax.registry import STRATEGIES
from decoding_jax.strategies.speculative import PromptLookup

TEXTS = ["1 2 3", "4", "5 6 1 2 3 4 5", "2 2", "6 5 4 3"]
KEY = jax.random.key(0)
EACH = transforms.temperature([0.5, 1, 2, 3, 4])
LIMITS = Stop(max_new_tokens=np.array([3, 5, 1, 2, 4]), eos_ids=())
CASES = {
    "arithmetic_sample": {"num_samples": 3, "transform": EACH},
    "beam_sample": {"beam_size": 2, "transform": EACH},
    "beam_search": {"beam_size": 3, "num_return": 2, "length_penalty": [0, 1, 2, 0.5, 3]},
    "best_first_search": {"budget": 9},
    "best_k_search": {"k": 2, "budget": 12, "gamma": [0.1, 0.2, 0.3, 0.4, 0.5]},
    "constrained_beam_search": {
        "beam_size": 2,
        "constraints": Constraints(np.array([[[3]], [[2]], [[1]], [[5]], [[6]]])),
    },
    "contrastive_search": {"top_k": 3, "penalty_alpha": 0.5},
    "diverse_beam_search": {"beam_size": 2, "num_groups": 2, "length_penalty": GNMTPenalty(0.6)},
    "greedy": {"transform": transforms.repetition_penalty(2.0), "stop": LIMITS},
    "sample": {"num_samples": 2, "transform": EACH, "stop": LIMITS},
    "speculative_sample": {"drafter": PromptLookup(), "num_draft_tokens": 2, "transform": EACH},
    "stochastic_beam_search": {"beam_size": 2},
}
SHOWN, MORE = ("beam_search", "sample"), ("best_k_search", "greedy", "speculative_sample")
OTHERS = [name for name in CASES if name not in SHOWN + MORE]


def made(name, settings):
    return STRATEGIES[name].strategy(**settings)


def key_of(name):
    return {"key": KEY} if STRATEGIES[name].draws else {}


def decoded(call, texts=TEXTS, **settings):
    found = list(call(TABLE, Digits(), texts, **settings))
    found = found[-1] if call is decoding_jax.stream else found
    return [[(c.tokens, c.text, c.log_prob, c.score, c.finished) for c in row] for row in found]


@pytest.mark.release
@pytest.mark.parametrize("name", tiers.values(*SHOWN, exhaustive=MORE, release=OTHERS))
def test_an_object_is_its_name_with_the_same_settings(name):
    """Values of single texts follow them through sorting and batches of two."""
    settings = {"max_new_tokens": 5, **CASES[name]}
    want = decoded(decoding_jax.generate, strategy=name, batch_size=2, **settings, **key_of(name))
    strategy = made(name, settings)
    got = decoded(decoding_jax.generate, strategy=strategy, batch_size=2, **key_of(name))
    assert got == want


@pytest.mark.parametrize(
    "call", tiers.values(exhaustive=[decoding_jax.stream], release=[decoding_jax.generate])
)
def test_shuffled_texts_and_settings_give_shuffled_completions(call):
    order = [3, 0, 4, 2, 1]
    strategy = made("sample", {"max_new_tokens": 5, "num_samples": 2, "transform": EACH})
    keys = jax.random.split(KEY, 5)
    want = decoded(call, strategy=strategy, key=keys)
    shuffled = rows.take_rows({"strategy": strategy}, order, 5)["strategy"]
    texts = [TEXTS[i] for i in order]
    got = decoded(call, texts, strategy=shuffled, key=keys[np.asarray(order)])
    assert [[c[:2] for c in row] for row in got] == [[c[:2] for c in want[i]] for i in order]


@pytest.mark.release
def test_a_stream_takes_an_object():
    strategy = made("beam_search", {"max_new_tokens": 5, **CASES["beam_search"]})
    want = decoded(decoding_jax.generate, strategy=strategy)
    assert decoded(decoding_jax.stream, strategy=strategy) == want
    pieces = decoding_jax.stream_text(TABLE, Digits(), TEXTS, strategy=strategy)
    joined = [""] * len(TEXTS)
    for piece in pieces:
        joined[piece.row] += piece if piece.sample == 0 else ""
    assert joined == [row[0][1] for row in want]


@pytest.mark.release
def test_the_limit_and_the_end_tokens_are_those_of_a_call_without_any():
    """Without a limit it is 64 tokens, of which a warning tells; the tokenizer ends texts."""
    for settings, cut in (({}, False), ({"stop": Stop(eos_ids=())}, True)):
        calls = {"strategy": "greedy", **settings}, {"strategy": Greedy(**settings)}
        found = []
        for call in calls:
            warns = pytest.warns(decoding_jax.CutTextWarning) if cut else contextlib.nullcontext()
            with warns:
                found.append(decoded(decoding_jax.generate, **call))
        assert found[0] == found[1]
        assert all(len(row[0][0]) == 64 for row in found[1]) == cut


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_new_tokens": 3},
            "max_new_tokens: expected 5, which the Greedy has, or none beside it, got 3",
        ),
        ({"stop": Stop(eos_ids=1)}, "stop: expected .*, which the Greedy has, or none beside it"),
        ({"stop_strings": "1"}, "stop_strings: expected none beside stop.strings"),
        ({"transform": EACH}, "transform: expected .*, which the Greedy has, or none beside it"),
        ({"drafter": TABLE}, "drafter: expected none for this strategy, got a TableLM"),
        ({"config": decoding_jax.GenerationConfig()}, "strategy: expected None beside a config"),
        ({"num_beams": 3}, "num_beams: "),
        ({"num_samples": 3}, "num_samples: "),
    ],
)
def test_settings_beside_an_object_are_one_line(settings, message):
    """A field that has a value takes no other one, and there are no fields of other names."""
    stop = Stop(eos_ids=(), strings="2")
    strategy = Greedy(max_new_tokens=5, stop=stop, transform=transforms.top_k(2))
    for call in (decoding_jax.generate, decoding_jax.stream, decoding_jax.stream_text):
        with pytest.raises(ValueError, match=f"^{message}") as caught:
            list(call(TABLE, Digits(), TEXTS, strategy=strategy, **settings))
        assert "\n" not in str(caught.value)


def test_a_class_or_a_missing_key_is_one_line():
    with pytest.raises(ValueError, match=r"^strategy: expected a name .*, got the class Greedy$"):
        decoding_jax.generate(TABLE, Digits(), TEXTS, strategy=Greedy)
    with pytest.raises(ValueError, match=r"^key: expected a typed key .*, got None$"):
        decoding_jax.generate(TABLE, Digits(), TEXTS, strategy=made("sample", {}))


@decoding_jax.pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Greedy):
    """A strategy of one's own, which no table has."""

    bonus: float = fields.number("any number", np.isfinite, default=0.0)

    def step(self, model, prompt, state):
        return super().step(model, prompt, state)


@pytest.mark.release
def test_an_object_of_ones_own_class():
    want = decoded(decoding_jax.generate, strategy="greedy", max_new_tokens=5)
    bonus = np.arange(5.0)
    for strategy in (Mine(max_new_tokens=5, bonus=bonus), loop.as_function(Mine)):
        given = {} if isinstance(strategy, Mine) else {"max_new_tokens": 5, "bonus": bonus}
        got = decoded(decoding_jax.generate, strategy=strategy, batch_size=2, **given)
        assert got == want
        assert decoded(decoding_jax.stream, strategy=strategy, **given) == want


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tiers.values(*SHOWN, exhaustive=MORE, release=OTHERS))
def test_what_stands_beside_a_strategy_fills_its_empty_fields(name):
    """Objects and partials of all forms make the call of a name with all settings."""
    beside = {"max_new_tokens": 5, "stop": CASES[name].get("stop", LIMITS)}
    drafter = {n: CASES[name][n] for n in ("drafter",) if n in CASES[name]}
    own = {n: value for n, value in CASES[name].items() if n not in ("stop", "drafter")}
    given = {**beside, **key_of(name), "batch_size": 2}
    want = decoded(decoding_jax.generate, strategy=name, **own, **drafter, **given)
    function = getattr(decoding_jax, name)
    for form in (
        made(name, {**own, **drafter}),
        made(name, {**own, **drafter, "max_new_tokens": 5}),
        functools.partial(functools.partial(function, **own, **drafter), max_new_tokens=5),
    ):
        assert decoded(decoding_jax.generate, strategy=form, **given) == want
    form = functools.partial(function, **own, **drafter, max_new_tokens=4)
    message = "^max_new_tokens: expected 4, which .* has, or none beside it, got 5$"
    with pytest.raises(ValueError, match=message):
        decoded(decoding_jax.generate, strategy=form, **given)


@pytest.mark.exhaustive
def test_the_transform_and_the_key_beside_an_object():
    given = {"key": KEY, "max_new_tokens": 4, "transform": EACH}
    want = decoded(decoding_jax.generate, strategy="sample", num_samples=2, **given)
    strategy = decoding_jax.Sample(num_samples=2)
    assert decoded(decoding_jax.generate, strategy=strategy, **given) == want
    with pytest.warns(UserWarning, match="^key: greedy draws nothing and does not use it$"):
        decoded(decoding_jax.generate, strategy=decoding_jax.greedy, key=KEY, max_new_tokens=2)


def test_streams_have_the_arguments_of_generate():
    of_generate = dict(inspect.signature(decoding_jax.generate).parameters)
    for call in (decoding_jax.stream, decoding_jax.stream_text):
        parameters = dict(inspect.signature(call).parameters)
        assert parameters.keys() - of_generate.keys() == {"chunk"}
        assert of_generate.keys() - parameters.keys() == {"batch_size", "progress"}
        for name in parameters.keys() & of_generate.keys():
            assert parameters[name].default == of_generate[name].default
            assert parameters[name].kind == of_generate[name].kind
