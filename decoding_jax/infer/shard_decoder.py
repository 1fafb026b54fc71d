"""Decodes shards: encodes their items, decodes them together, and returns records in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tqdm import tqdm

from decoding_jax.infer import buckets, records
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item
from decoding_jax.text import Tokenizer


class Shard(NamedTuple):
    """The items of a shard.

    Attributes:
      number: the number of the shard in the job.
      first: the index of its first item in the job.
      items: its items.
    """

    number: int
    first: int
    items: Sequence[Item]


class _Input(NamedTuple):
    """An item that is decoded: its number in the job, its text, and the records of its shard."""

    number: int
    text: str
    tokens: list[int]
    records: dict[int, Record]


class ShardDecoder:
    """Turns the items of shards into records; a faulty item also gets a record.

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

    def decode(self, shards: Sequence[Shard], bar: tqdm) -> Iterator[tuple[Shard, list[Record]]]:
        """Decodes the items of several shards together, and yields each shard once it is whole.

        Args:
          shards: the shards.
          bar: a progress bar, which is advanced when items are finished.

        Yields:
          A shard, and its records in the order of its items.
        """
        made: list[dict[int, Record]] = [{} for _ in shards]
        inputs: list[_Input] = []
        for of_shard, shard in zip(made, shards, strict=True):
            for i, item in enumerate(shard.items, shard.first):
                tokens, error = self._encode(item)
                if error is None:
                    inputs.append(_Input(i, item.inputs, tokens, of_shard))
                else:
                    of_shard[i] = records.fault(i, item.inputs, error, seed=self._seed)
                    bar.update(1)
        waiting = dict(enumerate(shards))
        yield from self._whole(waiting, made)
        buckets_of_inputs = buckets.by_width([len(x.tokens) for x in inputs], self._widths)
        for width, numbers in buckets_of_inputs.items():
            of_width = [inputs[n] for n in numbers]
            ids, index = [x.tokens for x in of_width], [x.number for x in of_width]
            for members, completions in self._decoder.decode(ids, index, width):
                for m, of_input in zip(members, completions, strict=True):
                    i, text, _, of_shard = of_width[m]
                    of_shard[i] = records.decoded(
                        i, text, of_input, seed=self._seed, with_tokens=self._with_tokens
                    )
                bar.update(len(members))
                yield from self._whole(waiting, made)

    def _whole(
        self, waiting: dict[int, Shard], made: Sequence[dict[int, Record]]
    ) -> Iterator[tuple[Shard, list[Record]]]:
        """Takes the shards that are whole from those that are waiting."""
        for number, shard in list(waiting.items()):
            if len(made[number]) == len(shard.items):
                del waiting[number]
                yield (
                    shard,
                    [
                        records.with_id(made[number][i], item.id)
                        for i, item in enumerate(shard.items, shard.first)
                    ],
                )

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
