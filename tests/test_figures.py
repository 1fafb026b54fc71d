"""Every figure and table of the pages has committed results, and is made from them."""

import json
import re
import shutil

import pytest
import tiers
from pages import ROOT

from decoding_jax.testing.certificate import records
from experiments import drawing, figures, results, tables

FOLDER = ROOT / "docs" / "figures"


def test_figures_have_results():
    assert {figures.file_of(name) for name in figures.FIGURES} <= {x.name for x in FOLDER.iterdir()}
    for file, _ in figures.FIGURES.values():
        assert (figures.DOCS / file).is_file()


@pytest.mark.parametrize(
    ("name", "module"),
    tiers.combinations(
        [(name, module) for name, (_, module) in figures.FIGURES.items()],
        [("bayes_risk", "papers.bayes_risk")],
        covers=lambda case: case[1:],
    ),
)
def test_a_figure_is_drawn_from_its_results(name, module, tmp_path):
    """One of each module that draws, which the others have in common."""
    figures.main([name, "--out", str(tmp_path)])
    assert (tmp_path / figures.file_of(name)).stat().st_size > 5000


def test_tables_are_those_of_the_committed_results(tmp_path):
    for page in tables.PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(tables.DOCS / page, tmp_path / page)
    tables.write(tmp_path)
    for page in tables.PAGES:
        assert (tmp_path / page).read_text() == (tables.DOCS / page).read_text(), page


@pytest.mark.parametrize("page", tables.SENTENCES)
def test_numbers_of_sentences_are_those_of_the_committed_results(page):
    text = " ".join((tables.DOCS / page).read_text("utf-8").split())
    for words in tables.SENTENCES[page]:
        assert [sentence for sentence in words() if sentence not in text] == []


def test_results_have_the_commit_that_wrote_them(tmp_path):
    for path in [*figures.DOCS.glob("*.json"), *figures.DOCS.glob("[mp]*/*.json")]:
        found = json.loads(path.read_text())
        audit = [row for rows in found.values() for row in rows] if path.stem == "audit" else []
        for row in audit or [found]:
            assert re.fullmatch("[0-9a-f]{7}", row["commit"]), f"{path}: got {row['commit']}"
    for written in ({"rows": [1]}, [1, 2]):
        results.write_json(tmp_path / "a.json", written)
        read = results.read_json(tmp_path / "a.json")
        assert read == ({**written, "commit": records.commit()} if "rows" in written else written)


def test_an_unknown_figure(capsys):
    with pytest.raises(SystemExit):
        figures.main(["none"])
    assert "NAME: expected " in capsys.readouterr().err


def luminance(colour):
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_neighbouring_series_differ_in_grey():
    """In the lightness of their colours or, everywhere, in their markers."""
    looks = [drawing.look(i) for i in range(len(drawing.COLOURS))]
    assert len({look["marker"] for look in looks}) == len(looks)
    first, second, third = (luminance(look["color"]) for look in looks[:3])
    assert min(abs(first - second), abs(second - third)) > 0.15


def test_series_have_one_look_by_any_of_their_names():
    assert set(drawing.NAMES.values()) <= drawing.SERIES.keys()
    assert drawing.look("one code") == drawing.look("lattice") == drawing.look("arithmetic")
    assert max(drawing.SERIES.values()) < len(drawing.COLOURS) == len(drawing.MARKERS)


def test_figures_have_no_background():
    """A white one would be a box on a dark page; a transparent one shows the page."""
    image = pytest.importorskip("matplotlib.image")
    for path in FOLDER.glob("*.png"):
        pixels = image.imread(path)
        assert pixels.shape[-1] == 4, path.name
        assert pixels[0, 0, 3] == 0, path.name
