"""The arguments of a call of ``generate`` or ``stream`` without a strategy's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoding_jax.loop.values import describe
from decoding_jax.text.arguments import check_texts, check_tokenizer
from decoding_jax.text.batch import encode_texts
from decoding_jax.text.calls import DEFAULT_LENGTH
from decoding_jax.text.generation_config.choice import choose
from decoding_jax.text.generation_config.config import GenerationConfig
from decoding_jax.text.generation_config.parameters import PARAMETERS
from decoding_jax.text.tokenizers import Tokenizer

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


def chosen_arguments(
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    chooser: Chooser,
    key: Any,
    drafter: Any,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """The other arguments of ``generate``, as a config chooses them.

    Args:
      model, tokenizer, texts, key, drafter: as for ``generate``.
      chooser: the config.
      given: the settings of the call, with ``max_new_tokens`` and ``stop``.

    Raises:
      ValueError: as ``choose``, and for stop conditions, which a config has itself.
    """
    check_tokenizer(tokenizer)
    check_texts(texts)
    changes = dict(given)
    transform, stop = changes.pop("transform", None), changes.pop("stop", None)
    if stop is not None:
        source = "a GenerationConfig" if chooser.path is None else chooser.path
        raise ValueError(
            f"stop: got one with parameters of {source}; takes None there, and eos_token_id, "
            "stop_strings, min_new_tokens and max_new_tokens as parameters, or a strategy"
        )
    for name in ("stop_strings", "max_time"):
        if changes[name] is None:
            del changes[name]
    if changes["max_new_tokens"] is None:
        del changes["max_new_tokens"]
    config = chooser.config.replace(**changes)
    if chooser.path is not None and not LENGTHS & config.values.keys():
        config = config.replace(max_new_tokens=DEFAULT_LENGTH)
    if chooser.path is not None and config.do_sample and key is None:
        raise ValueError(
            f"key: got None, and {chooser.path} says do_sample; takes a typed key such as "
            'jax.random.key(0), or do_sample=False, or a strategy such as "greedy"'
        )
    lengths = [len(row) for row in encode_texts(tokenizer, texts)]
    if isinstance(drafter, tuple):
        drafter = drafter[0]
    choice = choose(
        config,
        model,
        tokenizer.eos_ids,
        lengths,
        key=key,
        drafter=drafter,
        transform=transform,
    )
    arguments = choice._asdict()
    return {**arguments.pop("settings"), **arguments}
