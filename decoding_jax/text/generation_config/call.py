"""The arguments of a call of ``generate`` or ``stream`` without a strategy's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decoding_jax.loop.values import describe
from decoding_jax.text.arguments import check_texts, check_tokenizer
from decoding_jax.text.batch import encode_texts
from decoding_jax.text.generation_config.choice import choose
from decoding_jax.text.generation_config.config import GenerationConfig
from decoding_jax.text.generation_config.parameters import PARAMETERS
from decoding_jax.text.tokenizers import Tokenizer


def uses_config(strategy: Any, config: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a config, or a parameter of one among the settings, chooses the strategy.

    Raises:
      ValueError: for a strategy and a config, or a config of another type.
    """
    if config is not None and not isinstance(config, GenerationConfig):
        raise ValueError(
            f"config: got {describe(config)}; takes a GenerationConfig, such as "
            "GenerationConfig.load(directory)"
        )
    if config is not None and strategy is not None:
        raise ValueError(f"strategy: got {describe(strategy)} and a config; takes one of the two")
    return strategy is None and (config is not None or bool(PARAMETERS.keys() & settings.keys()))


def chosen_arguments(
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: GenerationConfig | None,
    key: Any,
    drafter: Any,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """The other arguments of ``generate``, as a config chooses them.

    Args:
      model, tokenizer, texts, config, key, drafter: as for ``generate``.
      given: the settings of the call, with ``max_new_tokens`` and ``stop``.

    Raises:
      ValueError: as ``choose``, and for stop conditions, which a config has itself.
    """
    check_tokenizer(tokenizer)
    check_texts(texts)
    changes = dict(given)
    transform, stop = changes.pop("transform", None), changes.pop("stop", None)
    if stop is not None:
        raise ValueError(
            "stop: got one with parameters of a GenerationConfig; takes None there, and "
            "eos_token_id, stop_strings, min_new_tokens and max_new_tokens as parameters"
        )
    for name in ("stop_strings", "max_time"):
        if changes[name] is None:
            del changes[name]
    if changes["max_new_tokens"] is None:
        del changes["max_new_tokens"]
    config = (GenerationConfig() if config is None else config).replace(**changes)
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
