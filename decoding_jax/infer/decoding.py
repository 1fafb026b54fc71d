"""Decodes items: encodes them, decodes those of a width together, and makes a record of each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from decoding_jax import batches, fields, text
from decoding_jax.batches import widths
from decoding_jax.constraints import made as constraints
from decoding_jax.infer import progress, records
from decoding_jax.infer.scoring import Scorer
from decoding_jax.infer.settings import Settings
from decoding_jax.infer.sources import Item, schema_text
from decoding_jax.loop import forms
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.text.call import idle_transform
from decoding_jax.text.completions import parse_texts
from decoding_jax.text.inputs import cut, vocabulary_size
from decoding_jax.text.stop_strings import (
    bound_languages,
    shared_strings,
    strings_of_inputs,
    texts_of,
)

_LOGGER = logging.getLogger(__name__)
_KEPT = 256  # compiled schemas, which the next items may have too


class _Input(NamedTuple):
    """An item that is decoded."""

    place: int  # Its place among the items.
    number: int  # Its number in the job.
    tokens: list[int]
    num_cut: int  # The number of tokens that were cut off.


class ItemDecoder:
    """Turns items into records; a faulty item also gets a record.

    Args:
      call: what is decoded, and how, from ``settings.call_of``.
      tokenizer: the tokenizer of the model.
      settings: the settings of the job, whose stop conditions and constraint the call gets.
      independent: as for ``batches.RowDecoder``.
      own_schemas: whether ``decode`` follows the schemas of its items. A job instead sets those of
        all inputs by ``expect``.

    Attributes:
      call: what is decoded, and how.
      rows: decodes the tokens.
      widths: the widths of the buckets, in ascending order.
      scorer: adds figures of single tokens, if any are wanted.
      num_tokens: the number of tokens of the completions so far.

    Raises:
      ValueError: if the model, the strategy and the settings do not fit each other.
    """

    def __init__(
        self,
        call: batches.Call,
        tokenizer: text.Tokenizer,
        settings: Settings,
        *,
        independent: bool = False,
        own_schemas: bool = False,
    ):
        self._model, self._tokenizer, self._settings = call.model, tokenizer, settings
        size = vocabulary_size(self._model)
        self._constraint = constraints.of_settings(vars(settings), self._tokenizer, size)
        self._faulty_schemas: dict[str, str] = {}  # what is wrong with each
        self._own_schemas = own_schemas
        self._compiled = functools.lru_cache(_KEPT if own_schemas else 0)(self._compile)
        self._tables: Any = None  # of the items before, whose sizes are kept
        name = constraints.check_single(vars(settings)) or "json_schemas"
        if own_schemas:
            self._constraint = self._constraint or constraints.free(self._tokenizer, size)
            self._tables = constraints.by_row([self._constraint])
        elif independent:
            self._check_depth(())
        self.stop = text.with_end_tokens(settings.stop, self._tokenizer)
        self._shared = widths.shared_size(self._model)
        self.widths = widths.widths(settings.max_input_length, settings.buckets, self._shared)
        self.num_tokens = 0
        stop = shared_strings(self.stop, self._tokenizer, self._model)
        self._unkept = forms.replaced(call.strategy, stop=stop)
        self.call = dataclasses.replace(call, strategy=self._kept_to(name, self._constraint))
        fields.check_token_ids(forms.value_of(self.call.strategy, "transform"), size)
        if (message := idle_transform(self.call.strategy)) is not None:
            _LOGGER.warning(message)
        self.rows = batches.RowDecoder(
            self.call,
            batch_size=settings.batch_size,
            refill=settings.refill,
            independent=independent,
        )
        _check_positions(self.widths[-1], self._shared, self.rows.readers())
        with _naming_length(settings):
            names = self.rows.info_names(self.widths[-1])
        if settings.with_info and not names:
            _LOGGER.info("with_info: the strategy has no info about single rows")
        self._info = names if settings.with_info else []
        self.rows.prepare(self.widths[-1])
        self.scorer = Scorer.wanted(self._model, settings, self.widths)

    def expect(
        self, strings: Sequence[Sequence[str] | None], json_schemas: Sequence[str | None]
    ) -> None:
        """Sets the stop strings and schemas that single inputs have in place of the job's.

        Args:
          strings: the stop strings of each input.
          json_schemas: the schema of each input, as JSON.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs, for a strategy that takes no transform, and for ``max_depth`` without a schema
            or a grammar.
        """
        self._check_depth(json_schemas)
        stop = strings_of_inputs(self.stop, strings, self._tokenizer, self._model)
        strategy = self._with_schemas(json_schemas)
        self.rows.inputs.expect(
            len(strings), strategy if stop is None else forms.replaced(strategy, stop=stop)
        )

    def _check_depth(self, json_schemas: Sequence[str | None]) -> None:
        depth = self._settings.max_depth
        nested = (self._settings.json_schema, self._settings.grammar, *json_schemas)
        if depth is not None and all(value is None for value in nested):
            raise fields.error("max_depth", "a json_schema or a grammar beside it", depth)

    def _with_schemas(self, json_schemas: Sequence[str | None]) -> Any:
        """The strategy, which keeps each input to its schema.

        Inputs without a schema have that of the job. Those whose schema is not valid are faulty.
        Where no schema is valid, it is that of the job.
        """
        made: dict[str | None, Any] = {}
        size = vocabulary_size(self._model)
        self._faulty_schemas = {}
        different = [schema for schema in dict.fromkeys(json_schemas) if schema is not None]
        if different:
            # What any schema needs is no fault of an input.
            texts_of("json_schema", self._tokenizer, size)
        shown = progress.on_stderr() if different and not self._own_schemas else {"disable": True}
        for schema in tqdm(different, "compiling", unit="schema", **shown):
            try:
                made[schema] = self._compiled(schema)
            except ValueError as error:
                self._faulty_schemas[schema] = str(error)
        if not made and not self._own_schemas:
            return self.call.strategy
        of_job = self._constraint or constraints.free(self._tokenizer, size)
        of_inputs = constraints.by_row(
            [made.get(schema, of_job) for schema in json_schemas], least=self._tables
        )
        if self._own_schemas:
            self._tables = of_inputs
        return self._kept_to("json_schema", of_inputs)

    def _kept_to(self, name: str, constraint: Any) -> Any:
        """The strategy, which keeps all texts to a constraint, or to none."""
        strategy = self._unkept
        if constraint is not None:
            strategy = forms.constrained(strategy, name, constraint)
        continued = not isinstance(self._model, EncoderDecoder)
        size = vocabulary_size(self._model)
        return bound_languages(strategy, self._tokenizer, size, lambda: continued)

    def _compile(self, schema: str) -> Any:
        given = {"json_schema": schema, "max_depth": self._settings.max_depth}
        return constraints.of_settings(given, self._tokenizer, vocabulary_size(self._model))

    def decode(
        self, items: Sequence[Item], numbers: Sequence[int]
    ) -> Iterator[tuple[int, records.Record]]:
        """Decodes items together, and yields records as they are made.

        Args:
          items: the items.
          numbers: the number of each item in the job, which its key and its record depend on.

        Yields:
          The place of an item among ``items``, and its record, which ``scored`` completes. Every
          item comes once, faulty ones first.
        """
        settings = self._settings
        if self._own_schemas and items:
            self.rows.inputs.expect(None, self._with_schemas([schema_text(item) for item in items]))
        inputs: list[_Input] = []
        for place, (number, item) in enumerate(zip(numbers, items, strict=True)):
            try:
                inputs.append(_Input(place, number, *self._encode(item)))
            except ValueError as error:
                record = records.fault(number, item.inputs, str(error), seed=settings.seed)
                yield place, records.with_origin(record, item)
        ids, index = [x.tokens for x in inputs], [x.number for x in inputs]
        by_width = widths.by_width([len(x) for x in ids], self.widths)
        places = [x.place for x in inputs] if self._own_schemas else None
        for members, output in self.rows.decode(ids, index, by_width, places):
            context = text.context_of(self._model, [ids[m] for m in members])
            made = text.completions(
                self._tokenizer, output, len(members), context, info_names=self._info
            )
            self.num_tokens += sum(len(c.tokens) for of_input in made for c in of_input)
            for m, of_input in zip(members, made, strict=True):
                place, number, _, num_cut = inputs[m]
                if settings.json_schema is not None or items[place].json_schema is not None:
                    parse_texts(of_input, self._tokenizer, lambda text, _: json.loads(text))
                record = records.decoded(
                    number,
                    items[place].inputs,
                    of_input,
                    seed=settings.seed,
                    with_tokens=settings.with_tokens or self.scorer is not None,
                    with_num_tokens=settings.with_num_tokens,
                    num_cut=num_cut,
                )
                yield place, records.with_origin(record, items[place])

    def scored(self, of_items: Sequence[records.Record]) -> list[records.Record]:
        """The records with all that is wanted of single tokens."""
        if self.scorer is None:
            return list(of_items)
        ids = {
            i: self._encode(Item(record["inputs"]))[0]
            for i, record in enumerate(of_items)
            if record["outputs"]
        }
        return self.scorer.add(of_items, ids, with_tokens=self._settings.with_tokens)

    def _encode(self, item: Item) -> tuple[list[int], int]:
        """The tokens of an item, and the number of tokens that were cut off.

        Raises:
          ValueError: if the item is faulty, cannot be tokenized, has no tokens, or is too long and
            not cut.
        """
        if item.error is not None:
            raise ValueError(item.error)
        if (schema := schema_text(item)) in self._faulty_schemas:
            raise ValueError(self._faulty_schemas[schema])
        try:
            tokens = self._tokenizer.encode(item.inputs)
        except Exception as e:  # Tokenizers raise exceptions of many types; the job goes on.
            raise ValueError(f"cannot be tokenized: {e}") from e
        continues = not isinstance(self._model, EncoderDecoder)
        if not tokens or not (continues or item.inputs.strip()):
            raise ValueError("empty: no tokens")
        size = self.widths[-1]
        if len(tokens) <= size:
            return tokens, 0
        if not self._settings.truncate:
            raise ValueError(f"too long: {len(tokens)} tokens, of at most {size}")
        kept = cut(self._tokenizer, tokens, size, self._shared, keep_last=continues)
        return kept, len(tokens) - len(kept)


class Shard(NamedTuple):
    """The items of a shard."""

    number: int  # The number of the shard in the job.
    first: int  # The index of its first item in the job.
    items: Sequence[Item]
    is_finished: bool = False  # Whether its records have been written before.


def decode_shards(
    decoder: ItemDecoder, shards: Sequence[Shard], bar: tqdm
) -> Iterator[tuple[Shard, list[records.Record]]]:
    """Decodes the items of several shards together, and yields each shard once it is whole.

    Shards that are finished are decoded too where they are given, because the last bits of the
    others' results may depend on them, and are not yielded. No shard is empty.
    """
    places = [(s, i) for s, shard in enumerate(shards) for i in range(len(shard.items))]
    items = [shards[s].items[i] for s, i in places]
    numbers = [shards[s].first + i for s, i in places]
    made: list[dict[int, records.Record]] = [{} for _ in shards]
    for place, record in decoder.decode(items, numbers):
        s, i = places[place]
        if shards[s].is_finished:
            continue
        made[s][i] = record
        bar.update(1)
        if len(made[s]) == len(shards[s].items):
            yield shards[s], decoder.scored([made[s][i] for i in range(len(made[s]))])
            made[s] = {}


@contextlib.contextmanager
def _naming_length(settings: Settings) -> Iterator[None]:
    """Names the setting that pads inputs, where they leave no positions for new tokens."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(("max_new_tokens: expected at most", "prompt: expected at")):
            raise
        raise ValueError(
            f"{error}; max_input_length (in gin MAX_INPUT_LENGTH), which inputs are padded to, is "
            f"{settings.max_input_length}, and a smaller one leaves more positions"
        ) from None


def _check_positions(width: int, shared: int, models: Mapping[str, Any]) -> None:
    """Checks that models have positions for ``width`` tokens, those that inputs share included."""
    for name, model in models.items():
        limit = getattr(model, "max_positions", None)
        if limit is not None and width > limit:
            rest = f", of which the shared prefix takes {shared}" if shared else ""
            raise ValueError(
                f"max_input_length: expected at most {limit - shared}, got {width - shared}: the "
                f"{name} has {limit} positions{rest}"
            )
