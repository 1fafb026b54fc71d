"""What the site changes in pages that are also read as files of the repository."""

from __future__ import annotations

import os
from typing import Any

NESTED = {"papers": "papers/*", "measured": "measured/*", "audit": "audit/reports/*"}
"""The pages, by a pattern, that are below another one in the contents."""

_NAME = os.environ.get("GITHUB_REPOSITORY")  # owner/name, which GitHub's workflows set
REPOSITORY = f"https://github.com/{_NAME}" if _NAME else ""


def read(app: Any, name: str, source: list[str]) -> None:
    """Changes the text of a page in place, for the event ``source-read``.

    Nested pages are put at the end of the page above them, and links to notebooks lead to their
    pages. Where the repository is known, the index has a link to it, and links to its files lead
    there; elsewhere they are downloads.
    """
    if name in NESTED:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{NESTED[name]}\n```\n"
    if REPOSITORY and name == "index":
        source[0] = source[0].replace("the repository", f"[the repository]({REPOSITORY})", 1)
    source[0] = source[0].replace("](../experiments/notebooks/", "](generated/notebooks/")
    if REPOSITORY and "/" not in name:
        source[0] = source[0].replace("](../", f"]({REPOSITORY}/blob/main/")


def widen_figures(app: Any, doctree: Any) -> None:
    """Gives figures a width in place, with which Sphinx links them to the image itself.

    It is for the event ``doctree-read``.
    """
    from docutils import nodes

    for image in doctree.findall(nodes.image):
        image.setdefault("width", "100%")
