"""Sources of CSV rows, compressed files, and pipes, which can be read only once."""

import gzip
import io
import os
import sys
import threading

import pytest
from infer_fakes import records

from decoding_jax.infer import CsvRows, Item, JsonLines, TextLines, input_files


@pytest.fixture
def rows(tmp_path):
    """The items of a CSV file with these contents."""

    def read(contents, **settings):
        path = tmp_path / "inputs.csv"
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        source = CsvRows(str(path), **settings)
        made = list(source)
        assert list(source) == made
        return made

    return read


def test_csv_rows(rows):
    text = '\ufeffid,inputs\r\n1,one\r\n2,"two, ""quoted"",\r\n  on two lines"\r\n,5" pipe\r\n'
    assert rows(text, id_column="id") == [
        Item("one", id="1"),
        Item('two, "quoted",\r\n  on two lines', id="2"),
        Item('5" pipe'),
    ]
    assert rows(text)[0] == Item("one")
    assert rows("a\tinputs\n1\tone, two", delimiter="\t") == [Item("one, two")]
    assert rows("inputs\n") == []


def test_a_faulty_csv_row_costs_no_other(rows):
    data = b'inputs,n\none,1\n"open,2\n\n"x"y,3\nbad \xff,4\n5\n6,6,6\n ,7\n"open,\nlast,8\n'
    made = rows(data, id_column="n")
    assert [(item.inputs, (item.error or "").partition(":")[0]) for item in made] == [
        ("one", ""),
        ('"open,2', "broken CSV"),
        ("", "empty"),
        ('"x"y,3', "broken CSV"),
        ("bad \\xff,4", "not UTF-8"),
        ("5", "wrong number of cells"),
        ("6,6,6", "wrong number of cells"),
        (" ", "empty"),
        ('"open,', "broken CSV"),
        ("last", ""),
    ]
    assert [item.id for item in made] == ["1", *[None] * 6, "7", None, "8"]


def test_two_open_quotes_cost_no_row_between_them(rows):
    """Together they look like one cell that holds the rows between them."""
    assert [item.error is None for item in rows('n,inputs\n1,"a\n2,b\n3,c\n4",d,e\n5,f\n')] == [
        *[False, True, True, False, True]
    ]
    made = rows(
        'inputs\n"' + "x" * 100 + "\n" + "ten chars!\n" * 13_000
    )  # Longer than a cell may be.
    assert len(made) == 13_001
    assert made[0].error.startswith("broken CSV: field larger than field limit")
    assert set(made[1:]) == {Item("ten chars!")}


@pytest.mark.parametrize(
    ("contents", "settings", "message"),
    [
        ("a,b\n", {}, r"^column: expected one of 'a', 'b' in .*inputs\.csv, got 'inputs'$"),
        ("", {}, r"^column: expected one of no columns in "),
        (
            "inputs,x,x\n",
            {"id_column": "x"},
            r"^id_column: expected one of 'inputs', 'x', 'x' in .*, got 'x'",
        ),
        ('inputs,"x\n', {}, r"^path: expected CSV, got '.*', whose first line is broken CSV: .*"),
        (
            "inputs\n",
            {"delimiter": ";;"},
            r"^delimiter: expected one character such as .*, got ';;'",
        ),
    ],
)
def test_refused_csv_files(rows, contents, settings, message):
    with pytest.raises(ValueError, match=message):
        rows(contents, **settings)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (TextLines, "one\n\n\ufefftwo\n"),
        (JsonLines, '{"inputs": "one"}\n\n{"inputs": "\ufefftwo"}\n'),
        (CsvRows, "inputs\none\n\n\ufefftwo\n"),
    ],
)
def test_gzip(tmp_path, source, text):
    path = tmp_path / "inputs.gz"
    data = gzip.compress(f"\ufeff{text}".encode())
    path.write_bytes(data)
    assert list(source(str(path))) == [Item("one"), Item("", "empty"), Item("\ufefftwo")]
    for spoiled in (data[:-6], b"one\n", data[:-8] + bytes(8), data + b"more"):
        path.write_bytes(spoiled)
        with pytest.raises(
            ValueError, match=r"^path: expected a whole gzip file, got '.*inputs\.gz' \(.*\)"
        ):
            list(source(str(path)))


@pytest.fixture
def standard_input(monkeypatch):
    """Sets what standard input gives, once."""

    def of(data):
        monkeypatch.setattr(input_files, "_COPIES", {})
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return of


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_is_read_once_and_given_twice(standard_input, name):
    standard_input(b'{"inputs": "one"}\n{"inputs": "two"}\n')
    source = JsonLines(name)
    assert list(source) == list(source) == [Item("one"), Item("two")]


def test_a_pipe_is_read_once_and_given_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "_COPIES", {})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"inputs\none\ntwo\n",))
    writer.start()
    source = CsvRows(str(pipe))
    writer.join()
    assert list(source) == list(source) == [Item("one"), Item("two")]


def test_a_job_of_compressed_csv_rows(command, tmp_path, capsys, standard_input):
    path = tmp_path / "inputs.csv.gz"
    path.write_bytes(gzip.compress(b"key,text\na,one\nb\nc,two\n"))
    settings = ["--gin.SOURCE=@infer.CsvRows()", "--gin.infer.CsvRows.column='text'"]
    settings += ["--gin.infer.CsvRows.id_column='key'"]
    assert command(*settings, INPUT="inputs.csv.gz") == 0, capsys.readouterr().err
    made = records()
    assert [(r["inputs"], r.get("id"), "error" in r) for r in made] == [
        ("one", "a", False),
        ("b", None, True),
        ("two", "c", False),
    ]
    path.rename(tmp_path / "moved.gz")
    assert command(*settings, INPUT="moved.gz") == 0  # The path of the inputs is no setting.
    standard_input(gzip.decompress((tmp_path / "moved.gz").read_bytes()))
    assert command(*settings, INPUT="-") == 0
    assert "shards finished before: 1" in capsys.readouterr().err
