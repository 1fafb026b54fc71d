"""Sources of inputs: lines of text, JSON lines, rows of CSV, and SeqIO tasks.

The path of a source is that of a file, a pattern such as ``data/*.jsonl``, whose files are read in
the order of their names, or a list of these.

A source is any iterable of ``Item`` that yields the same items in the same order each time it is
iterated over. A faulty input is also an item, so no input is dropped.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from decoding_jax import fields
from decoding_jax.infer import input_files
from decoding_jax.infer.input_files import Paths
from decoding_jax.storage import StoragePath
from decoding_jax.text.stop_strings import is_stop_string


class Item(NamedTuple):
    """One input.

    Attributes:
      inputs: the text of the input, or the contents of the file if the input is faulty.
      error: None, or the kind of the fault, followed by a colon and the details if there are any.
      id: any JSON value that identifies the input, which its record repeats. None if the input has
        no id.
      stop_strings: strings that end the texts of this input, in place of ``stop.strings`` of the
        job; None for those of the job.
      file: the file that the input is from, which its record repeats; None where the job has one
        file, or none.
      json_schema: the JSON Schema of the texts of this input, a dict or a string of JSON, in place
        of ``json_schema``, ``regex`` or ``grammar`` of the job; None for that of the job.
    """

    inputs: str
    error: str | None = None
    id: Any = None
    stop_strings: Sequence[str] | None = None
    file: str | None = None
    json_schema: Any = None


def schema_text(item: Item) -> str | None:
    """The schema of an item as JSON.

    Example:
      >>> schema_text(Item("x", json_schema={"type": "null"}))
      '{"type": "null"}'
    """
    schema = item.json_schema
    return schema if schema is None or isinstance(schema, str) else json.dumps(schema)


def schema_fault(name: str, schema: Any) -> str | None:
    """The fault of an input whose field ``name`` has a value that is no JSON Schema, or None.

    Example:
      >>> schema_fault("schema", 5)
      "not a JSON Schema: 'schema' is 5"
      >>> schema_fault("schema", {"enum": b"a"})
      "not a JSON Schema: 'schema': Object of type bytes is not JSON serializable"
    """
    try:
        written = json.dumps(schema)
    except (TypeError, ValueError) as error:
        return f"not a JSON Schema: {name!r}: {error}"
    if isinstance(schema, (dict, str, type(None))):
        return None
    return f"not a JSON Schema: {name!r} is {written}"


@dataclasses.dataclass(frozen=True)
class TextLines:
    r"""A text file in UTF-8 with one input per line.

    Lines end in ``\n`` or ``\r\n``. A byte order mark at the start of the file is skipped. A file
    whose name ends in ``.gz`` is decompressed by gzip.

    Attributes:
      path: the path or the URL of the file, or the name of a file that comes with the library; or
        a pattern, or a list.

    Raises:
      ValueError: if there is no such file, or it is not whole gzip.

    Example:
      >>> [item.inputs for item in TextLines("runs/demo_sentences.txt")][0]
      'Do you need our help?'
    """

    path: Paths

    def __post_init__(self) -> None:
        input_files.find(self.path)

    def __iter__(self) -> Iterator[Item]:
        return items_of_files(self.path, self._items)

    def _items(self, path: StoragePath) -> Iterator[Item]:
        for line in input_files.lines(path):
            line = input_files.without_end(line)
            yield _utf8(line) or text_item(line.decode("utf-8"))


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """A file with one JSON object per line.

    The input is the value of ``field``. The value of ``id``, if there is one, is kept. A file whose
    name ends in ``.gz`` is decompressed by gzip.

    Attributes:
      path: the path or the URL of the file, or the name of a file that comes with the library; or
        a pattern, or a list.
      field: the key of the input in each object.
      stop_strings: None, or the key of a string or a list of strings that end the texts of the
        input, in place of ``stop.strings`` of the job. An object without this key has those of the
        job, and one with an empty list has none.
      json_schema: None, or the key of a JSON Schema, an object or a string, to which the texts of
        the input are kept, in place of the constraint of the job. An object without this key has
        that of the job. A schema that is not valid makes the input faulty.

    Raises:
      ValueError: if there is no such file, or it is not whole gzip.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "inputs.jsonl"
      >>> _ = path.write_text('{"en": "Good morning.", "id": 7}\\n{"fr": "Bonjour."}\\n')
      >>> for item in JsonLines(str(path), field="en"):  # doctest: +ELLIPSIS
      ...     print(item)
      Item(inputs='Good morning.', error=None, id=7, ..., json_schema=None)
      Item(inputs='{"fr": "Bonjour."}', error="no field: 'en'", ..., json_schema=None)
    """

    path: Paths
    field: str = "inputs"
    stop_strings: str | None = None
    json_schema: str | None = None

    def __post_init__(self) -> None:
        input_files.find(self.path)

    def __iter__(self) -> Iterator[Item]:
        return items_of_files(self.path, self._items)

    def _items(self, path: StoragePath) -> Iterator[Item]:
        for line in input_files.lines(path):
            line = input_files.without_end(line)
            yield _utf8(line) or self._item(line.decode("utf-8"))

    def _item(self, line: str) -> Item:
        if not line.strip():
            return Item(line, "empty")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as e:
            return Item(line, f"broken JSON: {e}")
        if not isinstance(value, dict):
            return Item(line, f"not a JSON object: {type(value).__name__}")
        record_id = value.get("id")
        try:  # JSON can be read, but not written, with NaN and lone surrogates.
            json.dumps(record_id, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except (ValueError, RecursionError) as e:
            return Item(line, f"id cannot be written as JSON: {e}")
        if self.field not in value:
            return Item(line, f"no field: {self.field!r}", record_id)
        text = value[self.field]
        if not isinstance(text, str):
            return Item(line, f"not text: {self.field!r} is {type(text).__name__}", record_id)
        strings = None if self.stop_strings is None else value.get(self.stop_strings)
        if strings is not None:
            strings = (strings,) if isinstance(strings, str) else strings
            if not isinstance(strings, (list, tuple)) or not all(map(is_stop_string, strings)):
                fault = f"not stop strings: {self.stop_strings!r} is {json.dumps(strings)}"
                return Item(line, fault, record_id)
            strings = tuple(strings)
        schema = None if self.json_schema is None else value.get(self.json_schema)
        if (no_schema := schema_fault(self.json_schema or "", schema)) is not None:
            return Item(line, no_schema, record_id)
        item = text_item(text)
        return item._replace(id=record_id, stop_strings=strings, json_schema=schema)


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
      Item(inputs='Well, hello.', error=None, id='a', ..., json_schema=None)
      Item(inputs='b', error='wrong number of cells: 1 for 2 columns', ..., json_schema=None)
    """

    path: Paths
    column: str = "inputs"
    id_column: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        value = self.delimiter
        if not isinstance(value, str) or len(value) != 1 or value in '"\r\n ':
            raise fields.error("delimiter", r"one character such as ',' or '\t'", value)
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
            raise ValueError(f"path: expected CSV, got {str(path)!r}, whose first line is {error}")
        for argument, name in (("column", self.column), ("id_column", self.id_column)):
            if name is not None and names.count(name) != 1:
                have = ", ".join(map(repr, names)) or "no columns"
                raise fields.error(argument, f"one of {have} in {path}", name)
        of_ids = None if self.id_column is None else names.index(self.id_column)
        return len(names), names.index(self.column), of_ids


class _Rows:
    """An iterator over the rows of a CSV file: cells, the text of the row, and None or a fault."""

    def __init__(self, path: StoragePath, delimiter: str):
        self._lines = input_files.lines(path)
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
        row = input_files.without_end(b"".join(self._taken))
        try:
            return cells, row.decode("utf-8"), None
        except UnicodeDecodeError:
            return [], row.decode("utf-8", "backslashreplace"), "not UTF-8"

    def after_first_line(self) -> str:
        """Makes the next row begin on the second line of this row; returns the first line."""
        self._again.extend(reversed(self._taken[1:]))
        return input_files.without_end(self._taken[0]).decode("utf-8", "backslashreplace")

    def _take(self) -> Iterator[str]:
        while (line := self._again.pop() if self._again else next(self._lines, None)) is not None:
            self._taken.append(line)
            yield line.decode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True)
class SeqioTask:
    """The examples of a SeqIO task, or of each task of a mixture in turn.

    The input is the text of the feature before tokenization if the task keeps it. Otherwise it is
    the feature decoded by the task's vocabulary. The model's own tokenizer then encodes this text.
    The gin file has to import the module that registers the task.

    Attributes:
      name: the name of a task or a mixture.
      split: the split of the data. Tasks of a mixture that do not have it are left out.
      feature: the name of the feature that is the input.

    Raises:
      ValueError: if SeqIO is not installed, or has no such task, split or feature.
    """

    name: str
    split: str = "validation"
    feature: str = "inputs"

    def __post_init__(self) -> None:
        self._tasks()

    def __iter__(self) -> Iterator[Item]:
        for task in self._tasks():
            vocabulary = task.output_features[self.feature].vocabulary
            data = task.get_dataset(
                sequence_length=None, split=self.split, shuffle=False, num_epochs=1
            )
            for example in data.as_numpy_iterator():
                text = example.get(f"{self.feature}_pretokenized")
                if text is None:
                    text = vocabulary.decode([int(i) for i in example[self.feature]])
                if isinstance(text, bytes):
                    yield _utf8(text) or text_item(text.decode("utf-8"))
                else:
                    yield text_item(str(text))

    def _tasks(self) -> list[Any]:
        try:
            import seqio
        except ImportError as e:
            raise ValueError(
                "SeqioTask: expected an installed SeqIO (pip install 'decoding_jax[seqio]'), got "
                "none"
            ) from e
        tasks = seqio.get_subtasks(seqio.get_mixture_or_task(self.name))
        tasks = [t for t in tasks if self.split in t.splits]
        if not tasks:
            raise fields.error("SeqioTask.split", f"a split of {self.name!r}", self.split)
        for task in tasks:
            if self.feature not in task.output_features:
                have = ", ".join(sorted(task.output_features))
                raise fields.error("SeqioTask.feature", f"{have} of {task.name!r}", self.feature)
        return tasks


def items_of_files(paths: Paths, items: Callable[[StoragePath], Iterator[Item]]) -> Iterator[Item]:
    """Yields the items of files one after another; those of several files have ``file``.

    Args:
      paths: as ``input_files.find`` takes them.
      items: yields the items of one file.
    """
    for path, name in input_files.find(paths):
        for item in items(path):
            yield item if name is None else item._replace(file=name)


def text_item(text: str) -> Item:
    """Returns an item of ``text``, which is faulty if the text is empty or not Unicode.

    Example:
      >>> text_item("  ")  # doctest: +ELLIPSIS
      Item(inputs='  ', error='empty', id=None, ..., json_schema=None)
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # A lone surrogate, which JSON can express.
        return Item(text.encode("utf-8", "backslashreplace").decode(), "not Unicode text")
    return Item(text) if text.strip() else Item(text, "empty")


def _utf8(line: bytes) -> Item | None:
    """A faulty item if the bytes are not UTF-8, otherwise None."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return Item(line.decode("utf-8", "backslashreplace"), "not UTF-8")
    return None
