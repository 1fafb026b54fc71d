"""The comparison of two drafts, input by input."""

import json
import re

import pytest

from experiments.papers import two_drafts

SETTINGS = {
    "model": "target",
    "task": {"name": "code", "inputs": 2},
    "settings": [[0.0, 1.0]],
    "sizes": [2],
    "max_new_tokens": 8,
    "seed": 0,
}


def write(folder, draft, accepted, **changes):
    folder.mkdir()
    lines = [{"settings": {**SETTINGS, "draft": draft, **changes}}]
    for i, count in enumerate(accepted):
        speculative = {"seconds": 1.0, "tokens": 8, "accepted": count, "rejected": 4 - count}
        value = {
            "target": {"seconds": 2.0, "tokens": 8},
            "2": {**speculative, "emitted": 6, "blocks": 4 - count // 2},
        }
        lines.append({"name": f"greedy, input {i}", "value": value})
    (folder / "records.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return str(folder)


def test_differences_are_of_the_same_inputs(tmp_path, capsys):
    """One draft is accepted once more for every input, whichever is resampled."""
    runs = [write(tmp_path / "a", "wide", [4, 2]), write(tmp_path / "b", "deep", [3, 1])]
    two_drafts.main([*runs, "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "two_drafts.md").read_text()
    assert text in capsys.readouterr().out
    row = [cell.strip() for cell in text.splitlines()[-1].split("|")[1:-1]]
    assert row[:2] == ["greedy", "2"]
    assert row[2:5] == ["0.75 (0.50 to 1.00)", "0.50 (0.25 to 0.75)", "0.25 (0.25 to 0.25)"]
    assert row[5].startswith("2.40 (")
    assert row[8:] == ["2.00 (2.00 to 2.00)"] * 2 + ["0.00 (0.00 to 0.00)"]
    data = json.loads((tmp_path / "out" / "two_drafts.json").read_text())
    assert data["draft"] == ["wide", "deep"]
    assert data["rows"][0]["acceptance"] == [[0.75, 0.5, 1], [0.5, 0.25, 0.75], [0.25] * 3]


@pytest.mark.parametrize(
    ("accepted", "changes", "words"),
    [
        ([1], {}, "not finished"),
        ([1, 2], {"seed": 1}, r"different settings \(seed\)"),
        (None, {}, "expected folders of papers.speculative"),
    ],
)
def test_refusals(accepted, changes, words, tmp_path, capsys):
    first = write(tmp_path / "a", "wide", [4, 2])
    second = (
        str(tmp_path / "b") if accepted is None else write(tmp_path / "b", "x", accepted, **changes)
    )
    with pytest.raises(SystemExit):
        two_drafts.main([first, second])
    assert re.search(words, capsys.readouterr().err)
