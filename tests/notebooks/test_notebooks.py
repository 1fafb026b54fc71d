"""The notebooks: what is stored in them, and that a fresh kernel shows it again."""

import re

import nbformat
import pytest
import tiers
from pages import ROOT

from decoding_jax.testing.certificate import devices
from experiments.notebooks import execute

NOTEBOOKS = execute.notebooks()
# `.ci/run release` runs the others, which take minutes.
SHORT = ("1_decode_and_stream",)
# Quick compilation, as in ``conftest.py``, which configures this process and not the kernel.
QUICK = {
    "XLA_FLAGS": " ".join(f"{name}={value}" for name, value in devices.quick_flags().items()),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
OF_A_MACHINE = re.compile(r"/(home|root|tmp|usr|work|Users)/|site-packages|https?://\S*simple")
# What a notebook imports that the extra ``notebooks`` installs.
NEEDED = ("ipykernel", "matplotlib", "tensorstore")


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored(path):
    """Whole outputs of one run, without a warning or anything of the machine, in a small file."""
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < 150_000
    assert [cell.execution_count for cell in code(notebook)] == list(
        range(1, len(code(notebook)) + 1)
    )
    assert any("check" in execute.tags(cell) for cell in code(notebook))
    for cell in code(notebook):
        assert set(execute.tags(cell)) <= {"check", "t5x"}
        assert not execute.complaints(cell)
        for output in cell.outputs:
            assert output.output_type in ("stream", "display_data", "execute_result")
        assert not OF_A_MACHINE.search(execute.printed(cell))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)\)", cell.source):
                assert link.startswith("https://") or (path.parent / link).exists(), link


def test_all_notebooks_are_listed_and_install_in_the_same_way():
    page = (ROOT / "experiments/notebooks/README.md").read_text("utf-8")
    listed = re.findall(r"\]\((\w+\.ipynb)\)", page)
    assert listed == [path.name for path in NOTEBOOKS]
    first_cells = {code(read(path))[0].source for path in NOTEBOOKS}
    assert len(first_cells) == 1


@pytest.mark.parametrize(
    "path",
    tiers.values(
        exhaustive=[path for path in NOTEBOOKS if path.stem in SHORT],
        release=[path for path in NOTEBOOKS if path.stem not in SHORT],
    ),
    ids=lambda path: path.stem,
)
def test_a_fresh_kernel_shows_it_again(path):
    """No cell fails or warns, and the cells tagged ``check`` print what is stored."""
    for package in NEEDED:
        pytest.importorskip(package, reason=f"{package} is not installed")
    stored = code(read(path))
    for cell, old in zip(code(execute.execute(path, **QUICK)), stored, strict=True):
        assert not execute.complaints(cell)
        if "check" in execute.tags(cell):
            assert execute.printed(cell) == execute.printed(old), cell.source
