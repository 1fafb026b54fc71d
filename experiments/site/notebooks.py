"""The notebooks as pages of the site, with the outputs that are stored in them."""

from __future__ import annotations

from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def write(folder: Path) -> None:
    """Copies the notebooks into a folder two levels below the pages, to which their links lead."""
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        text = notebook.read_text("utf-8").replace("](../../docs/", "](../../")
        (folder / notebook.name).write_text(text, "utf-8")
