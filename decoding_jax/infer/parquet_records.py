"""Writes records as a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from decoding_jax.infer.records import Record

_GROUP = 10_000  # records of a row group


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
            "file: got Parquet, but pyarrow is not installed; "
            "takes pip install 'decoding_jax[parquet]'"
        ) from e
    schema, ids_as_json = _schema(pyarrow, records())
    sink = _Sink()
    with parquet.ParquetWriter(pyarrow.PythonFile(sink, mode="w"), schema) as writer:
        group: list[Record] = []
        for record in records():
            if ids_as_json and "id" in record:
                record = {**record, "id": json.dumps(record["id"], ensure_ascii=False)}
            group.append({**record, "outputs": [_with_json(o) for o in record["outputs"]]})
            if len(group) == _GROUP:
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
                group = []
                yield sink.taken()
        writer.write_table(pyarrow.Table.from_pylist(group, schema))
    yield sink.taken()


def _schema(pyarrow: Any, records: Iterable[Record]) -> tuple[Any, bool]:
    """The columns of the records, and whether ids are written as JSON."""
    names: set[str] = set()
    of_outputs = {"rank", "text", "log_prob", "score", "finished"}
    of_ids: set[type] = set()
    for record in records:
        names |= record.keys()
        of_ids |= {type(record["id"])} if "id" in record else set()
        for output in record["outputs"]:
            of_outputs |= output.keys()
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
    structure = pyarrow.struct([(k, v) for k, v in output.items() if k in of_outputs])
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


def _with_json(output: dict[str, Any]) -> dict[str, Any]:
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
