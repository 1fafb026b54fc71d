"""Decodes batches of columns for engines that hand out work: Ray Data, Apache Beam and others.

Such an engine starts workers, gives each of them one batch after another, and gives a batch to
another worker if one is lost. A ``BatchDecoder`` is what a worker holds. ``infer.run`` is a whole
job without an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from decoding_jax.base import DecodeOutput, Stop
from decoding_jax.infer import buckets as bucketing
from decoding_jax.infer import gin_names
from decoding_jax.infer.arguments import (
    check_counts,
    check_flags,
    check_job,
    check_own_devices,
    check_seed,
    with_tokenizer,
)
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.input_encoder import InputEncoder
from decoding_jax.infer.item_decoder import ItemDecoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.scoring import make_scorer
from decoding_jax.infer.sources import Item
from decoding_jax.rows import row_arguments, with_rows
from decoding_jax.text import Tokenizer, load, with_end_tokens
from decoding_jax.text.sizes import shared_size
from decoding_jax.text.stop_strings import shared_strings

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
      strategy: a strategy with its settings bound, as for ``infer.run``. All inputs share its
        settings.
      inputs: the name of the column with the texts.
      index: the name of the column with the index of each input, from 0 to 2^32 - 1.
      seed: the seed of the job.
      batch_size: the number of rows that are decoded at a time. The batches of the engine should
        have several times as many inputs, so that few rows are idle at their end.
      max_input_length: the maximum number of tokens of an input, without a shared prefix.
      truncate: as for ``infer.run``.
      buckets: as for ``infer.run``.
      stop: as for ``infer.run``.
      drafter: as for ``infer.run``.
      with_tokens: whether outputs contain token ids.
      with_num_tokens, with_info: as for ``infer.run``.
      with_token_log_probs, with_token_entropies, with_top_tokens: as for ``infer.run``. What they
        add is computed by one more pass of the model over each batch.
      refill: as for ``infer.run``.

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

    def __init__(
        self,
        model: str | tuple[Any, Tokenizer] | Callable[[], tuple[Any, Tokenizer]],
        strategy: Callable[..., DecodeOutput],
        *,
        inputs: str = "inputs",
        index: str = "index",
        seed: int = 0,
        batch_size: int = 32,
        max_input_length: int = 512,
        truncate: bool = False,
        buckets: Sequence[int] | None = None,
        stop: Stop | None = None,
        drafter: Any = None,
        with_tokens: bool = False,
        with_num_tokens: bool = False,
        with_info: bool = False,
        with_token_log_probs: bool = False,
        with_token_entropies: bool = False,
        with_top_tokens: int = 0,
        refill: bool = True,
    ):
        if callable(model):
            model = model()
        elif not isinstance(model, tuple):
            model = load(model)
        check_job(model, [], strategy, None, buckets, stop)
        check_own_devices(model[0])
        check_flags(
            truncate=truncate,
            with_tokens=with_tokens,
            with_num_tokens=with_num_tokens,
            with_info=with_info,
            with_token_log_probs=with_token_log_probs,
            with_token_entropies=with_token_entropies,
            refill=refill,
        )
        check_counts(batch_size=batch_size, max_input_length=max_input_length)
        check_seed(seed)
        self._columns = inputs, index
        net, tokenizer = model
        stop = with_end_tokens(stop, tokenizer)
        strategy = with_tokenizer(strategy, tokenizer)
        settings = {**gin_names.bound_settings(strategy), "stop": stop}
        if of_rows := with_rows(settings, row_arguments(strategy)):
            raise ValueError(
                f"strategy: got one value for each input in {', '.join(of_rows)}; takes settings "
                "that all inputs share"
            )
        widths = bucketing.widths(max_input_length, buckets, shared_size(net))
        decoder = Decoder(
            net,
            tokenizer,
            strategy,
            stop=shared_strings(stop, tokenizer, net),
            seed=seed,
            batch_size=batch_size,
            drafter=drafter,
            refill=refill,
            independent=True,
            with_info=with_info,
        )
        decoder.check(widths[-1])
        encode = InputEncoder(net, tokenizer, widths[-1], truncate=truncate)
        self._scorer = make_scorer(
            net,
            encode,
            batch_size,
            widths,
            with_token_log_probs=with_token_log_probs,
            with_token_entropies=with_token_entropies,
            with_top_tokens=with_top_tokens,
        )
        self._with_tokens = with_tokens
        self._decoder = ItemDecoder(
            decoder,
            encode,
            widths,
            seed=seed,
            with_tokens=with_tokens or self._scorer is not None,
            with_num_tokens=with_num_tokens,
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Decodes a batch.

        Args:
          batch: columns by name, NumPy arrays or lists of one length. Texts may be None.

        Returns:
          The same columns, and two more, NumPy arrays of objects: ``outputs``, for each input a
          list of completions as in the records of ``infer.run``, and ``error``, which is None or
          says why an input has none.

        Raises:
          ValueError: if a column is missing, an index is not a whole number from 0 to 2^32 - 1, or
            the batch has columns with the names of the new ones.
        """
        for name in self._columns:
            if name not in batch:
                raise ValueError(f"batch: got columns {sorted(batch)}; takes one named {name!r}")
        for name in NEW_COLUMNS:
            if name in batch:
                raise ValueError(f"batch: got a column {name!r}, which is the name of a new one")
        texts, numbers = (list(batch[name]) for name in self._columns)
        if len(texts) != len(numbers):
            raise ValueError(
                f"batch: got {len(texts)} texts and {len(numbers)} indices; takes as many of both"
            )
        whole = [isinstance(n, (int, np.integer)) and 0 <= n < 2**32 for n in numbers]
        if not all(whole):
            raise ValueError(
                f"batch: got the index {numbers[whole.index(False)]!r}; takes whole numbers from 0 "
                f"to {2**32 - 1}"
            )
        records: dict[int, Record] = dict(
            self._decoder.decode([_item(text) for text in texts], [int(n) for n in numbers])
        )
        made = [records[i] for i in range(len(texts))]
        if self._scorer is not None:
            made = self._scorer.add(made, with_tokens=self._with_tokens)
        return {
            **batch,
            "outputs": _objects([record["outputs"] for record in made]),
            "error": _objects([record.get("error") for record in made]),
        }


def _item(text: Any) -> Item:
    if isinstance(text, str):
        return Item(text)
    return Item("", error=f"no text: {type(text).__name__}")


def _objects(values: list[Any]) -> np.ndarray:
    """A column of objects, one for each input, whatever their lengths."""
    column = np.empty(len(values), object)
    column[:] = values
    return column
