"""A source of inputs: the rows of a Parquet file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from decoding_jax.infer import input_files
from decoding_jax.infer.input_files import Paths
from decoding_jax.infer.sources import Item, items_of_files, text_item
from decoding_jax.storage import StoragePath

_ROWS = 1024  # rows that are in memory at a time


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
      >>> for item in ParquetRows(str(path), column="en", id_column="key"):
      ...     print(item)
      Item(inputs='Good morning.', error=None, id=7, stop_strings=None, file=None)
      Item(inputs='', error="not text: 'en' is null", id=8, stop_strings=None, file=None)
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
                f"path: got {str(path)!r}, but pyarrow is not installed; "
                "takes pip install 'decoding_jax[parquet]'"
            ) from e
        try:
            with path.open("rb") as file, parquet.ParquetFile(file) as opened:
                names = opened.schema_arrow.names
                for argument, name in (("column", self.column), ("id_column", self.id_column)):
                    if name is not None and names.count(name) != 1:
                        have = ", ".join(map(repr, names)) or "no columns"
                        raise ValueError(f"{argument}: got {name!r}; takes one of {have} in {path}")
                yield opened
        except pyarrow.ArrowInvalid as e:
            reason = " ".join(str(e).split())
            raise ValueError(f"path: got {str(path)!r} ({reason}); takes a Parquet file") from e
