"""Decodes batches of columns for engines that hand out work: Ray Data, Apache Beam and others.

Such an engine starts workers, gives each of them one batch after another, and gives a batch to
another worker if one is lost. A ``BatchDecoder`` is what a worker holds. ``infer.run`` is a whole
job without an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from decoding_jax.base import DecodeOutput
from decoding_jax.infer import parquet
from decoding_jax.infer.decoding import ItemDecoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.settings import (
    Settings,
    call_of,
    check_model_and_tokenizer,
    check_own_devices,
    with_fields,
)
from decoding_jax.infer.sources import Item, schema_fault
from decoding_jax.loop import Strategy, forms
from decoding_jax.text import Tokenizer, load

NEW_COLUMNS = ("outputs", "error")
"""The columns that a ``BatchDecoder`` adds."""


class BatchDecoder:
    """A model that is loaded once and maps batches of columns to batches of columns.

    An input has the completions that ``infer.run`` gives it, whatever batch it is in and whichever
    worker decodes it: its key is ``fold_in(key(seed), index)``, and rows are refilled and padded to
    the same widths. Hence each input has a column with its index in the whole data set.

    Ray Data makes one for each actor and calls it with batches:
    ``dataset.map_batches(BatchDecoder, fn_constructor_args=("directory", strategy), ...)``. See
    ``docs/engines.md``, also for Apache Beam.

    Args:
      model: the directory, URL or name of a model, as for ``decoding_jax.load``; or a function
        without arguments that returns a model and its tokenizer, which each worker calls once; or
        such a pair.
      strategy: a strategy with its settings, as for ``infer.run``. All inputs share them.
      inputs: the name of the column with the texts.
      index: the name of the column with the index of each input, from 0 to 2^32 - 1.
      json_schemas: None, or the name of a column with a JSON Schema for each input, as
        ``JsonLines.json_schema`` of the job: a dict or a string of JSON. None stands for the
        ``json_schema``, ``regex`` or ``grammar`` that all inputs share, if there is one.
      **options: the fields of ``infer.Settings``. The batches of the engine should have
        several times ``batch_size`` inputs, so that few rows are idle at their end.

    Raises:
      ValueError: if an argument is invalid; the message is one line that names it.

    Example:
      >>> import functools
      >>> import decoding_jax
      >>> greedy = functools.partial(decoding_jax.greedy, max_new_tokens=4)
      >>> decoder = BatchDecoder(
      ...     "translation-en-fr-draft", greedy, batch_size=2, max_input_length=16)
      >>> batch = decoder({"inputs": ["I am here.", None], "index": [0, 1]})
      >>> sorted(batch), batch["error"].tolist()
      (['error', 'index', 'inputs', 'outputs'], [None, 'no text: NoneType'])
      >>> [output["rank"] for output in batch["outputs"][0]]
      [1]
    """

    @with_fields(Settings)
    def __init__(
        self,
        model: str | tuple[Any, Tokenizer] | Callable[[], tuple[Any, Tokenizer]],
        strategy: Strategy | Callable[..., DecodeOutput],
        *,
        inputs: str = "inputs",
        index: str = "index",
        json_schemas: str | None = None,
        **options: Any,
    ):
        settings = Settings(**options)
        if callable(model):
            model = model()
        elif not isinstance(model, tuple):
            model = load(model)
        check_model_and_tokenizer(model)
        check_own_devices(model[0])
        self._columns = [inputs, index] if json_schemas is None else [inputs, index, json_schemas]
        call = call_of(model, strategy, settings)
        own_schemas = json_schemas is not None
        self._decoder = ItemDecoder(
            call, model[1], settings, independent=True, own_schemas=own_schemas
        )
        if of_rows := self._decoder.rows.inputs.settings_of_inputs():
            raise ValueError(
                "strategy: expected settings that all inputs share, got one value for each input "
                f"in {', '.join(of_rows)}"
            )
        self._process = os.getpid()
        self._fields = _fields_of(settings, self._decoder.call.strategy)

    def __call__(self, batch: Any) -> Any:
        """Decodes a batch.

        Args:
          batch: columns by name, NumPy arrays or lists of one length; or a ``pyarrow.Table``. Texts
            may be None.

        Returns:
          The same columns, and two more, NumPy arrays of objects: ``outputs``, for each input a
          list of completions as in the records of ``infer.run``, and ``error``, which is None or
          says why an input has none. Of a table, a table, in which ``info`` is JSON, and whose
          columns have one type, whatever the batch.

        Raises:
          ValueError: in a process that was forked from that of the decoder, if a column is missing,
            the batch has columns with the names of the new ones.
        """
        if os.getpid() != self._process:
            raise ValueError(
                "BatchDecoder: expected a call in the process that made it, got one in a child of "
                "that process, where JAX would wait for ever; make one in each worker, or spawn"
                " workers instead of forking them"
            )
        is_table = hasattr(batch, "to_pydict")
        given = batch.to_pydict() if is_table else batch
        for name in self._columns:
            if name not in given:
                raise ValueError(f"batch: expected a column {name!r}, got {sorted(given)}")
        for name in NEW_COLUMNS:
            if name in given:
                raise ValueError(f"batch: expected no column {name!r}, which is added, got one")
        texts, numbers, *of_schemas = (list(given[name]) for name in self._columns)
        schemas = of_schemas[0] if of_schemas else [None] * len(texts)
        for name, column in (("indices", numbers), ("schemas", schemas)):
            if len(column) != len(texts):
                raise ValueError(
                    f"batch: expected as many {name} as texts, got {len(column)} for {len(texts)}"
                )
        whole = [isinstance(n, (int, np.integer)) and 0 <= n < 2**32 for n in numbers]
        if not all(whole):
            raise ValueError(
                f"batch: expected indices that are whole numbers from 0 to {2**32 - 1}, got "
                f"{numbers[whole.index(False)]!r}"
            )
        name = self._columns[-1]
        items = [_item(text, name, schema) for text, schema in zip(texts, schemas, strict=True)]
        records: dict[int, Record] = dict(self._decoder.decode(items, [int(n) for n in numbers]))
        made = self._decoder.scored([records[i] for i in range(len(texts))])
        if is_table:
            return self._table(batch, made)
        return {
            **given,
            "outputs": _objects([record["outputs"] for record in made]),
            "error": _objects([record.get("error") for record in made]),
        }

    def _table(self, batch: Any, made: list[Record]) -> Any:
        """A table of Arrow with the new columns, whose types are those of every batch."""
        import pyarrow

        outputs = [[parquet.with_json(output) for output in record["outputs"]] for record in made]
        errors = [record.get("error") for record in made]
        kind = pyarrow.list_(parquet.output_type(self._fields))
        batch = batch.append_column("outputs", pyarrow.array(outputs, kind))
        return batch.append_column("error", pyarrow.array(errors, pyarrow.string()))


def _item(text: Any, name: str, schema: Any) -> Item:
    """An input whose schema is from the column ``name``."""
    if not isinstance(text, str):
        return Item("", error=f"no text: {type(text).__name__}")
    if (fault := schema_fault(name, schema)) is not None:
        return Item(text, error=fault)
    return Item(text, json_schema=schema)


def _fields_of(settings: Settings, strategy: Any) -> list[str]:
    """The fields of each output by the settings of the decoder and of its strategy."""
    top = settings.with_top_tokens > 0
    asked = {
        "tokens": settings.with_tokens,
        "num_tokens": settings.with_num_tokens,
        "info": settings.with_info,
        "sample_log_probs": bool(forms.value_of(strategy, "with_sample_log_prob")),
        "token_log_probs": settings.with_token_log_probs,
        "token_entropies": settings.with_token_entropies,
        "top_tokens": top,
        "top_log_probs": top,
    }
    return [*parquet.FIELDS, *(name for name, is_asked in asked.items() if is_asked)]


def _objects(values: list[Any]) -> np.ndarray:
    """A column of objects, one for each input, whatever their lengths."""
    column = np.empty(len(values), object)
    column[:] = values
    return column
