"""The arguments of a call of ``generate`` or ``stream``: checked, and with all that they imply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from decoding_jax import fields, loop
from decoding_jax.base import Array, Stop
from decoding_jax.rows import take_rows
from decoding_jax.text.arguments import (
    check_arguments,
    check_texts,
    check_tokenizer,
    check_tokens,
    check_with_scores,
    draws,
    with_defaults,
)
from decoding_jax.text.batch import encode_texts
from decoding_jax.text.calls import find_strategy, keys_of, stop_of
from decoding_jax.text.chat import Conversation
from decoding_jax.text.drafting import check_drafter
from decoding_jax.text.generation_config import GenerationConfig, choose
from decoding_jax.text.generation_config.call import (
    LENGTHS,
    chooser_of,
    config_of,
)
from decoding_jax.text.limits import (
    DEFAULT_LENGTH,
    Limits,
    fitted,
    limits_of,
    named_length,
)
from decoding_jax.text.shared_prefix import with_common_prefix
from decoding_jax.text.sizes import limited
from decoding_jax.text.stop_strings import StopTexts, with_strings
from decoding_jax.text.tokenizers import Tokenizer


class Arguments(NamedTuple):
    """The arguments that ``generate`` and ``stream`` have in common, as for ``generate``."""

    strategy: str | Callable[..., Any] | None
    key: Array | None
    drafter: Any
    max_new_tokens: int | None
    stop: Stop | None
    stop_strings: StopTexts | None
    max_time: float | None
    config: GenerationConfig | None
    with_scores: bool | int
    share_prefix: bool
    truncate: bool


class Resolved(NamedTuple):
    """A call of ``generate`` or ``stream`` that can be run.

    Attributes:
      run: the strategy.
      registered: whether it is one of ``STRATEGIES``.
      model: the model, with the prefix that the texts share where that is wanted.
      ids: the tokens of each text.
      keys: the key of each text, or None for a strategy that draws nothing.
      drafter: the drafter, or None. It is not bound to the texts.
      settings: the other settings of the strategy, with the stop conditions. Those of
        ``STRATEGIES`` limit each text.
      limits: the limit of each text.
      max_time: None, or seconds.
      num_alternatives: the number of alternatives to score, or None without scores.
    """

    run: Callable[..., Any]
    registered: bool
    model: Any
    ids: list[list[int]]
    keys: Array | None
    drafter: Any
    settings: dict[str, Any]
    limits: Limits
    max_time: float | None
    num_alternatives: int | None


def resolve(
    caller: str,
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    arguments: Arguments,
    settings: Mapping[str, Any],
    **counts: Any,
) -> Resolved:
    """Checks the arguments of a call before any other work.

    Args:
      caller: ``"generate"`` or ``"stream"``.
      model, tokenizer, texts: as for ``generate``.
      arguments: its other arguments.
      settings: the settings of the strategy, or the parameters that choose one.
      **counts: ``batch_size`` or ``chunk``.

    Raises:
      ValueError: for the first mistake, in one line that names the argument.
    """
    truncate = fields.as_switch("truncate", arguments.truncate)
    chooser = chooser_of(arguments.strategy, arguments.config, tokenizer, settings)
    strategy = "greedy" if arguments.strategy is None else arguments.strategy
    key, drafter, max_time = arguments.key, arguments.drafter, arguments.max_time
    if chooser is None:
        settings = with_defaults(strategy, settings)
        stop, default = with_strings(arguments.stop, arguments.stop_strings), DEFAULT_LENGTH
        length = default if arguments.max_new_tokens is None else arguments.max_new_tokens
        given = {"max_new_tokens": length, "stop": stop, **settings}
        counts["max_new_tokens"] = length
        check_arguments(caller, model, tokenizer, texts, strategy, key, given, **counts)
        named = named_length(arguments.max_new_tokens, stop)
        ids = encode_texts(tokenizer, texts, model)
        ids = fitted(model, tokenizer, texts, ids, named, default, truncate=truncate)
    else:
        check_tokenizer(tokenizer)
        check_texts(texts)
        config, transform, default = config_of(chooser, arguments, settings)
        ids = encode_texts(tokenizer, texts, model)
        limit = config.max_new_tokens
        ids = fitted(model, tokenizer, texts, ids, limit, default, truncate=truncate)
        lengths = [len(row) for row in ids]
        choice = choose(
            config,
            model,
            tokenizer.eos_ids,
            lengths,
            key=key,
            drafter=drafter[0] if isinstance(drafter, tuple) else drafter,
            transform=transform,
            default_length=default,
        )
        strategy, key, drafter, length, stop, max_time, settings = choice
        named = length if LENGTHS & config.values.keys() else None
        given = {"max_new_tokens": length, "stop": stop, **settings}
        check_arguments(caller, model, tokenizer, texts, strategy, key, given, **counts)
    num_alternatives = check_with_scores(arguments.with_scores, model)
    run, registered = find_strategy(strategy)
    builds_steps = caller == "stream" and callable(strategy)
    drafter = check_drafter(loop.strategy_of(run) if builds_steps else run, drafter)
    keys = keys_of(key is not None if builds_steps else draws(run, settings), key, len(texts))
    check_tokens(model, ids)
    if ids:
        take_rows({"stop": stop}, [0], len(ids))  # Refuses limits of another number of texts.
    limits = limits_of(model, texts, ids, named, default, stop, exact=not registered)
    model = with_common_prefix(model, ids, arguments.share_prefix)
    stop = stop_of(stop, tokenizer, model, ids)
    if registered and ids:
        stop = limited(stop, limits.counts)
    return Resolved(
        run,
        registered,
        model,
        ids,
        keys,
        drafter,
        {"stop": stop, **settings},
        limits,
        max_time,
        num_alternatives,
    )
