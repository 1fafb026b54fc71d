"""Jobs of many files of inputs, which a pattern or a list names."""

import json
import os
from pathlib import Path

import pytest
from infer_fakes import check, draw, files_of, records_of

from decoding_jax import infer
from decoding_jax.infer import CsvRows, Item, JsonLines, TextLines
from decoding_jax.storage import CloudPath

TEXTS = {"b.txt": "4\n5\n", "a.txt": "1\n\n3", "sub/c.txt": "6\n", "d.csv": "no\n", ".e.txt": "7\n"}


@pytest.fixture(params=["disk", "memory", "gs"])
def folder(request, tmp_path):
    """A folder with a few files, as a prefix of paths."""
    if request.param == "gs":
        path = request.getfixturevalue("gs").path / "data"
    else:
        path = CloudPath(f"memory://{tmp_path.name}") if request.param == "memory" else tmp_path
    for name, text in TEXTS.items():
        (path / name).parent.mkdir(exist_ok=True, parents=True)
        (path / name).write_bytes(text.encode())
    return str(path)


def contents(source, folder):
    """The text of each item, and its file below the folder."""
    return [(item.inputs, item.file.removeprefix(f"{folder}/")) for item in source]


def test_the_files_of_a_pattern_are_read_in_the_order_of_their_names(folder):
    read = [("1", "a.txt"), ("", "a.txt"), ("3", "a.txt"), ("4", "b.txt"), ("5", "b.txt")]
    source = TextLines(f"{folder}/*.txt")
    assert contents(source, folder) == contents(source, folder) == read
    assert contents(TextLines(f"{folder}/**/*.txt"), folder) == [*read, ("6", "sub/c.txt")]
    assert contents(TextLines(f"{folder}/[ac].txt"), folder) == read[:3]
    listed = TextLines([f"{folder}/sub/c.txt", f"{folder}/?.txt"])
    assert contents(listed, folder) == [("6", "sub/c.txt"), *read]
    # One file by its name has no name in records.
    assert list(TextLines(f"{folder}/sub/c.txt")) == [Item("6")]
    with pytest.raises(
        ValueError, match=r"^path: expected .* got '.*/\*\.gz', which matches none; the fol"
    ):
        TextLines(f"{folder}/*.gz")
    with pytest.raises(
        ValueError, match=r"^path: expected a file, or a pattern .*, got the folder '.*'$"
    ):
        TextLines(folder)
    with pytest.raises(ValueError, match=r"none/x.txt: no such file"):
        TextLines([f"{folder}/a.txt", f"{folder}/none/x.txt"])


def test_a_name_with_the_characters_of_a_pattern(tmp_path):
    (tmp_path / "[1].txt").write_text("one\n")
    (tmp_path / "1.txt").write_text("two\n")
    assert list(TextLines(str(tmp_path / "[1].txt"))) == [Item("one")]
    Path(os.fsdecode(bytes(tmp_path) + b"/\xe9.txt")).write_text("three\n")
    with pytest.raises(
        ValueError, match=r"^path: expected names of files in UTF-8, got '.*udce9\.txt'"
    ):
        TextLines(f"{tmp_path}/*.txt")


def test_files_of_columns_and_objects(tmp_path):
    for name, rows in {"a": "n,inputs\n1,one\n", "b": "inputs\ntwo\n"}.items():
        (tmp_path / f"{name}.csv").write_text(rows)
        (tmp_path / f"{name}.jsonl").write_text(f'{{"inputs": "{rows.split()[-1]}", "id": 7}}\n')
    found = list(CsvRows(str(tmp_path / "*.csv")))
    assert [(item.inputs, Path(item.file).name) for item in found] == [
        ("one", "a.csv"),
        ("two", "b.csv"),
    ]
    with pytest.raises(
        ValueError, match=r"^column: expected one of 'inputs' in .*b\.csv, got 'n'$"
    ):
        CsvRows(str(tmp_path / "*.csv"), column="n")
    found = list(JsonLines(str(tmp_path / "*.jsonl")))
    assert [(item.id, Path(item.file).name) for item in found] == [(7, "a.jsonl"), (7, "b.jsonl")]


def test_a_job_of_many_files(table, folder, tmp_path):
    """Records are numbered through all files, and say which one they are from."""

    def run(name, path, killed_after=None):
        reported = []

        def report(record):
            reported.append(record)
            if len(reported) == killed_after:
                raise KeyboardInterrupt

        settings = {"batch_size": 8, "shard_size": 2, "max_input_length": 16}
        infer.run(table, TextLines(path), draw, tmp_path / name, report, **settings)
        return files_of(tmp_path / name)

    whole = run("whole", f"{folder}/*.txt")
    found = [(r["index"], r["file"], r["inputs"], "error" in r) for r in records_of(whole)]
    assert found == [
        (0, f"{folder}/a.txt", "1", False),
        (1, f"{folder}/a.txt", "", True),
        (2, f"{folder}/a.txt", "3", False),
        (3, f"{folder}/b.txt", "4", False),
        (4, f"{folder}/b.txt", "5", False),
    ]
    assert json.loads(whole["job.json"])["files"] == [f"{folder}/a.txt", f"{folder}/b.txt"]
    with pytest.raises(KeyboardInterrupt):
        run("killed", f"{folder}/*.txt", killed_after=3)
    # With other files than before, it is another job.
    changed = [f"{folder}/*.txt", f"{folder}/sub/c.txt"]
    with pytest.raises(ValueError, match=r"another job \(not the same: inputs, files\)"):
        run("killed", changed)
    assert run("killed", f"{folder}/*.txt") == whole


def test_the_command_takes_patterns_and_lists(command, capsys):
    Path("more.txt").write_text("three\n")
    assert command(INPUT="*.txt") == 0
    lines = Path("out/decodes-00000-of-00001.jsonl").read_text().splitlines()
    found = [(r["index"], r["file"], r["inputs"]) for r in map(json.loads, lines)]
    last = "four, five, six, seven"
    assert found == [
        *[(0, "inputs.txt", "one"), (1, "inputs.txt", "two"), (2, "inputs.txt", "")],
        *[(3, "inputs.txt", last), (4, "more.txt", "three")],
    ]
    assert command(INPUT=["inputs.txt", "more.txt"]) == 0  # The same files are the same job.
    assert "shards finished before: 1" in capsys.readouterr().err
    Path("new.txt").write_text("five\n")
    check(command(INPUT="*.txt"), capsys, 1, "another job (not the same: inputs, files)")
