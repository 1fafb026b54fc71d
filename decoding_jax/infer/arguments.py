"""Checks the arguments of jobs before any input is read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from decoding_jax import fields, suggestions
from decoding_jax.fields import describe
from decoding_jax.loop.inputs import check_model
from decoding_jax.loop.strategy import check_stop
from decoding_jax.ops.mesh import mesh_of
from decoding_jax.storage import CloudPath
from decoding_jax.text import Tokenizer
from decoding_jax.text.inputs import check_tokenizer, vocabulary_size

_SOURCE = (
    "takes TextLines(path), JsonLines(path), CsvRows(path), ParquetRows(path), SeqioTask(name), or "
    "an iterable of Item"
)


def check_job(
    model: Any, source: Any, strategy: Any, output_dir: Any, buckets: Any, stop: Any
) -> None:
    """Checks the arguments of ``decoding_jax.infer.run`` that have these names.

    Raises:
      ValueError: if an argument is invalid; the message is one line that names it.
    """
    if not isinstance(model, tuple) or len(model) != 2:
        raise ValueError(
            f"model: got {describe(model)}; takes a model and its tokenizer, as decoding_jax.load "
            "returns them"
        )
    net, tokenizer = model
    if not hasattr(net, "bind"):
        check_model(net)
    check_tokenizer(tokenizer)
    if isinstance(source, type):
        raise ValueError(
            f"source: got {describe(source)}; takes an object of it, in gin @infer."
            f"{source.__name__}() with parentheses"
        )
    if isinstance(source, (str, Path, CloudPath)) or not hasattr(source, "__iter__"):
        raise ValueError(f"source: got {describe(source)}; {_SOURCE}")
    if isinstance(source, (list, tuple)):
        for item in source:
            if not hasattr(item, "error"):
                raise ValueError(f"source: got {describe(item)} among its items; {_SOURCE}")
    if not callable(strategy) or isinstance(strategy, type):
        raise ValueError(
            f"strategy: got {describe(strategy)}; takes a function such as "
            "functools.partial(decoding_jax.greedy, max_new_tokens=64), in gin @decoding_jax.greedy"
        )
    suggestions.check_function(strategy, {}, given_elsewhere=None)
    if output_dir is not None and not isinstance(output_dir, (str, Path, CloudPath)):
        raise ValueError(f"output_dir: got {describe(output_dir)}; takes a path")
    if buckets is not None and (isinstance(buckets, str) or not isinstance(buckets, Sequence)):
        raise ValueError(f"buckets: got {describe(buckets)}; takes a list of widths")
    if stop is not None:
        check_stop("stop", stop)


def check_own_devices(model: Any) -> None:
    """Checks that a model is on devices of this process only.

    Raises:
      ValueError: if it is on a mesh of several processes.
    """
    mesh = mesh_of(model)
    if mesh is not None and any(d.process_index != jax.process_index() for d in mesh.devices.flat):
        raise ValueError(
            f"model: got one on {mesh.devices.size} devices of several processes, each of which "
            f"decodes batches of its own; takes a mesh of at most {jax.local_device_count()} "
            "devices, or infer.run, in which processes share a mesh"
        )


def check_counts(**counts: int) -> None:
    """Checks that numbers are whole and 1 or more.

    Raises:
      ValueError: for anything else.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}: got {count!r}; takes a whole number of 1 or more")


def check_flags(**flags: bool) -> None:
    """Checks that values are True or False.

    Raises:
      ValueError: for anything else.
    """
    for name, flag in flags.items():
        fields.as_switch(name, flag)


def check_positions(width: int, shared: int, models: Mapping[str, Any]) -> None:
    """Checks that models have positions for the longest inputs of a job.

    Args:
      width: the number of tokens of these inputs, those of a shared prefix included.
      shared: the number of tokens of the shared prefix.
      models: models that read the inputs, by the names of their arguments.

    Raises:
      ValueError: if one has fewer positions.
    """
    for name, model in models.items():
        limit = getattr(model, "max_positions", None)
        if limit is not None and width > limit:
            rest = f", and the shared prefix takes {shared} of them" if shared else ""
            raise ValueError(
                f"max_input_length: got {width - shared}; takes at most {limit - shared}: the "
                f"{name} has {limit} positions{rest}"
            )


def check_seed(seed: int) -> None:
    """Checks the seed of a job.

    Raises:
      ValueError: if it is not a whole number from 0 to 2^32 - 1.
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed: got {seed!r}; takes 0 to {2**32 - 1}")


def check_top_tokens(count: int, model: Any) -> int:
    """Checks how many of the most probable tokens records contain.

    Raises:
      ValueError: if it is not a whole number from 0 to the size of the vocabulary.
    """
    size = vocabulary_size(model)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= size:
        raise ValueError(f"with_top_tokens: got {count!r}; takes a whole number from 0 to {size}")
    return count


def with_tokenizer(strategy: Callable[..., Any], tokenizer: Tokenizer) -> Callable[..., Any]:
    """Binds the model's tokenizer to a strategy that takes one."""
    if "tokenizer" not in inspect.signature(strategy).parameters:
        return strategy
    return functools.partial(strategy, tokenizer=tokenizer)
