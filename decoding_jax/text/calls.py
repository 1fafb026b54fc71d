"""The strategy, the keys and the stop conditions of ``generate``, ``stream`` and the batch job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from decoding_jax.base import Array, Stop
from decoding_jax.loop.stop_strings import StopStrings
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.ops.random import row_keys
from decoding_jax.registry import STRATEGIES
from decoding_jax.text.arguments import check_strategy, vocabulary_size
from decoding_jax.text.batch import context_of, with_end_tokens
from decoding_jax.text.stop_strings import compiled_stop, stop_strings
from decoding_jax.text.tokenizers import Tokenizer

MAX_STRINGS = 128
"""The largest number of different stop strings of a job's inputs.

The tables grow faster than this number."""


def find_strategy(strategy: str | Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The function of a strategy, and whether it is one of ``STRATEGIES``."""
    run = check_strategy(strategy)
    return run, any(run is entry.function for entry in STRATEGIES.values())


def stop_of(stop: Stop | None, tokenizer: Tokenizer, model: Any, ids: list[list[int]]) -> Stop:
    """The stop conditions with end tokens, and with strings that are compiled for each text."""
    stop = with_end_tokens(stop, tokenizer)
    if stop.strings is None:
        return stop
    context = context_of(model, ids)
    begun = [context is not None and bool(tokenizer.decode(row)) for row in ids]
    return compiled_stop(stop, tokenizer, vocabulary_size(model), begun)


def shared_strings(stop: Stop, tokenizer: Tokenizer, model: Any) -> Stop:
    """The stop conditions of a batch job, whose strings are compiled for all inputs.

    Raises:
      ValueError: for strings of each input.
    """
    if stop.strings is None or isinstance(stop.strings, StopStrings):
        return stop
    begun = not isinstance(model, EncoderDecoder)
    strings = stop_strings(tokenizer, stop.strings, vocabulary_size(model), begun=begun)
    if strings.chosen.ndim == 2:
        raise ValueError(
            "stop.strings: got a list of lists; takes one list for all inputs, beside the strings "
            "of single inputs, which infer.JsonLines.stop_strings names"
        )
    return dataclasses.replace(stop, strings=strings)


def strings_of_inputs(
    stop: Stop,
    input_strings: Sequence[Sequence[str] | None],
    tokenizer: Tokenizer,
    model: Any,
) -> Stop | None:
    """The stop conditions of a batch job with the strings of its inputs, compiled.

    Args:
      stop: the conditions of the job, before ``shared_strings``.
      input_strings: the strings of each input, or None for those of the job.
      tokenizer: the tokenizer of the model.
      model: the model.

    Returns:
      The conditions; None if no input has strings.

    Raises:
      ValueError: for too many different strings, strings of the job that are compiled already, and
        as ``stop_strings``.
    """
    if all(strings is None for strings in input_strings):
        return None
    if isinstance(stop.strings, StopStrings):
        raise ValueError(
            "stop.strings: got compiled ones, and inputs with strings of their own; takes strings"
        )
    of_job = [stop.strings] if isinstance(stop.strings, str) else list(stop.strings or ())
    rows = [of_job if strings is None else list(strings) for strings in input_strings]
    number = len({string for row in rows for string in row})
    if number > MAX_STRINGS:
        raise ValueError(
            f"stop_strings: got {number} different ones of all inputs; takes at most {MAX_STRINGS}"
        )
    begun = not isinstance(model, EncoderDecoder)
    strings = stop_strings(tokenizer, rows, vocabulary_size(model), begun=begun)
    return dataclasses.replace(stop, strings=strings)


def keys_of(required: bool, key: Array | None, count: int) -> Array | None:
    if not required:
        return None
    if key is None:
        raise ValueError("key: got None; this strategy takes a typed key such as jax.random.key(0)")
    return row_keys(key, count)
