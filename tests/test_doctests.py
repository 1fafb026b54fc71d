"""The examples in docstrings give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import decoding_jax

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(decoding_jax.__path__, "decoding_jax.")
    if not m.name.endswith("__main__") and not m.name.startswith("decoding_jax.gin_files")
)
NEEDED = {f"decoding_jax.t5x.models{name}": "t5x" for name in ("", ".native", ".speculative")}


class Finder(doctest.DocTestFinder):
    """Finds the examples of decorated functions too, which belong to the module they name."""

    def _from_module(self, module, object):
        named = getattr(object, "__module__", None) == module.__name__
        return named or super()._from_module(module, object)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name in NEEDED:
        pytest.importorskip(f"{NEEDED[name]}.models", exc_type=ImportError)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for example in Finder().find(module):
        runner.run(example)
    assert runner.failures == 0
