"""Every public name is on a page of the site, which is built without a warning."""

import importlib
import subprocess
import sys

import pytest
from pages import ROOT

from decoding_jax import models
from decoding_jax.models.decoder import DecoderModel, NetworkModel
from decoding_jax.models.encoder_decoder import BoundEncoderDecoder, EncoderDecoder
from decoding_jax.registry import STRATEGIES
from experiments.site import api, docstrings, sources, strategies


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


def test_every_public_name_has_a_page():
    written = dict(api.pages())
    for package in api.PACKAGES:
        assert package in written["index"]
        for member in importlib.import_module(package).__all__:
            value = getattr(importlib.import_module(package), member)
            if getattr(value, "__file__", "").endswith("__init__.py"):
                continue  # a package, which has a page of its own
            name = f"{package}.{member}"
            if f"names/{name}" in written:
                assert f"names/{name}\n" in written[package]
                assert name in written[f"names/{name}"]
            else:  # a second name, or one of another package
                assert f"- `{member}` is " in written[package], name


def test_pages_that_have_not_changed_are_not_written_again_and_others_are_removed(tmp_path):
    api.write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    (tmp_path / "names" / "removed.md").touch()
    api.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")} == before
    assert len(before) == len(dict(api.pages()))


def test_pages_of_papers_are_below_theirs_and_links_lead_to_the_repository(monkeypatch):
    monkeypatch.setattr(sources, "REPOSITORY", "https://github.com/owner/name")
    nested, page = ["# Papers\n"], ["[a](../experiments/a.py) [b](b.md)"]
    sources.read(None, "papers", nested)
    assert ":glob:\n\npapers/*\n" in nested[0]
    sources.read(None, "models", page)
    assert page == ["[a](https://github.com/owner/name/blob/main/experiments/a.py) [b](b.md)"]
    index = ["In a checkout of the repository"]
    sources.read(None, "index", index)
    assert index == ["In a checkout of [the repository](https://github.com/owner/name)"]
    notebook = ["[a](../experiments/notebooks/6_rollouts.ipynb)"]
    sources.read(None, "rollouts", notebook)
    assert notebook == ["[a](generated/notebooks/6_rollouts.ipynb)"]
    below = ["[a](../papers.md)"]
    sources.read(None, "papers/best_k", below)
    assert below == ["[a](../papers.md)"]


def test_the_source_of_a_strategy_is_found():
    assert api.origin(None, "decoding_jax", "greedy") == "decoding_jax.strategies.token_by_token"
    assert api.origin(None, "decoding_jax", "generate") is None
    assert api.origin(None, None, "POINTS") is None


@pytest.mark.release
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
def test_the_page_of_models_shows_what_each_strategy_needs(tmp_path):
    page = ROOT / "docs" / "models.md"
    copy = tmp_path / "models.md"
    copy.write_text(page.read_text())
    strategies.write(copy)
    assert copy.read_text() == page.read_text()


def test_what_holds_for_all_families_and_what_differs():
    assert (NetworkModel.ragged, NetworkModel.tree) == (True, True)
    assert issubclass(BoundEncoderDecoder, NetworkModel)
    for family in (models.T5, models.Bart, models.T5Gemma):
        assert issubclass(family, EncoderDecoder)
        assert hasattr(family, "early_exit")
    for family in (models.GPT2, models.Llama, models.Gemma, models.T5Decoder):
        assert issubclass(family, DecoderModel)
        assert issubclass(family, NetworkModel)
        assert hasattr(family, "early_exit")


@pytest.mark.release
def test_the_site_is_built_without_a_warning(tmp_path):
    for package in ("furo", "myst_nb", "sphinx", "sphinx_copybutton"):
        pytest.importorskip(package, reason=f"{package} (the extra site) is not installed")
    command = [sys.executable, "-m", "experiments.site", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = (tmp_path / "generated" / "api" / "decoding_jax.html").read_text("utf-8")
    for name in STRATEGIES:
        assert f'href="names/decoding_jax.{name}.html' in names
        page = (tmp_path / "generated" / "api" / "names" / f"decoding_jax.{name}.html").read_text()
        assert f'id="decoding_jax.{name}"' in page
        assert 'class="viewcode-link"' in page
    for notebook in ("2_arithmetic_sampling", "3_speculation"):
        page = (tmp_path / "generated" / "notebooks" / f"{notebook}.html").read_text("utf-8")
        assert 'class="math notranslate' in page
    figures = (tmp_path / "measured.html").read_text("utf-8")
    assert 'href="_images/sampling_step.png"><img' in figures
