"""pass@k by enumeration: what the page says is in the committed results, below the bound."""

import json
import re

import pytest
from pages import ROOT

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra experiments)")

from experiments import pass_at_k


def test_intervals_of_the_page_are_those_of_the_committed_results():
    data = json.loads((ROOT / "docs" / "measured" / "pass_at_k.json").read_text())
    page = (ROOT / "docs" / "estimators.md").read_text()
    page = page[page.index("### Beside QuasiMoTTo") :]
    number = r"[-+]?\d+(?:\.\d+)?"
    found = re.findall(
        rf"(?<![\w.])({number} \({number} to {number}\))", page[: page.index("\n## ")]
    )
    assert len(found) > 20
    made = pass_at_k.markdown(data["rows"]) + pass_at_k.markdown(data["votes"])
    assert [interval for interval in found if interval not in made] == []


def test_nothing_is_above_the_bound():
    data = json.loads((ROOT / "docs" / "measured" / "pass_at_k.json").read_text())
    for row in data["rows"]:
        # What is drawn may be above it by chance: 512 sets of 16 for each of 40 tables.
        slack = 0.01 if row["sampler"] in pass_at_k.DRAWN else 1e-9
        assert row["arithmetic"] <= row["bound"] + slack
