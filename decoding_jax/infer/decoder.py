"""Decodes batches with a compiled strategy, with the rows spread over devices."""

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
from decoding_jax.ops.mesh import DATA, mesh_of
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

    The key of a row is the job's seed folded with the index of its input, so the random numbers of
    a row depend neither on the other rows of its batch nor on its position among them. The rows
    are spread over the local devices, and each device holds a copy of the model; or, if the model
    is on a mesh, over the axis ``data`` of that mesh.

    Args:
      model: a T5, or a language model.
      tokenizer: the tokenizer of the model.
      strategy: a function of ``(model, prompt, *, stop)`` or ``(model, prompt, key, *, stop)``.
      stop: the stop conditions.
      seed: the seed of the job.
      batch_size: the number of rows of a batch. It is rounded up to a multiple of the number of
        devices that rows are spread over.
      drafter: the drafter, for a strategy that takes one, as for ``decoding_jax.generate``.
      devices: the devices to use for a model that is not on a mesh. The default is the local
        devices.

    Attributes:
      batch_size: the number of rows of a batch, after rounding.
      batches: the number of batches decoded so far.
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
    ):
        devices = jax.local_devices() if devices is None else devices
        mesh = mesh_of(model)
        spread = len(devices) if mesh is None else mesh.shape.get(DATA, 1)
        self.batch_size = -(-batch_size // spread) * spread
        self.batches = 0
        self.tokens = 0
        self.compiling = Stopwatch()
        self._widths: set[int] = set()
        drafter = check_drafter(strategy, drafter)
        self._row_sharding: NamedSharding | None = None
        if mesh is not None:
            self._row_sharding = NamedSharding(mesh, PartitionSpec(DATA))
            if drafter is not None and mesh_of(drafter) is None:
                drafter = _put(drafter, NamedSharding(mesh, PartitionSpec()))
        elif len(devices) > 1:
            mesh = Mesh(np.array(devices), (DATA,))
            self._row_sharding = NamedSharding(mesh, PartitionSpec(DATA))
            model, drafter = _put((model, drafter), NamedSharding(mesh, PartitionSpec()))
        self._model = model
        self._drafter = drafter
        self._tokenizer = tokenizer
        self._num_inputs: int | None = None
        self._arguments = row_arguments(strategy)
        self._settings = {**gin_names.bound_settings(strategy), "stop": stop}
        self._per_input = with_rows(self._settings, self._arguments)
        takes_key = "key" in inspect.signature(strategy).parameters

        def decode(
            bound_model: LanguageModel,
            prompt: Prompt,
            index: Array,
            bound_drafter: Any,
            row_settings: dict[str, Any],
        ) -> DecodeOutput:
            fold = jax.vmap(jax.random.fold_in, (None, 0))
            # The kind of key is fixed, so that a seed does not depend on the process's default.
            seed_key = jax.random.key(seed, impl="threefry2x32")
            keys = (fold(seed_key, index),) if takes_key else ()
            models = (bound_model,) if bound_drafter is None else (bound_model, bound_drafter)
            settings = {"stop": stop, **row_settings}
            return strategy(*models, prompt, *keys, **settings)._replace(info=None)

        decode.__name__ = getattr(gin_names.innermost(strategy), "__name__", "decode")
        self._traced = decode
        self._decode = jit(decode, ())

    @property
    def compilations(self) -> int:
        """The number of shapes that were compiled."""
        return self._decode.cache_size()  # type: ignore[attr-defined]

    def expect(self, count: int) -> None:
        """Sets the number of inputs of the job.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs.
        """
        self._num_inputs = count
        take_rows({**self._settings, "drafter": self._drafter}, [0], count, self._arguments)

    def check(self, width: int) -> None:
        """Traces the strategy for batches of ``width`` tokens, without compiling it.

        Raises:
          ValueError: if the model and the settings do not fit each other.
        """
        args = self._batch([[0]], [0], width)
        jax.eval_shape(lambda: self._traced(*args))

    def start(self, ids: Sequence[list[int]], index: Sequence[int], width: int) -> DecodeOutput:
        """Starts to decode a batch, and returns without waiting for the device.

        Args:
          ids: the tokens of 1 to ``batch_size`` inputs.
          index: the index of each input in the job.
          width: the length that the tokens are padded to.

        Returns:
          The output of ``batch_size`` rows, for ``finish``.
        """
        is_new = width not in self._widths
        if is_new:
            self._widths.add(width)
            rows, number = self.batch_size, len(self._widths)
            _LOGGER.info("compilation %d: %d inputs of up to %d tokens", number, rows, width)
        self.batches += 1
        batch = self._batch(ids, index, width)
        with self.compiling if is_new else contextlib.nullcontext():
            return self._decode(*batch)

    def finish(self, output: DecodeOutput, ids: Sequence[list[int]]) -> list[list[Completion]]:
        """Waits for a batch and returns the completions of each of its inputs.

        Args:
          output: the output of ``start``.
          ids: the tokens that ``start`` was given.
        """
        context = context_of(self._model, ids)
        made = completions(self._tokenizer, jax.device_get(output), len(ids), context)
        self.tokens += sum(len(completion.tokens) for of_input in made for completion in of_input)
        return made

    def _batch(
        self, ids: Sequence[list[int]], index: Sequence[int], width: int
    ) -> tuple[LanguageModel, Prompt, Array, Any, dict[str, Any]]:
        # A batch is filled up with copies of its first row, which need no additional steps.
        padding = self.batch_size - len(ids)
        rows = np.asarray([*index, *[index[0]] * padding], np.uint32)
        padded = [*ids, *[ids[0]] * padding]
        bound_model, prompt = encode_batch(self._model, padded, width)
        per_input = {name: self._settings[name] for name in self._per_input}
        per_input["drafter"] = self._drafter
        row_settings = take_rows(per_input, rows, self._num_inputs, self._arguments)
        bound_drafter = bind_drafter(row_settings.pop("drafter"), self._model, padded, width)
        if self._row_sharding is None:
            return bound_model, prompt, jnp.asarray(rows), bound_drafter, row_settings
        # The leaves of the model and of the settings are shared by all rows. All other leaves were
        # made for this batch, and their leading axis is that of its rows.
        shared = {id(leaf) for leaf in jax.tree.leaves((self._model, self._drafter, per_input))}
        batch = (bound_model, prompt, rows, bound_drafter, row_settings)
        return _put(batch, self._row_sharding, shared)


def _put(tree: Any, sharding: NamedSharding, skip: set[int] | frozenset[int] = frozenset()) -> Any:
    """Moves the arrays of a tree to devices, except for leaves whose ``id`` is in ``skip``."""

    def move(leaf: Any) -> Any:
        stays = id(leaf) in skip or not isinstance(leaf, (jax.Array, np.ndarray))
        return leaf if stays else jax.device_put(leaf, sharding)

    return jax.tree.map(move, tree)
