"""Batches of a task's inputs, decoded by any strategy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding_jax
from decoding_jax.text import Completion, completions, context_of, default_stop, encode_batch
from experiments.papers.tasks import Task

Decode = Callable[..., decoding_jax.DecodeOutput]
"""``(model, prompt, keys, max_new_tokens=..., stop=...) -> DecodeOutput``."""


class Batch(NamedTuple):
    """The results of a batch of rows.

    Attributes:
      completions: those of each row.
      output: the strategy's output, as NumPy arrays, with padding rows.
    """

    completions: list[list[Completion]]
    output: decoding_jax.DecodeOutput


class Decoder:
    """A model with the inputs of a task, in batches of one shape.

    Args:
      model: the model and its tokenizer, as ``decoding_jax.load`` returns them.
      task: the inputs.
      batch_size: the number of rows of a batch.
      max_new_tokens: the largest number of new tokens.
      max_input_tokens: longer inputs are cut to it.

    Attributes:
      cut: the number of inputs that were cut.
    """

    def __init__(
        self,
        model: tuple[Any, Any],
        task: Task,
        batch_size: int,
        max_new_tokens: int,
        max_input_tokens: int,
    ):
        for name, value in (
            ("batch_size", batch_size),
            ("max_new_tokens", max_new_tokens),
            ("max_input_tokens", max_input_tokens),
        ):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, got {value}")
        self.model, self.tokenizer = model
        self.batch_size = batch_size
        encoded = [self.tokenizer.encode(text) for text in task.inputs]
        self.cut = sum(len(row) > max_input_tokens for row in encoded)
        self.ids = [row[:max_input_tokens] for row in encoded]
        self.width = max(len(row) for row in self.ids)
        self.limits: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "stop": default_stop(self.tokenizer),
        }

    def bind(
        self, inputs: Sequence[int], places: int | None = None, model: Any = None
    ) -> tuple[Any, Any]:
        """The language model and the prompt of a batch; the first input fills the places left.

        Args:
          inputs: the number of the input of each row.
          places: the number of rows, by default ``batch_size``.
          model: another model of the same tokenizer, such as a draft.
        """
        places = self.batch_size if places is None else places
        padded = [*inputs, *[inputs[0]] * (places - len(inputs))]
        chosen = self.model if model is None else model
        return encode_batch(chosen, [self.ids[i] for i in padded], self.width)

    def context(self, input_: int) -> list[int]:
        """The tokens that completions of an input continue: none for an encoder-decoder."""
        found = context_of(self.model, [self.ids[input_]])
        return [] if found is None else list(found[0])

    def __call__(
        self, decode: Decode, inputs: Sequence[int], keys: Any, places: int | None = None
    ) -> Batch:
        """Decodes a batch.

        Args:
          decode: the strategy.
          inputs: the number of the input of each row, ``places`` or fewer.
          keys: one key for each row, typed keys ``[len(inputs)]``.
          places: the number of rows, by default ``batch_size``.
        """
        inputs = list(inputs)
        places = self.batch_size if places is None else places
        model, prompt = self.bind(inputs, places)
        keys = keys[np.minimum(np.arange(places), len(inputs) - 1)]
        output = jax.device_get(decode(model, prompt, keys, **self.limits))
        context = context_of(self.model, [self.ids[i] for i in inputs])
        return Batch(completions(self.tokenizer, output, len(inputs), context), output)


def keys_of(seed: int, name: str, rows: Sequence[int]) -> Any:
    """A key for each row of what has that name: typed keys ``[len(rows)]``."""
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(np.asarray(rows, np.uint32))


def batches(count: int, size: int) -> list[range]:
    """The numbers from 0 to ``count``, ``size`` at a time.

    Example:
      >>> batches(5, 2)
      [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
