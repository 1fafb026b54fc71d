"""The checks of the arguments of ``generate`` and ``stream``, which come before any other work."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from decoding_jax import fields, suggestions, transforms
from decoding_jax.fields import describe, label
from decoding_jax.loop.inputs import check_model
from decoding_jax.loop.strategy import check_max_new_tokens, check_settings
from decoding_jax.models.shared_prefix import SharedPrefixModel
from decoding_jax.registry import STRATEGIES, defaults_of
from decoding_jax.strategies.speculative.verifiers import needs_key
from decoding_jax.text.chat import check_conversation
from decoding_jax.text.warn import warn

# The arguments of a strategy that `generate` passes itself.
_PASSED = ("model", "prompt", "key", "drafter", "stop", "max_new_tokens")
# The arguments of `generate` and `stream`, which a message may suggest.
_BOTH = (
    "drafter",
    "key",
    "max_new_tokens",
    "max_time",
    "share_prefix",
    "stop",
    "stop_strings",
    "strategy",
    "texts",
    "truncate",
    "with_scores",
)
# The transforms that leave the most probable token where it is.
_IDLE = (
    transforms.Temperature,
    transforms.TopK,
    transforms.TopP,
    transforms.MinP,
    transforms.Epsilon,
    transforms.Eta,
)
_OWN = {"generate": ("batch_size", "progress"), "stream": ("chunk",)}
_ALTERNATIVES = 5  # of ``with_scores=True``


def check_arguments(
    caller: str,
    model: Any,
    tokenizer: Any,
    texts: Any,
    strategy: Any,
    key: Any,
    settings: Mapping[str, Any],
    **counts: Any,
) -> None:
    """Checks the arguments of ``generate`` and ``stream``.

    Args:
      caller: ``"generate"`` or ``"stream"``.
      model, tokenizer, texts, strategy, key: as for ``generate``.
      settings: the settings of the strategy, with ``max_new_tokens`` and ``stop``.
      **counts: ``batch_size`` or ``chunk``, and ``max_new_tokens`` if the caller gives it.

    Warns:
      UserWarning: if the strategy does not use the key, or the transform cannot change its texts.

    Raises:
      ValueError: for the first mistake, in one line that names the argument.
    """
    if not hasattr(model, "bind") or isinstance(model, type):
        check_model(model)
    check_tokenizer(tokenizer)
    check_texts(texts)
    if caller == "stream" and len(texts) == 0:
        raise ValueError("texts: got none; takes one string or more")
    for name, value in counts.items():
        check = check_max_new_tokens if name == "max_new_tokens" else fields.as_count
        check(name, value)
    run = check_strategy(strategy)
    also = (*_BOTH, *_OWN[caller])
    suggestions.check_function(run, settings, given_elsewhere=_PASSED, also=also)
    if callable(strategy):
        return
    check_settings(STRATEGIES[strategy].strategy, dict(settings))
    if key is not None and not draws(run, settings):
        chosen = " with the greedy verifier" if STRATEGIES[strategy].draws else ""
        warn(f"key: {strategy}{chosen} draws nothing and does not use it")
    if (message := idle_transform(strategy, settings.get("transform"))) is not None:
        warn(message)


def check_strategy(strategy: Any) -> Callable[..., Any]:
    """The function of a strategy.

    Args:
      strategy: the name of a strategy, or a function, which is returned unchanged.

    Raises:
      ValueError: for an unknown name, with similar ones if there are any, and for any other type.
    """
    if isinstance(strategy, str):
        if strategy in STRATEGIES:
            return STRATEGIES[strategy].function
        names = sorted(STRATEGIES)
        similar = [name for name in names if strategy.lower() in name] if len(strategy) > 2 else []
        similar = sorted(similar, key=len)[:2]
        similar = similar or difflib.get_close_matches(strategy.lower(), names, 2)
        verb = "is" if len(similar) == 1 else "are"
        hint = f"; {' and '.join(similar)} {verb} near" if similar else ""
        if strategy in transforms.__all__:
            hint = f"; {strategy} is a transform: sample takes transform=transforms.{strategy}(...)"
        raise ValueError(f"strategy: got {strategy!r}; takes one of {', '.join(names)}{hint}")
    if not callable(strategy) or isinstance(strategy, type):
        raise ValueError(
            f"strategy: got {describe(strategy)}; takes a name such as 'beam_search', or a function"
        )
    return strategy


def with_defaults(strategy: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call, with ``registry.DEFAULTS`` for those that a named strategy requires.

    Example:
      >>> with_defaults("beam_search", {"num_return": 2})
      {'beam_size': 4, 'num_return': 2}
    """
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        return dict(settings)
    found = {k: v for k, v in defaults_of(strategy).items() if k not in _PASSED}
    return {**found, **settings}


def idle_transform(strategy: str, transform: Any) -> str | None:
    """What to say of a transform that cannot change the texts of a strategy, or None.

    Greedy decoding does not notice parts that all keep the most probable token.

    Example:
      >>> idle_transform("greedy", transforms.temperature(5))
      'temperature: no effect with greedy, which draws nothing; sample draws'
      >>> idle_transform("beam_search", transforms.temperature(5))
    """
    parts = getattr(transform, "transforms", [] if transform is None else [transform])
    if strategy != "greedy" or not parts or not all(isinstance(part, _IDLE) for part in parts):
        return None
    names = ", ".join(label(part) for part in parts)
    return f"{names}: no effect with greedy, which draws nothing; sample draws"


def draws(run: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
    """Whether a strategy draws with these settings, and needs a key for it.

    Example:
      >>> run = check_strategy("speculative_sample")
      >>> draws(run, {}), draws(run, {"verifier": "greedy"})
      (True, False)
    """
    parameters = inspect.signature(run).parameters
    if "verifier" in parameters:
        return needs_key(settings.get("verifier", parameters["verifier"].default))
    return "key" in parameters


def check_tokenizer(tokenizer: Any) -> None:
    """Checks that a tokenizer has the attributes of ``Tokenizer`` that ``generate`` uses.

    Raises:
      ValueError: if an attribute is missing, or if ``eos_ids`` is no tuple or list of ids.
    """
    takes = "takes one with encode, decode and eos_ids, such as decoding_jax.load gives"
    if tokenizer is None or isinstance(tokenizer, (str, type)):
        raise ValueError(f"tokenizer: got {describe(tokenizer)}; {takes}")
    missing = [name for name in ("encode", "decode", "eos_ids") if not hasattr(tokenizer, name)]
    if missing:
        raise ValueError(
            f"tokenizer: got a {type(tokenizer).__name__} without {', '.join(missing)}; {takes}"
        )
    ids = tokenizer.eos_ids
    if not isinstance(ids, (tuple, list)) or not all(isinstance(i, int) for i in ids):
        raise ValueError(f"tokenizer.eos_ids: got {describe(ids)}; takes a tuple of token ids")


def check_texts(texts: Any) -> None:
    """Checks that the inputs are a sequence of valid strings, or of conversations.

    ``encode_texts`` refuses empty ones.

    Raises:
      ValueError: for any other value.
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts: got one string, {describe(texts)}; takes a list of strings")
    if not isinstance(texts, Sequence) and not hasattr(texts, "__len__"):
        raise ValueError(f"texts: got {describe(texts)}; takes a list of strings")
    for i, text in enumerate(texts):
        if isinstance(text, Mapping) and "role" in text:
            raise ValueError(
                f"texts: got one message at index {i}; takes strings, or lists of messages, which "
                "is [messages] for one conversation"
            )
        if isinstance(text, (list, tuple)) and any(isinstance(part, Mapping) for part in text):
            check_conversation(f"texts[{i}]", text)
        elif not isinstance(text, str):
            raise ValueError(f"texts: got {describe(text)} at index {i}; takes strings")
        for part in jax.tree.leaves(text):
            if isinstance(part, str) and (fault := unicode_fault(part)) is not None:
                raise ValueError(f"texts: got {fault} at index {i}; takes Unicode text")


def unicode_fault(text: str) -> str | None:
    """The reason why a string is no text, such as half of an emoji; None if it is one.

    Example:
      >>> print(unicode_fault("a" + chr(0xD83D)))
      '\\ud83d', a lone surrogate, as character 1
      >>> unicode_fault("a" + chr(0x1F600))
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{text[error.start]!r}, a lone surrogate, as character {error.start}"
    return None


def check_tokens(model: Any, ids: Sequence[Sequence[int]]) -> None:
    """Checks that the tokens of the inputs are of the model's vocabulary, after its shared prefix.

    Raises:
      ValueError: for an id outside the vocabulary, or an input that does not begin with the tokens
        that the model shares.
    """
    if isinstance(model, SharedPrefixModel):
        shared = np.asarray(model.tokens).tolist()
        for i, row in enumerate(ids):
            if list(row[: len(shared)]) != shared:
                raise ValueError(
                    f"texts: got one at index {i} that does not begin with the {len(shared)} tokens"
                    " of the model's shared prefix; takes the tokenizer of share_prefix, or whole"
                    " texts"
                )
    size = vocabulary_size(model)
    for i, row in enumerate(ids):
        if len(row) and not 0 <= min(row) <= max(row) < size:
            outside = next(token for token in row if not 0 <= token < size)
            raise ValueError(
                f"tokenizer: got id {outside} for text {i}; takes a tokenizer of the model's "
                f"vocabulary, ids from 0 to {size - 1}"
            )


def check_with_scores(with_scores: Any, model: Any) -> int | None:
    """The number of alternatives that ``with_scores`` asks for, or None without scores.

    Raises:
      ValueError: for anything but True, False, None, or a number from 0 to V.
    """
    if with_scores is None or with_scores is False:
        return None
    size = vocabulary_size(model)
    if with_scores is True:
        return min(_ALTERNATIVES, size)
    if not isinstance(with_scores, int) or not 0 <= with_scores <= size:
        raise ValueError(
            f"with_scores: got {describe(with_scores)}; takes True, False, or the number of "
            f"alternatives of each token, 0 to {size}"
        )
    return with_scores


def vocabulary_size(model: Any) -> int:
    """V, of a model that may have to be bound to its inputs first."""
    return model.config.vocab_size if hasattr(model, "bind") else model.vocab_size
