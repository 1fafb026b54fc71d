"""Decodes the tokens of inputs with a strategy, in batches of a fixed number of rows."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from decoding_jax.base import DecodeOutput
from decoding_jax.batches import widths
from decoding_jax.batches.call import Call
from decoding_jax.batches.compilations import Compilations
from decoding_jax.batches.refilled import RefilledBatch, RowSteps, row_counts
from decoding_jax.batches.row_inputs import MakeRows, RowInputMaker, RowInputs
from decoding_jax.loop.forms import name_of
from decoding_jax.loop.inputs import checked
from decoding_jax.loop.refill import obstacle, widens
from decoding_jax.loop.strategy import Strategy
from decoding_jax.models.encoder_decoder import BoundEncoderDecoder, EncoderDecoder
from decoding_jax.ops.jit import jit
from decoding_jax.sharding.meshes import in_mesh, to_host

# The number of inputs to decode in one call, for each row of a batch that is refilled: where
# inputs of all widths share the batch, and where each width has a batch, whose last rows are idle.
_TOGETHER = 32
_TOGETHER_BY_WIDTH = 128
# Where widths share a batch, a width between two buckets is worth this many inputs for each row.
_FINER = 2

_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class RowDecoder:
    """Decodes inputs in batches of a fixed number of rows.

    A batch is refilled where the strategy and the model allow it: an input that has ended makes
    room for another one (see ``refilled``). Otherwise, a batch lasts as long as its longest row.

    The key of a row depends on the index of its input alone, so the random numbers of a row depend
    neither on the other rows of its batch nor on its position among them. The rows are spread over
    the local devices, and each device holds a copy of the model; or, if the model is on a mesh,
    over the axis ``data`` of that mesh. If the mesh spans several processes, all of them decode the
    same inputs in the same order.

    Args:
      call: what is decoded, and how.
      batch_size: the number of rows of a batch. It is rounded up to a multiple of the number of
        devices that rows are spread over.
      devices: the devices to use for a model that is not on a mesh. The default is the local
        devices.
      refill: whether batches are refilled where that is possible.
      independent: whether each result is the same, to the last bit in float32, whichever inputs are
        decoded together. Each width then has a refilled batch of its own, which keeps its rows to
        the end.
      few_programs: whether fewer programs are compiled, for inputs that are soon decoded: no widths
        are added, and a batch keeps its rows to the end.

    Attributes:
      inputs: makes the arguments of rows. Its ``expect`` says how many inputs there are, and which
        settings are theirs.
      batch_size: the number of rows of a batch, after rounding.
      group_size: the number of inputs that a refilled batch begins together. ``prepare`` sets it;
        it is None where batches are not refilled.
      together: the number of inputs to pass to each call of ``decode``, since the last bits of a
        result may depend on all of them. ``prepare`` sets it; it is None where a result depends on
        no other input.
      compilations: what has been compiled, and how long it took.

    """

    def __init__(
        self,
        call: Call,
        *,
        batch_size: int,
        devices: Sequence[jax.Device] | None = None,
        refill: bool = True,
        independent: bool = False,
        few_programs: bool = False,
    ):
        devices = jax.local_devices() if devices is None else devices
        self.inputs = RowInputMaker(call, devices)
        self.batch_size = self._rounded(batch_size)
        self.group_size: int | None = None
        self.together: int | None = None
        self.compilations = Compilations()
        self._model = call.model
        self._refill = refill
        self._independent = independent
        self._few_programs = few_programs
        self._shares_widths = False
        self._name = name_of(call.strategy)
        self._batches: SeparateBatches | RefilledBatch = SeparateBatches(
            self.batch_size, self.compilations, self._name
        )

    @property
    def batches(self) -> int:
        """The number of batches so far, or of the groups begun in refilled ones."""
        return self._batches.batches

    @property
    def row_steps(self) -> RowSteps:
        """The steps so far; none where batches are not refilled."""
        return self._batches.row_steps

    def readers(self) -> dict[str, Any]:
        """The models that read the inputs, by name: the target, and a drafter that is a model."""
        rows = self._rows(1, 1)
        drafter = getattr(rows.strategy, "drafter", None)
        drafter = getattr(drafter, "model", drafter)
        # A language model beside an encoder-decoder reads what is decoded, and not the inputs.
        reads = isinstance(drafter, BoundEncoderDecoder)
        reads = reads or not isinstance(self._model, EncoderDecoder)
        return {"model": rows.model, **({"drafter": drafter} if reads else {})}

    def info_names(self, width: int) -> list[str]:
        """The names of the values of the strategy's ``info`` that have an axis of rows.

        The strategy is traced for batches of ``width`` tokens, without being compiled.

        Raises:
          ValueError: if the model and the settings do not fit each other.
        """
        rows = self._rows(width, self.batch_size)
        info = in_mesh(_separate(self._name).eval_shape, rows).info
        values = info._asdict() if hasattr(info, "_asdict") else {}
        return [name for name, value in values.items() if getattr(value, "ndim", 0) > 0]

    def prepare(self, width: int) -> None:
        """Decides whether batches are refilled, by their shapes at a width.

        Raises:
          ValueError: if the model and the settings do not fit each other.
        """
        if not self._refill:
            return
        reason: str | None = "the strategy is a function of your own"
        few, more = self._rows(width, 1).call, self._rows(width, 2).call
        if isinstance(few.strategy, Strategy):
            checked(*few)
            reason = obstacle(few, more)
        if reason is not None:
            self.compilations.note = f"batches are not refilled: {reason}"
            return
        self.group_size = self._rounded(max(self.batch_size // 8, min(16, self.batch_size // 2), 1))
        fewer = not (self._independent or self._few_programs)
        self._batches = RefilledBatch(
            self.inputs.split,
            self.compilations,
            row_counts(self.batch_size, self.inputs.spread, fewer=fewer),
            self.group_size,
            max(self.batch_size // 16, min(4, self.batch_size // 8), 1),
            self._name,
        )
        if not self._independent:
            self._shares_widths = widens(few)
            per_row = _TOGETHER if self._shares_widths else _TOGETHER_BY_WIDTH
            self.together = per_row * self.batch_size

    def _rows(self, width: int, count: int) -> RowInputs:
        """The arguments of rows without a meaning."""
        index = [0]
        return self.inputs.make([[0]], index, self.inputs.key_words(index), width, count)

    def decode(
        self,
        ids: Sequence[list[int]],
        index: Sequence[int],
        by_width: Mapping[int, Sequence[int]],
        places: Sequence[int] | None = None,
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs, and yields sequences as they are made.

        Args:
          ids: the tokens of the inputs.
          index: the index of each input, which its key and its settings depend on.
          by_width: the inputs that are padded to each width, by number, counted in the order of
            ``ids``; the widest first. Each width is compiled once. Where widths share a batch, and
            many inputs fit into half or three quarters of one, these are padded to that.
          places: the place of each input among the settings with a value for each, if that is not
            its index.

        Yields:
          The numbers of some inputs, and their output on the host, whose first rows are theirs.
          Every input comes once.

        Raises:
          ValueError: if the batch does not fit into the memory of a device.
        """

        words = self.inputs.key_words(index)

        def make(members: Sequence[int], width: int, count: int) -> RowInputs:
            of_members = [(index if places is None else places)[m] for m in members]
            keys = None if words is None else words[list(members)]
            return self.inputs.make([ids[m] for m in members], of_members, keys, width, count)

        parts: list[Mapping[int, Sequence[int]]] = [{w: by_width[w]} for w in by_width]
        if self._shares_widths and by_width:
            least = len(ids) + 1 if self._few_programs else _FINER * self.batch_size
            parts = [widths.finer(by_width, [len(x) for x in ids], least)]
        for part in parts:
            decoded = self._batches.decode(part, make)
            while True:
                with memory_checked(self._model, self.batch_size, max(part), self.inputs.spread):
                    found = next(decoded, None)
                    if found is None:
                        break
                    members, output = found[0], to_host(found[1])
                yield members, output

    def _rounded(self, count: int) -> int:
        """The number rounded up to a multiple of the devices that rows are spread over."""
        spread = self.inputs.spread
        return -(-count // spread) * spread


class SeparateBatches:
    """Batches of ``size`` rows, one after another, each of which lasts as long as its longest row.

    Their steps are not counted.
    """

    def __init__(self, size: int, compilations: Compilations, name: str):
        self._decode = _separate(name)
        self._size = size
        self._compilations = compilations
        self.batches = 0
        self.row_steps = RowSteps()

    def decode(
        self, by_width: Mapping[int, Sequence[int]], make: MakeRows
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs as ``RefilledBatch`` does, in batches of one width.

        A batch is yielded after the next one has been started.
        """
        started = None
        for width, of_width in by_width.items():
            for first in range(0, len(of_width), self._size):
                members = of_width[first : first + self._size]
                inputs = make(members, width, self._size)
                self._compilations.announce(self._size, width)
                with self._compilations.first("decode", width):
                    output = self._decode(inputs)
                self.batches += 1
                if started is not None:
                    yield started
                started = members, output
        if started is not None:
            yield started


@functools.cache
def _separate(name: str) -> Any:
    """The program of a batch that lasts as long as its longest row."""
    return jit(lambda rows: rows.call.run(), (), name=name)


@contextlib.contextmanager
def memory_checked(model: Any, batch_size: int, width: int, spread: int) -> Iterator[None]:
    """Turns the error of a device without enough memory into one line that says what may fit.

    A TPU's compiler says how much a program needs. The model's part of it is fixed, and the rest
    grows with the batch. Elsewhere half of the batch is suggested.

    Raises:
      ValueError: in place of XLA's RESOURCE_EXHAUSTED.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as e:
        reason = str(e).partition("\n")[0]
        if "RESOURCE_EXHAUSTED" not in reason:
            raise
        fits = smaller_batch(reason, _bytes_on_a_device(model), batch_size, spread)
        expected = "a MESH that spreads the model over more devices"
        if fits is not None:
            expected = f"a smaller one, such as {fits}, or {expected}"
        raise ValueError(
            f"batch_size: expected {expected}, got {batch_size} inputs of up to {width} tokens, "
            f"which do not fit into the memory of a device ({reason})"
        ) from e


def smaller_batch(reason: str, model_bytes: int, batch_size: int, spread: int) -> int | None:
    """A batch size that may fit, a multiple of ``spread``; None if no smaller one does.

    Example:
      >>> used = "RESOURCE_EXHAUSTED: XLA:TPU: Used 22.00G of 16.00G hbm."
      >>> smaller_batch(used, 10 * 2**30, 64, 8), smaller_batch(used, 16 * 2**30, 64, 8)
      (32, None)
      >>> smaller_batch("RESOURCE_EXHAUSTED: Out of memory", 0, 64, 8)
      32
    """
    part = 0.5
    if found := _USED.search(reason):
        used, limit = (float(found[i]) * _UNITS[found[i + 1]] for i in (1, 3))
        part = (limit - model_bytes) / max(used - model_bytes, 1)
    fits = int(batch_size * part) // spread * spread
    return fits if 0 < fits < batch_size else None


def _bytes_on_a_device(model: Any) -> int:
    """The size of the largest part of a model that one device holds."""
    total: dict[jax.Device, int] = {}
    for leaf in jax.tree.leaves(model):
        for shard in leaf.addressable_shards if isinstance(leaf, jax.Array) else ():
            total[shard.device] = total.get(shard.device, 0) + shard.data.nbytes
    return max(total.values(), default=0)
