"""Decodes items: encodes them, decodes those of a width together, and makes a record of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from decoding_jax.infer import buckets, records
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.input_encoder import InputEncoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item


class _Input(NamedTuple):
    """An item that is decoded.

    Attributes:
      place: its place among the items.
      number: its number in the job.
      tokens: its tokens.
      num_cut: the number of tokens that were cut off.
    """

    place: int
    number: int
    tokens: list[int]
    num_cut: int


class ItemDecoder:
    """Turns items into records; a faulty item also gets a record.

    Args:
      decoder: decodes batches.
      encode: encodes inputs. Those that it refuses are faults.
      widths: the widths of the buckets, in ascending order.
      seed: the seed of the job, which records contain.
      with_tokens: whether records contain token ids.
      with_num_tokens: whether they contain the number of tokens of each output.
    """

    def __init__(
        self,
        decoder: Decoder,
        encode: InputEncoder,
        widths: Sequence[int],
        *,
        seed: int,
        with_tokens: bool,
        with_num_tokens: bool,
    ):
        self._decoder = decoder
        self._encode_text = encode
        self._widths = widths
        self._seed = seed
        self._with_tokens = with_tokens
        self._with_num_tokens = with_num_tokens

    def decode(self, items: Sequence[Item], numbers: Sequence[int]) -> Iterator[tuple[int, Record]]:
        """Decodes items together, and yields records as they are made.

        Args:
          items: the items.
          numbers: the number of each item in the job, which its key and its record depend on.

        Yields:
          The place of an item among ``items``, and its record. Every item comes once, faulty ones
          first.
        """
        inputs: list[_Input] = []
        for place, (number, item) in enumerate(zip(numbers, items, strict=True)):
            try:
                inputs.append(_Input(place, number, *self._encode(item)))
            except ValueError as error:
                record = records.fault(number, item.inputs, str(error), seed=self._seed)
                yield place, records.with_origin(record, item)
        ids, index = [x.tokens for x in inputs], [x.number for x in inputs]
        by_width = buckets.by_width([len(x) for x in ids], self._widths)
        for members, completions in self._decoder.decode(ids, index, by_width):
            for m, of_input in zip(members, completions, strict=True):
                place, number, _, num_cut = inputs[m]
                item = items[place]
                record = records.decoded(
                    number,
                    item.inputs,
                    of_input,
                    seed=self._seed,
                    with_tokens=self._with_tokens,
                    with_num_tokens=self._with_num_tokens,
                    num_cut=num_cut,
                )
                yield place, records.with_origin(record, item)

    def _encode(self, item: Item) -> tuple[list[int], int]:
        """The tokens of an item, and the number of tokens that were cut off.

        Raises:
          ValueError: if the item is faulty.
        """
        if item.error is not None:
            raise ValueError(item.error)
        return self._encode_text(item.inputs)
