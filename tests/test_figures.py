"""Every figure of the pages has committed results, and is drawn from them."""

import json

import pytest
from pages import ROOT

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra experiments)")

from experiments import drawing, figures

COMMITTED = sorted(path.stem for path in (ROOT / "docs" / "figures").glob("*.png"))


def test_figures_have_results():
    assert set(figures.FIGURES) <= set(COMMITTED)
    for results, _ in figures.FIGURES.values():
        assert (figures.DOCS / results).is_file()


@pytest.mark.parametrize("name", ["bayes_risk"])
def test_a_figure_is_drawn_from_its_results(name, tmp_path):
    figures.main([name, "--out", str(tmp_path)])
    assert (tmp_path / f"{name}.png").stat().st_size > 5000


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", figures.FIGURES)
def test_all_figures_are_drawn(name, tmp_path):
    test_a_figure_is_drawn_from_its_results(name, tmp_path)


def test_tables_have_the_numbers_of_the_figures():
    page = " ".join((figures.DOCS / "measured.md").read_text().split())

    def read(name):
        return json.loads((figures.DOCS / "measured" / f"{name}.json").read_text())

    expected = [
        f"| {r['batch']}, {r['width']}, {r['new_tokens']} | {r['transformers/tree']:.2f} |"
        f" {r['select/tree']:.2f} |"
        for r in read("beam_search")
    ]
    steps = {"sample": "sample", "arithmetic": "arithmetic_sample", "argmax": "jnp.argmax"}
    for name, words in {**steps, "categorical": "jax.random.categorical"}.items():
        cells = (f" {r[f'{name}/softmax']:.1f} |" for r in read("sampling_step"))
        expected.append(f"| `{words}` |{''.join(cells)}")
    expected += [
        f"| {r['num_samples']} | {r['ratio']:.2f} | {r['low']:.2f} to {r['high']:.2f} |"
        for r in read("variance")["rows"]
    ]
    best_k = read("quality_diversity")["results"]["best-5 mean"]
    for column in ("BLEU", "BLEU of all"):
        value, low, high = best_k[column]
        expected.append(f"{value:.1f} ({low:.1f} to {high:.1f})")
    assert [words for words in expected if words not in page] == []
    page = (figures.DOCS / "speculative.md").read_text()
    columns = ("accepted", "R", "c", "v", "speed_up", "theory", "measured/theory")
    for r in read("speculative")["sweep"]:
        cells = (f"{r[column]:.2f}" for column in columns)
        assert f"| {r['batch']} | {r['K']} | {' | '.join(cells)} |" in page


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
