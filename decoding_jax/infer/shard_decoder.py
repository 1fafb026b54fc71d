"""Decodes several shards together, and returns the records of each in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tqdm import tqdm

from decoding_jax.infer.item_decoder import ItemDecoder
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item


class Shard(NamedTuple):
    """The items of a shard.

    Attributes:
      number: the number of the shard in the job.
      first: the index of its first item in the job.
      items: its items.
      is_finished: whether its records have been written before.
    """

    number: int
    first: int
    items: Sequence[Item]
    is_finished: bool = False


def decode_shards(
    decoder: ItemDecoder, shards: Sequence[Shard], bar: tqdm
) -> Iterator[tuple[Shard, list[Record]]]:
    """Decodes the items of several shards together, and yields each shard once it is whole.

    Shards that are finished are decoded too where they are given, because the last bits of the
    others' results may depend on them, and are not yielded.

    Args:
      decoder: decodes items.
      shards: the shards, none of which is empty.
      bar: a progress bar, which is advanced when items are finished.

    Yields:
      A shard, and its records in the order of its items.
    """
    places = [(s, i) for s, shard in enumerate(shards) for i in range(len(shard.items))]
    items = [shards[s].items[i] for s, i in places]
    numbers = [shards[s].first + i for s, i in places]
    made: list[dict[int, Record]] = [{} for _ in shards]
    for place, record in decoder.decode(items, numbers):
        s, i = places[place]
        if shards[s].is_finished:
            continue
        made[s][i] = record
        bar.update(1)
        if len(made[s]) == len(shards[s].items):
            yield shards[s], [made[s][i] for i in range(len(made[s]))]
            made[s] = {}
