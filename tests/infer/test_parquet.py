"""Parquet files as inputs and as the file of a finished job."""

import json

import pyarrow
import pyarrow.parquet as parquet
import pytest
from infer_fakes import records

from decoding_jax.infer import Item, ParquetRows, merge
from decoding_jax.storage import CloudPath


def write(path, columns):
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_rows(tmp_path):
    texts = ["one", "", None, "ç", 'two\n"lines"']
    path = write(tmp_path / "a.parquet", {"n": [1, 2, None, 4, 5], "inputs": texts, "x": [0.0] * 5})
    items = [
        Item("one"),
        Item("", "empty"),
        Item("", "not text: 'inputs' is null"),
        Item("ç"),
        Item('two\n"lines"'),
    ]
    assert list(ParquetRows(path)) == items
    ids = [1, 2, None, 4, 5]
    with_ids = [item._replace(id=n) for item, n in zip(items, ids, strict=True)]
    assert list(ParquetRows(path, id_column="n")) == with_ids
    assert [i.error for i in ParquetRows(path, column="n")][:3] == [
        *["not text: 'n' is int"] * 2,
        "not text: 'n' is null",
    ]
    long = write(tmp_path / "b.parquet", {"inputs": [str(i) for i in range(3000)]})
    assert [item.inputs for item in ParquetRows(long)] == [str(i) for i in range(3000)]
    in_bucket = CloudPath("memory://parquet/b.parquet")
    in_bucket.write_bytes((tmp_path / "b.parquet").read_bytes())
    assert list(ParquetRows(str(in_bucket))) == list(ParquetRows(long))


def test_an_id_that_json_lacks_is_a_fault(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": [b"1", b"2"], "inputs": ["one", "two"]})
    fault = "id cannot be written as JSON: bytes of 'id'"
    assert list(ParquetRows(path, id_column="id")) == [Item("one", fault), Item("two", fault)]


def test_refused_files(tmp_path):
    path = write(tmp_path / "a.parquet", {"a": ["one"]})
    for column in ("column", "id_column"):
        with pytest.raises(
            ValueError, match=rf"^{column}: expected one of 'a' in .*a.parquet, got 'b'"
        ):
            ParquetRows(path, **{"column": "a", column: "b"})
    for data in (b"", b"one\n", (tmp_path / "a.parquet").read_bytes()[:-5]):
        (tmp_path / "a.parquet").write_bytes(data)
        with pytest.raises(ValueError, match=r"^path: expected a Parquet file, got '.*' \(.*\)$"):
            ParquetRows(path)


def test_a_job_from_parquet_to_parquet(command, tmp_path, capsys, monkeypatch):
    write(tmp_path / "in.parquet", {"key": ["a", None, "c"], "text": ["one", "two", None]})
    settings = ["--gin.SOURCE=@infer.ParquetRows()", "--gin.infer.ParquetRows.column='text'"]
    settings += ["--gin.infer.ParquetRows.id_column='key'", "--gin.infer.run.with_tokens=True"]
    assert command(*settings, INPUT="in.parquet") == 0, capsys.readouterr().err
    made = records()
    assert [(r["inputs"], r.get("id"), "error" in r) for r in made] == [
        ("one", "a", False),
        ("two", None, False),
        ("", "c", True),
    ]
    for group in (10_000, 2):
        monkeypatch.setattr(merge.parquet, "_GROUP", group)
        path, count = merge.merge("out", "all.parquet")
        table = parquet.read_table(path)
        assert count == table.num_rows == 3
        assert table.column_names == ["index", "id", "inputs", "outputs", "seed", "error"]
        without_nulls = [{k: v for k, v in r.items() if v is not None} for r in table.to_pylist()]
        assert without_nulls == made
    assert merge.main(["out", "-o", "all.parquet"]) == 0


@pytest.mark.parametrize(
    ("ids", "column"),
    [
        ([7, 8], [7, 8]),
        (["a", "8"], ["a", "8"]),
        ([7, "8"], ["7", '"8"']),
        ([None, [1]], [None, "[1]"]),
    ],
)
def test_ids_in_a_column(tmp_path, ids, column):
    job = {"inputs": {"count": 2}, "shard_size": 2, "name": "decodes"}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "job.json").write_text(json.dumps(job))
    lines = []
    for i, record_id in enumerate(ids):
        given = {} if record_id is None else {"id": record_id}
        lines.append(json.dumps({"index": i, **given, "inputs": "a", "outputs": [], "seed": 0}))
    (tmp_path / "out" / "decodes-00000-of-00001.jsonl").write_text("\n".join([*lines, ""]))
    path, _ = merge.merge(tmp_path / "out", tmp_path / "all.parquet")
    assert parquet.read_table(path).column("id").to_pylist() == column


def test_pyarrow_that_is_not_installed_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"inputs": ["one"]})
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(
        ValueError, match=r"^path: expected an installed pyarrow \(pip install 'decoding_jax"
    ):
        ParquetRows(path)
    with pytest.raises(ValueError, match=r"^file: expected an installed pyarrow"):
        list(merge.parquet.parts(lambda: []))
