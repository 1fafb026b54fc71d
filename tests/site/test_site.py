"""Every public name is on a page of the site, which is built without a warning."""

import importlib
import re
import subprocess
import sys

import pytest

from decoding_jax.registry import STRATEGIES
from experiments.site import api, docstrings, strategies


def test_wrapped_names_of_arguments_are_joined():
    lines = [
        "Args:",
        "  model, tokenizer,",
        "    **settings: as there.",
        "  key: one",
        "    of two.",
    ]
    joined = ["Args:", "  model, tokenizer, \\*\\*settings: as there.", "  key: one", "    of two."]
    assert docstrings.joined(lines) == joined
    plain = ["Sums a, b,", "  and **c: twice.", "", "Args:", "  **settings: the settings."]
    assert docstrings.joined(plain) == plain


def test_every_public_name_has_a_place():
    written = dict(api.pages())
    for name in api.PACKAGES:
        assert name in written["index"]
        for member in importlib.import_module(name).__all__:
            value = getattr(importlib.import_module(name), member)
            if getattr(value, "__file__", "").endswith("__init__.py"):
                continue  # a package, which has a page of its own
            assert re.search(rf"[.:`]{member}\b", written[name]), f"{name}.{member}"


def test_a_page_that_has_not_changed_is_not_written_again(tmp_path):
    api.write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    api.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert len(before) == len(api.PACKAGES) + 1


def test_what_a_strategy_needs_of_a_model():
    found = {
        name: [strategies.runs_on(name, model) for model in strategies.models()]
        for name in ("greedy", "speculative_sample", "best_k_search")
    }
    assert found == {
        "greedy": [True, True, True],
        "speculative_sample": [False, True, True],
        "best_k_search": [False, False, True],
    }


@pytest.mark.exhaustive
def test_the_site_is_built_without_a_warning(tmp_path):
    for package in ("furo", "myst_nb", "sphinx", "sphinx_copybutton"):
        pytest.importorskip(package, reason=f"{package} (the extra site) is not installed")
    command = [sys.executable, "-m", "experiments.site", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "generated" / "strategies.html").read_text("utf-8")
    names = (tmp_path / "generated" / "api" / "decoding_jax.html").read_text("utf-8")
    for name in STRATEGIES:
        assert f'href="api/decoding_jax.html#decoding_jax.{name}"' in table
        assert f'id="decoding_jax.{name}"' in names
