"""The gin file of a strategy has the defaults of the function, with the exceptions listed here."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from decoding_jax.registry import STRATEGIES
from decoding_jax.t5x import decode_fns

GIN = Path(__file__).parents[2] / "gin"
EXCEPTIONS = {  # Settings that a gin file chooses for batch jobs.
    ("sample", "num_samples"): 8,
    ("best_k_search", "score"): "mean",
    ("best_k_search", "decay"): 0.01,
    ("best_first_search", "gamma"): 0.0,
    ("best_first_search", "branching"): 10,
}


def settings_of(path, name):
    """Yields the settings that a gin file binds to a function, with the values of macros."""
    text = path.read_text()
    if strategy := re.search(r"^STRATEGY = @\w+\.(\w+)$", text, re.MULTILINE):
        name = strategy[1]
    macros = dict(re.findall(r"^([A-Z_]+) = (.+)$", text, re.MULTILINE))
    bound = re.findall(rf"^\w+\.{name}\.(\w+) = (.+)$", text, re.MULTILINE)
    for block in re.findall(rf"^\w+\.{name}:\n((?:  .+\n)+)", text, re.MULTILINE):
        bound += re.findall(r"^  (\w+) = (.+)$", block, re.MULTILINE)
    for setting, value in bound:
        while value.startswith("%"):
            value = macros[value[1:]]
        if not value.startswith("@"):
            yield setting, ast.literal_eval(value)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_python_and_gin_have_the_same_defaults(name):
    parameters = inspect.signature(STRATEGIES[name].function).parameters
    seen = set()
    for setting, value in settings_of(GIN / "strategies" / f"{name}.gin", name):
        seen.add(setting)
        if setting in ("phrases", "alternatives"):
            continue  # The function takes ``constraints`` instead.
        default = parameters[setting].default
        if default is not inspect.Parameter.empty:
            assert value == EXCEPTIONS.get((name, setting), default), setting
    assert "max_new_tokens" in seen


@pytest.mark.parametrize("name", ["best_first_search", "best_k_search"])
def test_t5x_and_its_gin_files_agree_on_the_fallback(name):
    settings = dict(settings_of(GIN / "t5x" / f"{name}.gin", name))
    parameters = inspect.signature(getattr(decode_fns, name)).parameters
    assert settings["fallback"] == parameters["fallback"].default
