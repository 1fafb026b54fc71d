"""A source of inputs: the rows of a CSV file."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator

from decoding_jax.infer import files, input_files
from decoding_jax.infer.input_files import Paths
from decoding_jax.infer.sources import Item, items_of_files, text_item
from decoding_jax.storage import StoragePath


@dataclasses.dataclass(frozen=True)
class CsvRows:
    r"""A CSV file in UTF-8 whose first row names its columns.

    A cell in quotes may contain delimiters and newlines, and ``""`` in it is one quote. If a row
    cannot be read or does not have a cell for each column, for example because a quote is never
    closed, its first line is a faulty input, and the next row begins on the next line. A cell of
    more than ``csv.field_size_limit()`` characters (131,072) is a fault too. A file whose name ends
    in ``.gz`` is decompressed by gzip.

    Attributes:
      path: the path or the URL of the file, or the name of a file that comes with the library; or
        a pattern, or a list. Each file has a first row of its own.
      column: the name of the column of the inputs.
      id_column: the name of the column of ids, which records repeat as text, or None. An empty cell
        is no id.
      delimiter: the character between cells.

    Raises:
      ValueError: if there is no such file or column, or the file is not whole gzip.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "inputs.csv"
      >>> _ = path.write_text('key,en\na,"Well, hello."\nb\n')
      >>> for item in CsvRows(str(path), column="en", id_column="key"):  # doctest: +ELLIPSIS
      ...     print(item)
      Item(inputs='Well, hello.', error=None, id='a', stop_strings=None, file=None)
      Item(inputs='b', error='wrong number of cells: 1 for 2 columns', ..., file=None)
    """

    path: Paths
    column: str = "inputs"
    id_column: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        value = self.delimiter
        if not isinstance(value, str) or len(value) != 1 or value in '"\r\n ':
            raise ValueError(f"delimiter: got {value!r}; takes one character such as ',' or '\\t'")
        for path, _ in input_files.find(self.path):
            self._columns(path, _Rows(path, value))

    def __iter__(self) -> Iterator[Item]:
        return items_of_files(self.path, self._items)

    def _items(self, path: StoragePath) -> Iterator[Item]:
        rows = _Rows(path, self.delimiter)
        count, column, id_column = self._columns(path, rows)
        for cells, text, error in rows:
            if error is not None:
                yield Item(text, error)
            elif not cells:
                yield Item(text, "empty")
            elif len(cells) != count:
                fault = f"wrong number of cells: {len(cells)} for {count} columns"
                yield Item(rows.after_first_line(), fault)
            else:
                record_id = None if id_column is None else cells[id_column] or None
                yield text_item(cells[column])._replace(id=record_id)

    def _columns(self, path: StoragePath, rows: _Rows) -> tuple[int, int, int | None]:
        """The number of columns, and the positions of the inputs and of the ids."""
        names, _, error = next(rows, ([], "", None))
        if error is not None:
            raise ValueError(f"path: got {str(path)!r}, whose first line is {error}; takes CSV")
        for argument, name in (("column", self.column), ("id_column", self.id_column)):
            if name is not None and names.count(name) != 1:
                have = ", ".join(map(repr, names)) or "no columns"
                raise ValueError(f"{argument}: got {name!r}; takes one of {have} in {path}")
        of_ids = None if self.id_column is None else names.index(self.id_column)
        return len(names), names.index(self.column), of_ids


class _Rows:
    """An iterator over the rows of a CSV file: cells, the text of the row, and None or a fault."""

    def __init__(self, path: StoragePath, delimiter: str):
        self._lines = files.lines(path)
        self._delimiter = delimiter
        self._again: list[bytes] = []  # Lines to read again, the last one first.
        self._taken: list[bytes] = []  # The lines of the current row.

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> tuple[list[str], str, str | None]:
        self._taken = []
        # A reader holds nothing between rows, so each row can have its own.
        reader = csv.reader(self._take(), delimiter=self._delimiter, strict=True)
        try:
            cells = next(reader)
        except csv.Error as e:
            return [], self.after_first_line(), f"broken CSV: {e}"
        row = files.without_end(b"".join(self._taken))
        try:
            return cells, row.decode("utf-8"), None
        except UnicodeDecodeError:
            return [], row.decode("utf-8", "backslashreplace"), "not UTF-8"

    def after_first_line(self) -> str:
        """Makes the next row begin on the second line of this row; returns the first line."""
        self._again.extend(reversed(self._taken[1:]))
        return files.without_end(self._taken[0]).decode("utf-8", "backslashreplace")

    def _take(self) -> Iterator[str]:
        while (line := self._again.pop() if self._again else next(self._lines, None)) is not None:
            self._taken.append(line)
            yield line.decode("utf-8", "surrogateescape")
