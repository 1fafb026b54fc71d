"""Decoding as inference in Apache Beam; needs the extra ``beam``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from apache_beam.ml.inference.base import ModelHandler

from decoding_jax.infer.batch_decoder import BatchDecoder

Element = dict[str, Any]
"""One input with its columns, such as ``{"index": 3, "inputs": "Where is the station?"}``."""


class DecodingHandler(ModelHandler[Element, Element, BatchDecoder]):
    """Makes and calls a ``BatchDecoder`` for Beam's ``RunInference``.

    ``elements | RunInference(DecodingHandler(lambda: BatchDecoder("directory", strategy)))`` gives
    each element with the columns ``outputs`` and ``error``.

    Args:
      make: makes the decoder, once for each worker process.
      min_batch_size: the minimum number of elements of a batch. Beam makes smaller ones where a
        bundle ends.
      max_batch_size: the maximum number of elements of a batch.
    """

    def __init__(
        self,
        make: Callable[[], BatchDecoder],
        *,
        min_batch_size: int = 128,
        max_batch_size: int = 1024,
    ):
        super().__init__(min_batch_size=min_batch_size, max_batch_size=max_batch_size)
        self._make = make

    def load_model(self) -> BatchDecoder:
        return self._make()

    def run_inference(
        self,
        batch: Sequence[Element],
        model: BatchDecoder,
        inference_args: Mapping[str, Any] | None = None,
    ) -> Iterable[Element]:
        """Decodes elements, all of which have the same columns."""
        columns = {name: [element[name] for element in batch] for name in batch[0]}
        decoded = model(columns)
        for row in zip(*decoded.values(), strict=True):
            yield dict(zip(decoded, row, strict=True))
