"""What ``generate`` and ``stream`` share: their strategy, their keys, and a batch of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from decoding_jax.base import Array, Stop
from decoding_jax.loop.stop_strings import StopStrings
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.ops.random import row_keys
from decoding_jax.registry import DEFAULTS, STRATEGIES
from decoding_jax.text.arguments import check_strategy, vocabulary_size
from decoding_jax.text.batch import context_of, encode_batch, with_end_tokens
from decoding_jax.text.drafting import bind_drafter
from decoding_jax.text.sizes import limited, padded_width, rounded_length, shared_size
from decoding_jax.text.stop_strings import compiled_stop, stop_strings
from decoding_jax.text.tokenizers import Tokenizer

MAX_STRINGS = 128
"""The largest number of different stop strings of a job's inputs.

The tables grow faster than this number."""

DEFAULT_LENGTH: int = DEFAULTS["max_new_tokens"]
"""The ``max_new_tokens`` of a call without one, unless a config has other rules."""


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


class Batch:
    """Texts that are decoded together, padded to one of a few sizes.

    Attributes:
      model: the language model, bound to the texts if it is an encoder-decoder.
      prompt: the prompts, one row for each text.
    """

    def __init__(self, model: Any, ids: list[list[int]], max_new_tokens: int):
        self._unbound, self._ids, self._max_new_tokens = model, ids, max_new_tokens
        max_positions = getattr(model, "max_positions", None)
        longest = max(len(row) for row in ids)
        shared = shared_size(model)
        self._width = padded_width(longest, max_new_tokens, max_positions, shared)
        self.model, self.prompt = encode_batch(model, ids, self._width)

    def bind_drafter(self, drafter: Any) -> Any:
        """The drafter, bound to these texts if it uses encoder inputs."""
        return bind_drafter(drafter, self._unbound, self._ids, self._width)

    def with_length(
        self, settings: dict[str, Any], drafter: Any, *, registered: bool
    ) -> dict[str, Any]:
        """The settings with ``max_new_tokens``.

        The strategies of ``STRATEGIES`` obey ``stop.max_new_tokens``, whose value is not part of
        the program, so their ``max_new_tokens`` is rounded up. Other functions get the exact value.
        """
        if not registered:
            return {**settings, "max_new_tokens": self._max_new_tokens}
        models = (self.model, drafter, getattr(drafter, "model", None))
        length = rounded_length(self._max_new_tokens, self.prompt.tokens.shape[1], models)
        stop = limited(settings["stop"], self._max_new_tokens)
        return {**settings, "stop": stop, "max_new_tokens": length}
