"""What a setting does not take is refused in one line, by every object that declares its settings.

The wrong values come from what each declaration says that it expects (``fields.field``), so a new
setting is tested without a test of its own; one that expects something new needs a line in
``WRONG``. Conditions between several settings have tests beside those who make them.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re

import examples
import jax.numpy as jnp
import numpy as np
import pytest
from decoded import DRAFT, KEYS, MODEL, PROMPT

from decoding_jax import (
    Constraints,
    Decay,
    GNMTPenalty,
    MeanLogProb,
    PowerPenalty,
    Stop,
    infer,
    models,
    registry,
    strategies,
    transforms,
)
from decoding_jax.strategies import speculative
from decoding_jax.strategies.speculative.verifiers import VERIFIERS

NAN, INF = float("nan"), float("inf")


class Other:
    """An object of a kind that no setting takes."""


NO_NUMBER = ("1", True, None, Other())


def numbers(*wrong) -> list:
    """Each of them alone, and for one row of two."""
    rows = [form([1, one]) for one in wrong for form in (np.array, tuple)]
    return [*wrong, *rows, *NO_NUMBER]


def counts(least: str) -> list:
    return numbers(int(least) - 1, int(least) + 0.5)


# What a declaration expects, and values that it does not take, or a function of the groups.
WRONG = {
    r"an int of (\d+) or more, or None": lambda least: [v for v in counts(least) if v is not None],
    r"an int of (\d+) or more.*": counts,
    r"(?:a (?:probability|number|rate) from )?0 to 1": numbers(-0.1, 1.1, NAN),
    r"a number of 0 or more": numbers(-1, NAN),
    r"a number above 0": numbers(0, -1, NAN),
    r"a number": numbers(NAN),
    r"a finite number of 0 or more": numbers(-1, NAN, INF),
    r"a finite number above 0": numbers(0, -2, NAN, INF),
    r"None, or numbers above 0": numbers(0, -1, NAN),
    r"a finite number": numbers(NAN, INF),
    r"a token id": numbers(-1, 0.5),
    r"a token id of 0 or more \(-1 for none\)": numbers(-2, 0.5),
    r"an int from 0 to 2\*\*64 - 1": [-1, 2**64, 1.5, [], np.array([1, 2]), *NO_NUMBER],
    r"an int from 1 to 64": [0, 65, 1.5, *NO_NUMBER],
    r"True or False": [0, 1, "yes", None, np.array([True, False]), Other()],
    r"one of .*": ["neither", 7, None, np.zeros(2), Other()],
    r"token ids of 0 or more": [-1, 0.5, "</s>", (1.0,), (1, -1), np.array([-2]), None, Other()],
    r"sequences of token ids, .*": [
        *(".", ["."], 3, (5, 6), [(3, -2)], np.array([1, 2]), None, Other())
    ],
    r"sets of sequences of token ids": [3, ".", [1], ["ab"], np.array([[[1.5]]]), Other()],
    r"at least one token id, .*": [[], [1, -1], "yes", 3, None, Other()],
    r"token ids such as \(5, 6\), or a string": [0.5, np.array([[1]]), None, Other()],
    r"token ids such as .* of 1 to 31 tokens": [(), "", (1, -1), (1,) * 32, None, Other()],
    r"\{token id: number\} or \[V\], .*": [{1: INF}, np.array([0, NAN]), "1", None, Other()],
    r"a table \[states, V\] of states, .*": [[0, 1], [[0.5]], np.array([[7]]), "1", None, Other()],
    r"a language model or a drafter": ["gpt2", (MODEL, None), Other()],
    r"Constraints\(.*": ["house", ((1,),), Other()],
    r"a Corpus": [[[1, 2]], Other()],
    r"a sequence of blocks": [3, Other()],
    # Without words of its own: a function, an object of several methods or a conversion checks it.
    r"a value": [Other()],
}


def strategy(name):
    entry = registry.STRATEGIES[name]
    drafter = {"drafter": DRAFT} if entry.drafts else {}
    return entry.strategy(max_new_tokens=4, **drafter, **examples.STRATEGIES[name])


def transform(name):
    example = examples.TRANSFORMS[name]
    return examples.made(name, None if example.two else example.per_text)


of = functools.partial
# Makes an object of each class that declares settings for its users.
OBJECTS = {
    **{name: of(strategy, name) for name in registry.STRATEGIES},
    **{name: of(transform, name) for name in examples.TRANSFORMS},
    **{f"drafter {name}": of(draft.make, MODEL) for name, draft in examples.DRAFTERS.items()},
    **{f"verifier {name}": of(lambda made: made, made) for name, made in VERIFIERS.items()},
    **{name: lambda one=one: one.config for name, one in examples.NETWORKS.items()},
    "automaton": of(transforms.Automaton, [[0, 0]]),
    "stop": Stop,
    "constraints": Constraints,
    "gnmt_penalty": GNMTPenalty,
    "power_penalty": PowerPenalty,
    "mean_log_prob": MeanLogProb,
    "decay": Decay,
    "heuristic": speculative.Heuristic,
    "measured": speculative.Measured,
    "model_drafter": of(speculative.ModelDrafter, MODEL),
    "guided": of(models.guided, MODEL, 1.5),
    "contrasted": of(models.contrasted, MODEL, DRAFT),
    "confident": of(models.confident, MODEL, 0, 0.5, window=2, num_tokens=2),
    "job": infer.JobSettings,
}


def wrong_settings(made):
    """The names of settings, the words of what they expect, and values that they do not take."""
    for setting in dataclasses.fields(made):
        if not setting.init or "check" not in setting.metadata:
            continue
        expected = setting.metadata["expected"]
        found = [(m, w) for pattern, w in WRONG.items() if (m := re.fullmatch(pattern, expected))]
        assert found, f"{setting.name}: WRONG has no values for {expected!r}"
        match, values = found[0]
        words = "" if expected == "a value" else re.split(r", | such as|\(|;", expected)[0]
        for value in values(*match.groups()) if callable(values) else values:
            if value is not None or setting.default is not None:
                yield setting.name, words, value
            if isinstance(value, np.ndarray):
                yield setting.name, words, jnp.asarray(value)


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_a_setting_does_not_take_is_refused_in_one_line(kind):
    """It names the setting, what it takes and what it got, and nothing is compiled for it."""
    faults, made = [], OBJECTS[kind]()
    for name, words, value in wrong_settings(made):
        message = refusal(lambda n=name, v=value: dataclasses.replace(made, **{n: v}))
        shown = repr(value) if isinstance(value, (int, float, str, type(None))) else ""
        line = rf"(\w+\.)?{name}(\.\w+)?: expected [^\n]*{re.escape(words)}[^\n]*, got [^\n]*"
        if not re.fullmatch(line + re.escape(shown) + r"[^\n]*", message):
            faults.append((name, value, message))
        elif kind in registry.STRATEGIES and message != (other := refused_call(kind, name, value)):
            faults.append((name, value, other))
    assert not faults


def refusal(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return "nothing"


def refused_call(kind, name, value) -> str:
    """The refusal by a strategy's compiled function, which compiles nothing."""
    entry = registry.STRATEGIES[kind]
    given = {"max_new_tokens": 4, **examples.STRATEGIES[kind], name: value}
    drafter = (given.pop("drafter", DRAFT),) * entry.drafts
    programs = entry.function.cache_size()
    made = refusal(lambda: entry.function(MODEL, *drafter, PROMPT, *[KEYS] * entry.draws, **given))
    assert entry.function.cache_size() == programs
    return made


# Classes with settings of their own that others make, whose tests have their refusals.
OTHERS = [
    "Fixed",
    "Gemma4Config",
    "LayersContrasted",
    "Mixture",
    "Product",
    "StackAutomaton",
    "Trie",
]


def test_every_class_that_declares_settings_is_here():
    made = {base for make in OBJECTS.values() for base in type(make()).__mro__}
    found = [strategies, transforms, models]
    for package in tuple(found):
        names = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        found += [importlib.import_module(name) for _, name, _ in names]
    members = {one for m in found for one in vars(m).values() if isinstance(one, type)}
    missing = {
        one.__name__
        for one in filter(dataclasses.is_dataclass, members - made)
        for setting in dataclasses.fields(one)
        if "check" in setting.metadata and setting.name in inspect.get_annotations(one)
    }
    assert sorted(missing) == OTHERS
