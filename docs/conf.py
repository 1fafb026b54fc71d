"""The settings of the documentation site; ``python -m experiments.site`` builds it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import decoding_jax  # noqa: E402
from experiments.site import api, docstrings, notebooks, strategies  # noqa: E402

project = "decoding_jax"
author = "The decoding_jax authors"
version = release = decoding_jax.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"decoding_jax {version}"
html_copy_source = False

myst_heading_anchors = 3
nb_execution_mode = "off"  # The tests run the blocks of pages and the notebooks.
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # Docstrings say the types and shapes; signatures would repeat them.
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

generated = ROOT / "docs" / "generated"
api.write(generated / "api")
notebooks.write(generated / "notebooks")
(generated / "strategies.md").write_text(strategies.page())


def setup(app):
    # Before Napoleon, which reads the sections of docstrings.
    app.connect("autodoc-process-docstring", docstrings.prepare, priority=400)
