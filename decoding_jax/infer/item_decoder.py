"""Decodes items: encodes them, decodes those of a width together, and makes a record of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from decoding_jax.infer import buckets, records
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item
from decoding_jax.text import Tokenizer


class _Input(NamedTuple):
    """An item that is decoded: its place among the items, its number in the job, and its tokens."""

    place: int
    number: int
    tokens: list[int]


class ItemDecoder:
    """Turns items into records; a faulty item also gets a record.

    Args:
      decoder: decodes batches.
      tokenizer: the tokenizer of the model.
      widths: the widths of the buckets, in ascending order. An input that is longer than the last
        width is a fault.
      seed: the seed of the job, which records contain.
      with_tokens: whether records contain token ids.
      with_num_tokens: whether they contain the number of tokens of each output.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        widths: Sequence[int],
        *,
        seed: int,
        with_tokens: bool,
        with_num_tokens: bool,
    ):
        self._decoder = decoder
        self._tokenizer = tokenizer
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
            tokens, error = self._encode(item)
            if error is None:
                inputs.append(_Input(place, number, tokens))
            else:
                record = records.fault(number, item.inputs, error, seed=self._seed)
                yield place, records.with_origin(record, item)
        ids, index = [x.tokens for x in inputs], [x.number for x in inputs]
        by_width = buckets.by_width([len(x) for x in ids], self._widths)
        for members, completions in self._decoder.decode(ids, index, by_width):
            for m, of_input in zip(members, completions, strict=True):
                place, number, _ = inputs[m]
                item = items[place]
                record = records.decoded(
                    number,
                    item.inputs,
                    of_input,
                    seed=self._seed,
                    with_tokens=self._with_tokens,
                    with_num_tokens=self._with_num_tokens,
                )
                yield place, records.with_origin(record, item)

    def _encode(self, item: Item) -> tuple[list[int], str | None]:
        """The tokens of an item and None, or no tokens and the error."""
        if item.error is not None:
            return [], item.error
        try:
            tokens = self._tokenizer.encode(item.inputs)
        except Exception as e:  # Tokenizers raise exceptions of many types; the job goes on.
            return [], f"cannot be tokenized: {e}"
        if not tokens:
            return [], "empty: no tokens"
        if len(tokens) > self._widths[-1]:
            return [], f"too long: {len(tokens)} tokens, of at most {self._widths[-1]}"
        return tokens, None
