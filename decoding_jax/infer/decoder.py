"""The strategy, compiled for one batch shape after another, its rows spread over the devices."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop
from decoding_jax.infer import gin_names
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.ops.jit import jit
from decoding_jax.rows import row_arguments, take_rows, with_rows
from decoding_jax.text import (
    Completion,
    Tokenizer,
    bind_drafter,
    check_drafter,
    completions,
    context_of,
    encode_batch,
)

_LOGGER = logging.getLogger(__name__)


class Decoder:
    """Decodes batches of a fixed number of rows.

    The key of a row is the job's seed folded with the input's index, so what a row draws depends
    neither on its batch nor on its place in it. Rows are data-parallel over the local devices.

    Args:
      model: a T5, or a language model.
      tokenizer: the model's.
      strategy: a function of ``(model, prompt, *, stop)`` or ``(model, prompt, key, *, stop)``.
      stop: when a text ends.
      seed: of the job.
      batch_size: rows of a batch; rounded up to a multiple of the devices.
      drafter: for a strategy that takes one, as for ``generate``.
      devices: the local devices by default.

    Attributes:
      batch_size: rows of a batch.
      batches: how many batches were decoded.
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
    ):
        devices = jax.local_devices() if devices is None else devices
        self.batch_size = -(-batch_size // len(devices)) * len(devices)
        self.batches = 0
        self.compiling = Stopwatch()
        self._widths: set[int] = set()
        drafter = check_drafter(strategy, drafter)
        self._rows: NamedSharding | None = None
        if len(devices) > 1:
            mesh = Mesh(np.array(devices), ("rows",))
            self._rows = NamedSharding(mesh, PartitionSpec("rows"))
            model, drafter = _put((model, drafter), NamedSharding(mesh, PartitionSpec()))
        self._model = model
        self._drafter = drafter
        self._tokenizer = tokenizer
        self._count: int | None = None
        self._arguments = row_arguments(strategy)
        self._settings = {**gin_names.bound_settings(strategy), "stop": stop}
        self._per_input = with_rows(self._settings, self._arguments)
        draws = "key" in inspect.signature(strategy).parameters

        def decode(
            bound: LanguageModel, prompt: Prompt, index: Array, drafts: Any, own: dict[str, Any]
        ) -> DecodeOutput:
            fold = jax.vmap(jax.random.fold_in, (None, 0))
            # A seed means the same whatever kind of key the process has by default.
            seeded = jax.random.key(seed, impl="threefry2x32")
            key = (fold(seeded, index),) if draws else ()
            models = (bound,) if drafts is None else (bound, drafts)
            return strategy(*models, prompt, *key, **{"stop": stop, **own})._replace(info=None)

        decode.__name__ = getattr(gin_names.innermost(strategy), "__name__", "decode")
        self._traced = decode
        self._decode = jit(decode, ())

    @property
    def compilations(self) -> int:
        """How many shapes were compiled."""
        return self._decode.cache_size()  # type: ignore[attr-defined]

    def expect(self, count: int) -> None:
        """Sets how many inputs the job has.

        Raises:
          ValueError: for settings with a value for each of another number of inputs.
        """
        self._count = count
        take_rows({**self._settings, "drafter": self._drafter}, [0], count, self._arguments)

    def check(self, width: int) -> None:
        """Traces a batch of that width, without compiling it.

        Raises:
          ValueError: for settings that do not fit the model.
        """
        args = self._batch([[0]], [0], width)
        jax.eval_shape(lambda: self._traced(*args))

    def start(self, ids: Sequence[list[int]], index: Sequence[int], width: int) -> DecodeOutput:
        """Decodes a batch; returns while the device is still at work.

        Args:
          ids: the tokens of 1 to ``batch_size`` inputs.
          index: of each input in the job.
          width: what the tokens are padded to.
        """
        new = width not in self._widths
        if new:
            self._widths.add(width)
            rows, number = self.batch_size, len(self._widths)
            _LOGGER.info("compilation %d: %d inputs of up to %d tokens", number, rows, width)
        self.batches += 1
        batch = self._batch(ids, index, width)
        with self.compiling if new else contextlib.nullcontext():
            return self._decode(*batch)

    def finish(self, output: DecodeOutput, ids: Sequence[list[int]]) -> list[list[Completion]]:
        """Waits for a batch; the completions of its real rows."""
        context = context_of(self._model, ids)
        return completions(self._tokenizer, jax.device_get(output), len(ids), context)

    def _batch(
        self, ids: Sequence[list[int]], index: Sequence[int], width: int
    ) -> tuple[LanguageModel, Prompt, Array, Any, dict[str, Any]]:
        # Spare rows are copies of the first: they take no more steps than it does.
        spare = self.batch_size - len(ids)
        rows = np.asarray([*index, *[index[0]] * spare], np.uint32)
        filled = [*ids, *[ids[0]] * spare]
        bound, prompt = encode_batch(self._model, filled, width)
        given = {name: self._settings[name] for name in self._per_input}
        given["drafter"] = self._drafter
        own = take_rows(given, rows, self._count, self._arguments)
        drafts = bind_drafter(own.pop("drafter"), self._model, filled, width)
        if self._rows is None:
            return bound, prompt, jnp.asarray(rows), drafts, own
        # Whatever the binding added to the model's own leaves belongs to the batch's rows, and so
        # does what was taken from settings by rows.
        shared = {id(leaf) for leaf in jax.tree.leaves((self._model, self._drafter, given))}
        return _put((bound, prompt, rows, drafts, own), self._rows, shared)


def _put(tree: Any, sharding: NamedSharding, leave: set[int] | frozenset[int] = frozenset()) -> Any:
    """Moves a tree's arrays to devices, but for the leaves of these identities."""

    def move(leaf: Any) -> Any:
        fixed = id(leaf) in leave or not isinstance(leaf, (jax.Array, np.ndarray))
        return leaf if fixed else jax.device_put(leaf, sharding)

    return jax.tree.map(move, tree)
