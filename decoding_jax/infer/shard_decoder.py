"""Decodes a shard: encodes its items, decodes them in batches, and returns records in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from decoding_jax.base import DecodeOutput
from decoding_jax.infer import buckets, records
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item
from decoding_jax.text import Tokenizer


class ShardDecoder:
    """Turns the items of a shard into records; a faulty item also gets a record.

    Args:
      decoder: decodes batches.
      tokenizer: the tokenizer of the model.
      widths: the widths of the buckets, in ascending order. An input that is longer than the last
        width is a fault.
      seed: the seed of the job, which records contain.
      with_tokens: whether records contain token ids.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        widths: Sequence[int],
        *,
        seed: int,
        with_tokens: bool,
    ):
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._widths = widths
        self._seed = seed
        self._with_tokens = with_tokens

    def decode(self, items: Sequence[Item], first: int, bar: tqdm) -> list[Record]:
        """Returns the records of a shard, in the order of its items.

        Args:
          items: the items of the shard.
          first: the index of the first item in the job.
          bar: a progress bar, which is advanced when items are finished.
        """
        record_of: dict[int, Record] = {}
        index, ids = [], []
        for i, item in enumerate(items, first):
            tokens, error = self._encode(item)
            if error is not None:
                record_of[i] = records.fault(i, item.inputs, error, seed=self._seed)
                bar.update(1)
            else:
                index.append(i)
                ids.append(tokens)
        batches = buckets.plan([len(x) for x in ids], self._widths, self._decoder.batch_size)
        # While the device decodes a batch, the host converts the previous one to text.
        for members, output in _prefetch(self._start(batches, index, ids)):
            completions = self._decoder.finish(output, [ids[m] for m in members])
            for m, of_input in zip(members, completions, strict=True):
                i = index[m]
                record_of[i] = records.decoded(
                    i,
                    items[i - first].inputs,
                    of_input,
                    seed=self._seed,
                    with_tokens=self._with_tokens,
                )
            bar.update(len(members))
        return [record_of[i] for i in range(first, first + len(items))]

    def _start(
        self, batches: Sequence[buckets.Batch], index: list[int], ids: list[list[int]]
    ) -> Iterator[tuple[tuple[int, ...], DecodeOutput]]:
        """Starts each batch, and yields its members and its output."""
        for width, members in batches:
            batch = [ids[m] for m in members]
            yield members, self._decoder.start(batch, [index[m] for m in members], width)

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


def _prefetch(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields each element of an iterator after the next one has been computed."""
    current = next(batches, None)
    while current is not None:
        following = next(batches, None)
        yield current
        current = following
