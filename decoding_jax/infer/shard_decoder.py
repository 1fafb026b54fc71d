"""From the items of a shard to its records: encode, bucket, decode, put back in order."""

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
    """Turns the items of a shard into its records, faulty ones included.

    Args:
      decoder: of batches.
      tokenizer: the model's.
      widths: of the buckets, ascending; a longer input is a fault.
      seed: of the job, for the records.
      with_tokens: whether records hold token ids.
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
        """The records of a shard, in order.

        Args:
          items: of the shard.
          first: the index of its first item in the job.
          bar: counts the items as they are done.
        """
        made: dict[int, Record] = {}
        index, ids = [], []
        for i, item in enumerate(items, first):
            tokens, error = self._encode(item)
            if error is not None:
                made[i] = records.fault(i, item.inputs, error, seed=self._seed)
                bar.update(1)
            else:
                index.append(i)
                ids.append(tokens)
        batches = buckets.plan([len(x) for x in ids], self._widths, self._decoder.batch_size)
        # While the device is at one batch, the host turns the one before it into text.
        for members, output in _one_ahead(self._start(batches, index, ids)):
            rows = self._decoder.finish(output, [ids[m] for m in members])
            for m, row in zip(members, rows, strict=True):
                i = index[m]
                made[i] = records.decoded(
                    i, items[i - first].inputs, row, seed=self._seed, with_tokens=self._with_tokens
                )
            bar.update(len(members))
        return [made[i] for i in range(first, first + len(items))]

    def _start(
        self, batches: Sequence[buckets.Batch], index: list[int], ids: list[list[int]]
    ) -> Iterator[tuple[tuple[int, ...], DecodeOutput]]:
        for width, members in batches:
            batch = [ids[m] for m in members]
            yield members, self._decoder.start(batch, [index[m] for m in members], width)

    def _encode(self, item: Item) -> tuple[list[int], str | None]:
        if item.error is not None:
            return [], item.error
        try:
            tokens = self._tokenizer.encode(item.inputs)
        except Exception as e:  # the libraries raise what they like, and one input is no reason
            return [], f"cannot be tokenized: {e}"
        if not tokens:
            return [], "empty: no tokens"
        if len(tokens) > self._widths[-1]:
            return [], f"too long: {len(tokens)} tokens, of at most {self._widths[-1]}"
        return tokens, None


def _one_ahead(started: Iterator[Any]) -> Iterator[Any]:
    """Each item once the next one has been started."""
    before = next(started, None)
    while before is not None:
        after = next(started, None)
        yield before
        before = after
