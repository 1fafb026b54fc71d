"""Decodes the inputs of a job with a compiled strategy, in batches that are refilled."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from decoding_jax.base import Array, DecodeOutput, Stop
from decoding_jax.infer import buckets, gin_names, memory
from decoding_jax.infer.arguments import check_positions
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.refilled import RefilledBatch, row_counts
from decoding_jax.infer.row_inputs import (
    RowInputMaker,
    RowInputs,
    RowSteps,
    info_of_rows,
    keep_info,
)
from decoding_jax.infer.separate import SeparateBatches
from decoding_jax.loop.inputs import check_token_ids
from decoding_jax.loop.refill import Call, obstacle, widens
from decoding_jax.models.encoder_decoder import BoundEncoderDecoder, EncoderDecoder
from decoding_jax.ops.mesh import in_mesh, to_host
from decoding_jax.text import Completion, Tokenizer, completions, context_of
from decoding_jax.text.call import idle_transform
from decoding_jax.text.inputs import vocabulary_size
from decoding_jax.text.sizes import shared_size

_LOGGER = logging.getLogger(__name__)

# Inputs for each row of a batch that is refilled: where inputs of all widths share the batch, and
# where each width has a batch, and a last input, of its own.
_TOGETHER = 32
_TOGETHER_BY_WIDTH = 128
# Where widths share a batch, a width between two buckets is worth this many inputs for each row.
_FINER = 2


class Decoder:
    """Decodes inputs in batches of a fixed number of rows.

    A batch is refilled where the strategy and the model allow it: an input that has ended makes
    room for another one (see ``refilled``). Otherwise, a batch lasts as long as its longest row.

    The key of a row is the job's seed folded with the index of its input, so the random numbers of
    a row depend neither on the other rows of its batch nor on its position among them. The rows
    are spread over the local devices, and each device holds a copy of the model; or, if the model
    is on a mesh, over the axis ``data`` of that mesh. If the mesh spans several processes, all of
    them decode the same inputs in the same order.

    Args:
      model: an encoder-decoder, or a language model.
      tokenizer: the tokenizer of the model.
      strategy: a function of ``(model, prompt, *, stop)`` or ``(model, prompt, key, *, stop)``.
      stop: the stop conditions.
      seed: the seed of the job.
      batch_size: the number of rows of a batch. It is rounded up to a multiple of the number of
        devices that rows are spread over.
      drafter: the drafter, for a strategy that takes one, as for ``decoding_jax.generate``.
      devices: the devices to use for a model that is not on a mesh. The default is the local
        devices.
      refill: whether batches are refilled where that is possible.
      independent: whether the result of an input may not depend, even in its last bits in float32,
        on the inputs that are decoded together. Each width then has a refilled batch of its own,
        which keeps its rows to the end.
      with_info: whether completions have the ``info`` of the strategy, as a dictionary of those
        values that have an axis of rows.

    Attributes:
      batch_size: the number of rows of a batch, after rounding.
      group_size: the number of inputs that are begun together in a batch that is refilled, or None
        where batches are not refilled; ``check`` sets it.
      together: the number of inputs of each call of ``decode``, on all of which the last bits of
        each result may depend, or None where a result depends on no other input; ``check`` sets it.
      tokens: the number of tokens of the completions so far.
      compiling: measures the time that compilation takes.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        strategy: Callable[..., DecodeOutput],
        *,
        stop: Stop,
        seed: int,
        batch_size: int,
        drafter: Any = None,
        devices: Sequence[jax.Device] | None = None,
        refill: bool = False,
        independent: bool = False,
        with_info: bool = False,
    ):
        devices = jax.local_devices() if devices is None else devices
        settings = gin_names.bound_settings(strategy)
        if settings.get("stop") is not None:
            raise ValueError(
                "strategy: got one with a stop of its own; takes one without, and stop as an "
                "argument beside it"
            )
        check_token_ids(settings.get("transform"), vocabulary_size(model))
        settings["stop"] = stop
        self._inputs = RowInputMaker(model, strategy, settings, drafter, devices)
        self.batch_size = self._rounded(batch_size)
        self.group_size: int | None = None
        self.tokens = 0
        self.compiling = Stopwatch()
        self._model = model
        self._tokenizer = tokenizer
        self._shapes: set[tuple[int, int]] = set()
        self.together: int | None = None
        takes_key = "key" in inspect.signature(strategy).parameters
        innermost = gin_names.innermost(strategy)
        name = getattr(innermost, "__name__", "decode")
        if (message := idle_transform(name, settings.get("transform"))) is not None:
            _LOGGER.warning(message)
        build_steps: Any = getattr(innermost, "strategy", None)

        def keys_of(index: Array) -> Array:
            # The kind of key is fixed, so that a seed does not depend on the process's default.
            seed_key = jax.random.key(seed, impl="threefry2x32")
            return jax.vmap(jax.random.fold_in, (None, 0))(seed_key, index)

        def decode(rows: RowInputs) -> DecodeOutput:
            keys = (keys_of(rows.indices),) if takes_key else ()
            models = (rows.model,) if rows.drafter is None else (rows.model, rows.drafter)
            given = {"stop": stop, **rows.settings}
            output = strategy(*models, rows.prompt, *keys, **given)
            return keep_info(output, info_of_rows(output) if with_info else ())

        def call(rows: RowInputs) -> Call:
            drafter = {} if rows.drafter is None else {"drafter": rows.drafter}
            steps = build_steps(**{**settings, **rows.settings, **drafter})
            return Call(
                steps, rows.model, rows.prompt, keys_of(rows.indices) if takes_key else None
            )

        decode.__name__ = name
        self._strategy = decode
        self._call = None if build_steps is None else call
        self._refill = refill
        self._independent = independent
        self._shares_widths = False
        self._with_info = with_info
        self._not_refilled: str | None = None
        self._batches: SeparateBatches | RefilledBatch = SeparateBatches(
            decode, self.batch_size, self._announce
        )

    @property
    def batches(self) -> int:
        """The number of batches so far, or of the groups begun in refilled ones."""
        return self._batches.batches

    @property
    def compilations(self) -> int:
        """The number of shapes, rows times width, that were compiled."""
        return len(self._shapes)

    @property
    def row_steps(self) -> RowSteps:
        """The steps so far; none where batches are not refilled."""
        return self._batches.row_steps

    def expect(self, count: int, stop: Stop | None = None) -> None:
        """Sets the number of inputs of the job.

        Args:
          count: the number of inputs.
          stop: stop conditions with a value for each input, in place of those so far; or None.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs.
        """
        self._inputs.expect(count, **({} if stop is None else {"stop": stop}))

    def check(self, width: int) -> None:
        """Traces the strategy for batches of ``width`` tokens, without compiling it.

        Decides, too, whether batches are refilled.

        Raises:
          ValueError: if the model and the settings do not fit each other.
        """

        def rows(count: int) -> RowInputs:
            return self._inputs.make([[0]], [0], width, count)

        check_positions(width, shared_size(self._model), _readers(self._model, rows(1)))
        output = in_mesh(
            lambda batch: jax.eval_shape(lambda: self._strategy(batch)), rows(self.batch_size)
        )
        if self._with_info and not output.info:
            _LOGGER.info("with_info: the strategy has no info about single rows")
        if not self._refill:
            return
        self._not_refilled = "the strategy is a function of your own"
        if self._call is not None:
            self._not_refilled = obstacle(self._call, rows(1), rows(2))
        if self._call is None or self._not_refilled is not None:
            return
        size = self._rounded(max(self.batch_size // 8, min(16, self.batch_size // 2), 1))
        least = max(self.batch_size // 16, min(4, self.batch_size // 8), 1)
        self._batches = RefilledBatch(
            self._call,
            self._inputs.split,
            self._announce,
            row_counts(self.batch_size, self._inputs.spread, fewer=not self._independent),
            size,
            least,
            tuple(output.info or ()),
            self._strategy.__name__,
        )
        self.group_size = size
        if not self._independent:
            self._shares_widths = widens(self._call, rows(1))
            per_row = _TOGETHER if self._shares_widths else _TOGETHER_BY_WIDTH
            self.together = per_row * self.batch_size

    def decode(
        self,
        ids: Sequence[list[int]],
        index: Sequence[int],
        by_width: Mapping[int, Sequence[int]],
    ) -> Iterator[tuple[Sequence[int], list[list[Completion]]]]:
        """Decodes inputs, and yields completions as they are made.

        Args:
          ids: the tokens of the inputs.
          index: the index of each input in the job.
          by_width: the inputs that are padded to each width, by number, counted in the order of
            ``ids``; the widest first. Each width is compiled once. Where widths share a batch, and
            many inputs fit into half or three quarters of one, these are padded to that.

        Yields:
          The numbers of some inputs, and their completions. Every input comes once.

        Raises:
          ValueError: if the batch does not fit into the memory of a device.
        """
        parts: list[Mapping[int, Sequence[int]]] = [{w: by_width[w]} for w in by_width]
        if self._shares_widths:
            parts = [buckets.finer(by_width, [len(x) for x in ids], _FINER * self.batch_size)]
        for part in parts:
            if part:
                yield from self._decode(ids, index, part)

    def _decode(
        self,
        ids: Sequence[list[int]],
        index: Sequence[int],
        by_width: Mapping[int, Sequence[int]],
    ) -> Iterator[tuple[Sequence[int], list[list[Completion]]]]:
        """As ``decode``, of widths that share a batch."""

        def make(members: Sequence[int], width: int, count: int) -> RowInputs:
            tokens = [ids[m] for m in members]
            return self._inputs.make(tokens, [index[m] for m in members], width, count)

        widest = max(by_width)
        batches = self._batches.decode(by_width, make, self.compiling)
        while True:
            with memory.checked(self._model, self.batch_size, widest, self._inputs.spread):
                decoded = next(batches, None)
                if decoded is None:
                    return
                members, output = decoded[0], to_host(decoded[1])
            context = context_of(self._model, [ids[m] for m in members])
            made = completions(self._tokenizer, output, len(members), context)
            self.tokens += sum(len(c.tokens) for of_input in made for c in of_input)
            yield members, made

    def _announce(self, rows: int, width: int) -> None:
        """Logs that batches of a shape are compiled, before the first of them."""
        if (rows, width) in self._shapes:
            return
        if not self._shapes and self._not_refilled is not None:
            _LOGGER.info("batches are not refilled: %s", self._not_refilled)
        self._shapes.add((rows, width))
        number = len(self._shapes)
        _LOGGER.info("compilation %d: %d inputs of up to %d tokens", number, rows, width)

    def _rounded(self, count: int) -> int:
        """The number rounded up to a multiple of the devices that rows are spread over."""
        spread = self._inputs.spread
        return -(-count // spread) * spread


def _readers(model: Any, rows: RowInputs) -> dict[str, Any]:
    """The models that read the inputs, by name: the target, and a drafter that is a model."""
    drafter = getattr(rows.drafter, "model", rows.drafter)
    # A language model beside an encoder-decoder reads what is decoded, and not the inputs.
    reads = isinstance(drafter, BoundEncoderDecoder) or not isinstance(model, EncoderDecoder)
    return {"model": rows.model, **({"drafter": drafter} if reads else {})}
