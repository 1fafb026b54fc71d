"""The config of a call of ``generate`` or ``stream`` without a strategy's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from decoding_jax.fields import describe
from decoding_jax.text.generation_config.choice import DEFAULT_NEW_TOKENS
from decoding_jax.text.generation_config.config import GenerationConfig
from decoding_jax.text.generation_config.parameters import PARAMETERS
from decoding_jax.text.limits import DEFAULT_LENGTH

LENGTHS = {"max_length", "max_new_tokens"}
"""The parameters that limit a text."""


class Chooser(NamedTuple):
    """A config that chooses the strategy of a call.

    Attributes:
      config: the parameters, without those of the call.
      path: the file of the model's directory that they are from, or None.
    """

    config: GenerationConfig
    path: str | None = None


def chooser_of(
    strategy: Any, config: Any, tokenizer: Any, settings: Mapping[str, Any]
) -> Chooser | None:
    """The config of a call, or None if the call has a strategy, or nothing that chooses one.

    A call with neither strategy nor config has that of the model's directory, which is the
    tokenizer's ``generation_config``. Parameters among the settings need none.

    Raises:
      ValueError: for a strategy and a config, a config of another type, or a file of the directory
        that cannot be followed.
    """
    if config is not None and not isinstance(config, GenerationConfig):
        raise ValueError(
            f"config: got {describe(config)}; takes a GenerationConfig, such as "
            "GenerationConfig.load(directory)"
        )
    if config is not None and strategy is not None:
        raise ValueError(f"strategy: got {describe(strategy)} and a config; takes one of the two")
    if strategy is not None:
        return None
    if config is not None:
        return Chooser(config)
    file = getattr(tokenizer, "generation_config", None)
    if file is not None and (of_directory := file.config()) is not None:
        return Chooser(of_directory, file.path)
    return Chooser(GenerationConfig()) if PARAMETERS.keys() & settings.keys() else None


def config_of(
    chooser: Chooser, arguments: Any, settings: Mapping[str, Any]
) -> tuple[GenerationConfig, Any, int]:
    """The config of a call.

    Args:
      chooser: the config without the parameters of the call.
      arguments: the arguments of the call, a ``resolve.Arguments``.
      settings: its other parameters, and perhaps a transform.

    Returns:
      The config, the transform, and the maximum number of new tokens if the config has none.

    Raises:
      ValueError: for stop conditions, which a config has itself, a key that is missing, and an
        unknown parameter.
    """
    if arguments.stop is not None:
        source = "a GenerationConfig" if chooser.path is None else chooser.path
        raise ValueError(
            f"stop: got one with parameters of {source}; takes None there, and eos_token_id, "
            "stop_strings, min_new_tokens and max_new_tokens as parameters, or a strategy"
        )
    changes = {**settings}
    transform = changes.pop("transform", None)
    for name in ("max_new_tokens", "stop_strings", "max_time"):
        if (value := getattr(arguments, name)) is not None:
            changes[name] = value
    config = chooser.config.replace(**changes)
    if chooser.path is not None and config.do_sample and arguments.key is None:
        raise ValueError(
            f"key: got None, and {chooser.path} says do_sample; takes a typed key such as "
            'jax.random.key(0), or do_sample=False, or a strategy such as "greedy"'
        )
    return config, transform, DEFAULT_NEW_TOKENS if chooser.path is None else DEFAULT_LENGTH
