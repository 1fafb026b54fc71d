"""Parquet files: a source of inputs, and records in one file. The extra ``parquet`` has pyarrow."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from decoding_jax import fields
from decoding_jax.infer import input_files
from decoding_jax.infer.input_files import Paths
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item, items_of_files, text_item
from decoding_jax.storage import StoragePath

_ROWS = 1024  # rows that are in memory at a time
FIELDS = ("rank", "text", "log_prob", "score", "finished")
"""The fields that every output has."""
_GROUP = 10_000  # records of a row group


@dataclasses.dataclass(frozen=True)
class ParquetRows:
    """The rows of a Parquet file; the extra ``parquet`` installs pyarrow, which reads it.

    Only the columns that are named are read. A row whose cell is null or no text is a faulty input.

    Attributes:
      path: the path or the URL of the file; or a pattern, or a list.
      column: the name of the column of the inputs, which has texts.
      id_column: the name of the column of ids, which records repeat, or None. It has texts, whole
        numbers or anything else that JSON has. A null is no id.

    Raises:
      ValueError: if there is no such file or column, if the file is not whole Parquet, or if
        pyarrow is not installed.

    Example:
      >>> import pathlib, tempfile
      >>> import pyarrow, pyarrow.parquet
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "inputs.parquet"
      >>> table = pyarrow.table({"key": [7, 8], "en": ["Good morning.", None]})
      >>> pyarrow.parquet.write_table(table, path)
      >>> for item in ParquetRows(str(path), column="en", id_column="key"):  # doctest: +ELLIPSIS
      ...     print(item)
      Item(inputs='Good morning.', error=None, id=7, ..., json_schema=None)
      Item(inputs='', error="not text: 'en' is null", id=8, ..., json_schema=None)
    """

    path: Paths
    column: str = "inputs"
    id_column: str | None = None

    def __post_init__(self) -> None:
        for path, _ in input_files.find(self.path):
            with self._opened(path):
                pass

    def __iter__(self) -> Iterator[Item]:
        return items_of_files(self.path, self._items)

    def _items(self, path: StoragePath) -> Iterator[Item]:
        columns = sorted({self.column, self.id_column or self.column})
        with self._opened(path) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=columns):
                texts = batch.column(self.column).to_pylist()
                if self.id_column is None:
                    ids = [None] * len(texts)
                else:
                    ids = batch.column(self.id_column).to_pylist()
                for text, record_id in zip(texts, ids, strict=True):
                    yield self._item(text, record_id)

    def _item(self, text: Any, record_id: Any) -> Item:
        try:
            json.dumps(record_id, allow_nan=False)
        except (TypeError, ValueError):
            kind = type(record_id).__name__
            return Item(str(text), f"id cannot be written as JSON: {kind} of {self.id_column!r}")
        if isinstance(text, str):
            return text_item(text)._replace(id=record_id)
        kind = "null" if text is None else type(text).__name__
        given = "" if text is None else str(text)
        return Item(given, f"not text: {self.column!r} is {kind}", record_id)

    @contextlib.contextmanager
    def _opened(self, path: StoragePath) -> Iterator[Any]:
        """A file of Parquet, which has the columns that are asked for."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as e:
            raise ValueError(
                "path: expected an installed pyarrow (pip install 'decoding_jax[parquet]'), got "
                "none"
            ) from e
        try:
            with path.open("rb") as file, parquet.ParquetFile(file) as opened:
                names = opened.schema_arrow.names
                for argument, name in (("column", self.column), ("id_column", self.id_column)):
                    if name is not None and names.count(name) != 1:
                        have = ", ".join(map(repr, names)) or "no columns"
                        raise fields.error(argument, f"one of {have} in {path}", name)
                yield opened
        except pyarrow.ArrowInvalid as e:
            reason = " ".join(str(e).split())
            raise ValueError(f"path: expected a Parquet file, got {str(path)!r} ({reason})") from e


def parts(records: Callable[[], Iterable[Record]]) -> Iterator[bytes]:
    """Yields the parts of a Parquet file of records.

    Its columns are those of the records: ``index``, ``id``, ``file``, ``inputs``, ``outputs`` (a
    list of structures), ``seed``, ``inputs_length``, ``num_cut`` and ``error``, without those that
    no record has. An ``info`` is JSON. The ids are numbers if all of them are whole numbers, texts
    if all are texts, and JSON otherwise.

    Args:
      records: a function that returns the records from the first on. It is called twice: the
        columns are found first.

    Raises:
      ValueError: if pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as e:
        raise ValueError(
            "file: expected an installed pyarrow (pip install 'decoding_jax[parquet]'), got none"
        ) from e
    schema, ids_as_json = _schema(pyarrow, records())
    sink = _Sink()
    with parquet.ParquetWriter(pyarrow.PythonFile(sink, mode="w"), schema) as writer:
        group: list[Record] = []
        for record in records():
            if ids_as_json and "id" in record:
                record = {**record, "id": json.dumps(record["id"], ensure_ascii=False)}
            group.append({**record, "outputs": [with_json(o) for o in record["outputs"]]})
            if len(group) == _GROUP:
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
                group = []
                yield sink.taken()
        writer.write_table(pyarrow.Table.from_pylist(group, schema))
    yield sink.taken()


def _schema(pyarrow: Any, records: Iterable[Record]) -> tuple[Any, bool]:
    """The columns of the records, and whether ids are written as JSON."""
    names: set[str] = set()
    of_outputs = set(FIELDS)
    of_ids: set[type] = set()
    for record in records:
        names |= record.keys()
        of_ids |= {type(record["id"])} if "id" in record else set()
        for output in record["outputs"]:
            of_outputs |= output.keys()
    structure = output_type(of_outputs)
    columns = {
        "index": pyarrow.int64(),
        "id": pyarrow.int64() if of_ids == {int} else pyarrow.string(),
        "file": pyarrow.string(),
        "inputs": pyarrow.string(),
        "outputs": pyarrow.list_(structure),
        "seed": pyarrow.int64(),
        "inputs_length": pyarrow.int64(),
        "num_cut": pyarrow.int64(),
        "error": pyarrow.string(),
    }
    schema = pyarrow.schema([(k, v) for k, v in columns.items() if k in names])
    return schema, of_ids not in ({int}, {str})


def output_type(names: Collection[str]) -> Any:
    """The Arrow type of an output with these fields, of which ``info`` is JSON."""
    import pyarrow

    output = {
        "rank": pyarrow.int64(),
        "text": pyarrow.string(),
        "tokens": pyarrow.list_(pyarrow.int32()),
        "num_tokens": pyarrow.int32(),
        "log_prob": pyarrow.float64(),
        "sample_log_probs": pyarrow.list_(pyarrow.float64()),
        "token_log_probs": pyarrow.list_(pyarrow.float64()),
        "token_entropies": pyarrow.list_(pyarrow.float64()),
        "top_tokens": pyarrow.list_(pyarrow.list_(pyarrow.int32())),
        "top_log_probs": pyarrow.list_(pyarrow.list_(pyarrow.float64())),
        "score": pyarrow.float64(),
        "finished": pyarrow.bool_(),
        "info": pyarrow.string(),
    }
    return pyarrow.struct([(k, v) for k, v in output.items() if k in names])


def with_json(output: dict[str, Any]) -> dict[str, Any]:
    """An output whose ``info``, which each strategy has of its own, is JSON."""
    return {**output, "info": json.dumps(output["info"])} if "info" in output else output


class _Sink:
    """A file that keeps what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def taken(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data
