"""Checks of what a strategy is made of and called with, before anything is traced.

Traced values and arrays that are partly on other processes' devices are not checked. Reading an
array waits until it has been computed.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, transforms
from decoding_jax.base import Array, LanguageModel, Prompt, Stop

PROMPT = "Prompt(tokens [B, P], length [B])"
_MODEL = ("prefill", "extend", "vocab_size", "max_positions", "ragged", "tree")
_LOADED = "decoding_jax.load gives a pair, a model and its tokenizer"


def checked(
    strategy: Any, model: Any, prompt: Any, key: Any = None
) -> tuple[LanguageModel, Prompt, Array | None]:
    """Checks a call of a strategy, and returns its model, its prompt and its key.

    Of a key, only plain numbers and strings are refused; ``ops.random.row_keys`` checks arrays.

    Raises:
      ValueError: in one line, for an input that is invalid, or a token id outside the vocabulary.
    """
    model, prompt = check_model(model), check_prompt(prompt)
    check_prompt_ids(prompt, model.vocab_size)
    check_settings(strategy, model)
    if isinstance(key, (int, float, str)):
        raise fields.error("key", "a typed key such as jax.random.key(0)", key)
    return model, prompt, key


def check_settings(strategy: Any, model: LanguageModel) -> None:
    """Checks that the settings of a strategy fit a model.

    Raises:
      ValueError: in one line, for a token id outside the vocabulary, and as ``Strategy.check``.
    """
    fields.check_token_ids(strategy, model.vocab_size)
    strategy.check(model)


def check_max_new_tokens(name: str, value: Any) -> int:
    """Checks a maximum number of new tokens, and returns it as an int.

    Raises:
      ValueError: for anything but a whole number of 1 or more.
    """
    if isinstance(value, (list, tuple)) or np.ndim(value):
        expected = "an int of 1 or more; stop=Stop(max_new_tokens=...) limits each text"
        raise fields.error(name, expected, value)
    return fields.as_count(name, value)


def check_transform(name: str, transform: Any) -> Any:
    """Checks that a transform is one function of ``(logits, prefix)``, and returns it.

    Raises:
      ValueError: for anything else.
    """
    expected = "one transform, such as transforms.temperature(0.8)"
    if isinstance(transform, type) or transform is transforms.chain:
        label = transform.__name__
        if isinstance(transform, type) and hasattr(transforms, fields.label(transform)):
            label = f"transforms.{fields.label(transform)}"
        raise ValueError(f"{name}: expected {label}(...), got it without its settings")
    if isinstance(transform, (list, tuple)):
        raise ValueError(
            f"{name}: expected {expected}, got a {type(transform).__name__} of {len(transform)}; "
            "several are transforms.chain(first, second)"
        )
    if not callable(transform):
        raise fields.error(name, expected, transform)
    try:
        inspect.signature(transform).bind(None, None)
    except TypeError as error:
        raise ValueError(
            f"{name}: expected a function of (logits, prefix), got {fields.describe(transform)}, "
            f"which does not take two arguments ({error})"
        ) from None
    except ValueError:  # A function without a known signature.
        pass
    return transform


def check_stop(name: str, stop: Any) -> Stop:
    """Checks that stop conditions are a ``Stop``, and returns them.

    Raises:
      ValueError: for anything else.
    """
    if isinstance(stop, Stop):
        return stop
    strings = stop if isinstance(stop, (list, tuple)) else [stop]
    if strings and all(isinstance(string, str) for string in strings):
        raise fields.error(name, "stop_strings=... of generate, or Stop(strings=...)", stop)
    raise fields.error(name, "a Stop, such as Stop(eos_ids=(1,))", stop)


def check_model(model: Any) -> Any:
    """Checks that a model has all attributes of a ``LanguageModel``, and returns it.

    Raises:
      ValueError: for any other object, a class, or a model that is not bound to its inputs.
    """
    if not isinstance(model, type) and hasattr(model, "bind") and not hasattr(model, "prefill"):
        raise ValueError(
            "model: expected model.bind(tokens, length), which decoding_jax.generate does by "
            f"itself, got a {type(model).__name__} that is not bound to its inputs"
        )
    missing = [name for name in _MODEL if not hasattr(model, name)]
    if isinstance(model, type) or len(missing) == len(_MODEL):
        got = fields.describe(model)
        raise ValueError(f"model: expected a language model, got {got}: {_LOADED}")
    if missing:
        raise ValueError(
            f"model: expected a LanguageModel, got a {type(model).__name__} without "
            f"{', '.join(missing)}"
        )
    return model


def is_unbound(drafter: Any) -> bool:
    """Whether this is a model that has to be bound to its inputs before it can draft.

    A drafter with ``bind`` can draft without being bound.
    """
    drafts = any(hasattr(drafter, name) for name in ("prefill", "begin", "guess"))
    return hasattr(drafter, "bind") and not drafts


def check_drafter(drafter: Any) -> Any:
    """Refuses objects that cannot be a drafter, and returns all others.

    Raises:
      ValueError: for a model that is not bound, a pair, a class or a name.
    """
    if is_unbound(drafter):
        raise ValueError(
            "drafter: expected drafter.bind(tokens, length), which decoding_jax.generate does by "
            f"itself, got a {type(drafter).__name__} that is not bound to its inputs"
        )
    if isinstance(drafter, (str, tuple, type)):
        got = fields.describe(drafter)
        raise ValueError(f"drafter: expected a language model or a drafter, got {got}: {_LOADED}")
    return drafter


def check_prompt(prompt: Any) -> Prompt:
    """Checks the shapes and dtypes of a prompt, and converts lists to arrays.

    Raises:
      ValueError: if it is not a pair of integers of shapes ``[B, P]`` and ``[B]`` with P of at
        least 1.
    """
    if not isinstance(prompt, tuple) or len(prompt) != 2:
        hint = "; generate takes texts" if isinstance(prompt, str) else ""
        raise ValueError(f"prompt: expected {PROMPT}, got {fields.describe(prompt)}{hint}")
    tokens, length = (
        as_integers(f"prompt.{name}", value, f"int32, as in {PROMPT}")
        for name, value in zip(Prompt._fields, prompt, strict=True)
    )
    if tokens.ndim != 2 or tokens.shape[1] == 0 or length.shape != tokens.shape[:1]:
        raise ValueError(
            f"prompt: expected tokens [B, P] with P of 1 or more, and length [B], got "
            f"{list(tokens.shape)} and {list(length.shape)}"
        )
    return Prompt(tokens, length)


def as_int32(prompt: Prompt) -> Prompt:
    """A checked prompt with int32 arrays of JAX."""
    return Prompt(*(jnp.asarray(x).astype(jnp.int32) for x in prompt))


def as_integers(name: str, value: Any, expected: str = "int32") -> Any:
    """An array of integers; a list is converted.

    Raises:
      ValueError: for anything else.
    """
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(value)):
        value = jnp.asarray(value)
    try:
        array = value if hasattr(value, "dtype") else np.asarray(value)
        kind: str = np.dtype(array.dtype).kind
    except (ValueError, TypeError):  # Lists of several lengths, or an array of another library.
        hint = "; value.numpy() makes an array of it" if hasattr(value, "numpy") else ""
        raise ValueError(
            f"{name}: expected {expected}, got {fields.describe(value)}{hint}"
        ) from None
    if kind not in ("i", "u"):
        raise ValueError(f"{name}: expected {expected}, got {array.dtype}")
    return array


def check_prompt_ids(prompt: Prompt, vocab_size: int, name: str = "prompt") -> None:
    """Checks that a prompt's lengths are from 1 to P and its ids within the vocabulary.

    Warns:
      UserWarning: if the rows seem to be padded on the left.

    Raises:
      ValueError: for a length or an id that is out of range.
    """
    values = fields.on_host(*prompt)
    if values is None:
        return
    tokens, length = values
    if tokens.ndim != 2 or tokens.size == 0 or length.shape != tokens.shape[:1]:
        return  # ``check_prompt`` refuses these shapes.
    size = tokens.shape[1]
    wrong = (length < 1) | (length > size)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name}.length: expected 1 to P, {size}, got {length[row]} in row {row}")
    real = np.arange(size)[None] < length[:, None]
    wrong = real & ((tokens < 0) | (tokens >= vocab_size))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name}.tokens: expected ids from 0 to {vocab_size - 1}, the model's vocabulary, got "
            f"{tokens[row, column]} in row {row}"
        )
    padding = _left_padding(tokens, length)
    if padding is not None:
        row = int((length < size).argmax())
        warnings.warn(
            f"{name}: expected each row's tokens first, and padding after them, got rows that seem "
            f"to be padded on the left with {padding}, such as row {row}, "
            f"{tokens[row].tolist()[:8]} of length {length[row]}",
            stacklevel=4,
        )


def _left_padding(tokens: np.ndarray, length: np.ndarray) -> int | None:
    """The id that rows seem to be padded with on the left, or None.

    All rows that are not full begin with this id as often as they have padding, three times or more
    together, and what is after their length is several other ids, where padding would be one.
    """
    place = np.arange(tokens.shape[1])[None]
    after = tokens[place >= length[:, None]]
    if after.size < 3 or (after == after[0]).all():
        return None
    before = tokens[place < tokens.shape[1] - length[:, None]]
    same = (before == before[0]).all() and not (after == before[0]).any()
    return int(before[0]) if same else None
