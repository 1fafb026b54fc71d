"""The settings of the tests: whose warnings are errors, and what the compiler is told."""

import os
import warnings
from pathlib import Path

import jax
import pytest

from decoding_jax.testing.certificate import devices

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "module", ["decoding_jax.text.generate", "jax.numpy", "numpy", "infer_fakes", __name__]
)
def test_warnings_of_ours_and_of_jax_are_errors(module):
    with pytest.raises(UserWarning, match="ours"):
        warnings.warn_explicit("ours", UserWarning, "file.py", 1, module)


def test_warnings_of_plugins_are_not():
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn_explicit("a plugin's", UserWarning, "file.py", 1, "pytest_benchmark.logger")
    assert [str(one.message) for one in caught] == ["a plugin's"]


def test_no_flag_is_set_that_the_newest_jax_does_not_know(monkeypatch):
    older = "--xla_cpu_use_fusion_emitters"
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    assert older in devices.quick_flags()
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 0))
    assert older not in devices.quick_flags()
    monkeypatch.setenv("XLA_FLAGS", f"{older}=true")
    devices.add_flags({older: "false", "--other": 1})
    assert os.environ["XLA_FLAGS"] == f"{older}=true --other=1"


def test_nothing_comes_from_inside_jax():
    """Neither by an import nor by a name in a string."""
    inside = "jax." + "_src"
    for folder in ("decoding_jax", "experiments", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert inside not in path.read_text("utf-8"), path
