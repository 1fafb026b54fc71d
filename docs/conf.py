"""The settings of the documentation site; ``python -m experiments.site`` builds it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import decoding_jax  # noqa: E402
from experiments.site import api, docstrings, notebooks, sources  # noqa: E402

project = "decoding_jax"
author = "The decoding_jax authors"
version = release = decoding_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"decoding_jax {version}"
html_copy_source = False
html_scaled_image_link = True  # Figures open large at a click.
if sources.REPOSITORY:
    html_theme_options = {
        "footer_icons": [
            {"name": "Repository", "url": sources.REPOSITORY, "html": "Repository", "class": ""}
        ]
    }

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"  # The tests run the blocks of pages and the notebooks.
autodoc_member_order = "bysource"
maximum_signature_line_length = 80
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

generated = ROOT / "docs" / "generated"
api.write(generated / "api")
notebooks.write(generated / "notebooks")


def setup(app):
    app.connect("source-read", sources.read)
    app.connect("viewcode-follow-imported", api.origin)
    app.connect("doctree-read", sources.widen_figures)
    # Before Napoleon, which reads the sections of docstrings.
    app.connect("autodoc-process-docstring", docstrings.prepare, priority=400)
