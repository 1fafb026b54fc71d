"""Checks of single arguments by their names, which have one meaning in all strategies.

``token_ids`` checks token ids and lengths.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import transforms
from decoding_jax.base import Prompt, Stop

COUNTS = (
    "batch_size",
    "beam_size",
    "branching",
    "budget",
    "chunk",
    "frontier_size",
    "k",
    "max_new_tokens",
    "num_drafts",
    "num_groups",
    "num_return",
    "num_samples",
)
_MODEL = ("prefill", "extend", "vocab_size", "max_positions", "ragged", "tree")


def describe(value: Any) -> str:
    """Describes a value for an error: dtype and shape of an array, else at most 60 characters.

    Example:
      >>> describe(np.zeros((2, 3))), describe([1]), describe(Prompt)
      ('float64[2, 3]', '[1]', 'the class Prompt')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype") and np.shape(value):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple) and len(value) == 2 and _is_model(value[0]):
        return f"a pair with a {type(value[0]).__name__}"
    if _is_model(value) or type(value).__repr__ is object.__repr__:
        return f"a {type(value).__name__}"
    if hasattr(value, "dtype") and not isinstance(value, np.ndarray):
        return f"{value.dtype}[]"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_model(value: Any) -> bool:
    return not isinstance(value, type) and (hasattr(value, "bind") or hasattr(value, "prefill"))


def check_model(model: Any) -> Any:
    """Checks that a model has all attributes of a ``LanguageModel``, and returns it.

    Raises:
      ValueError: for any other object, a class, or a model that is not bound to its inputs.
    """
    if not isinstance(model, type) and hasattr(model, "bind") and not hasattr(model, "prefill"):
        raise ValueError(
            f"model: got a {type(model).__name__} that is not bound to its inputs; takes "
            "model.bind(tokens, length), which decoding_jax.generate does by itself"
        )
    missing = [name for name in _MODEL if not hasattr(model, name)]
    if isinstance(model, type) or len(missing) == len(_MODEL):
        hint = "decoding_jax.load gives a pair, a model and its tokenizer"
        raise ValueError(f"model: got {describe(model)}; takes a language model: {hint}")
    if missing:
        raise ValueError(
            f"model: got a {type(model).__name__} without {', '.join(missing)}; "
            "takes a LanguageModel"
        )
    return model


def check_prompt_type(prompt: Any) -> Any:
    """Checks that a prompt is a pair of integer arrays, and converts lists to arrays.

    Raises:
      ValueError: for anything else.
    """
    takes = "takes Prompt(tokens [B, P], length [B])"
    if isinstance(prompt, str):
        raise ValueError(f"prompt: got {describe(prompt)}; {takes}; generate takes texts")
    if not isinstance(prompt, tuple) or len(prompt) != 2:
        raise ValueError(f"prompt: got {describe(prompt)}; {takes}")
    arrays = []
    for name, value in zip(Prompt._fields, prompt, strict=True):
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(value)):
            value = jnp.asarray(value)
        try:
            value = value if hasattr(value, "dtype") else np.asarray(value)
            kind: str = np.dtype(value.dtype).kind
        except (ValueError, TypeError):  # Lists of several lengths.
            kind = ""
        if kind not in ("i", "u"):
            got = f"{value.dtype}" if kind else describe(value)
            raise ValueError(f"prompt.{name}: got {got}; takes int32, as in {takes[6:]}")
        arrays.append(value)
    return Prompt(*arrays)


def check_count(name: str, value: Any) -> Any:
    """Converts a count to an int; the strategy checks whether it is large enough.

    Raises:
      ValueError: for anything but a whole number.
    """
    try:
        if isinstance(value, (bool, np.bool_, jax.core.Tracer)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        got = "a traced value" if isinstance(value, jax.core.Tracer) else describe(value)
        raise ValueError(f"{name}: got {got}; takes {takes_count(name, value)}") from None


def takes_count(name: str, value: Any) -> str:
    """What a count takes, for an error.

    Args:
      name: the argument.
      value: what it got, perhaps one number for each row.
    """
    takes = "an int of 1 or more"
    listed = isinstance(value, (list, tuple)) or (hasattr(value, "shape") and np.shape(value))
    if name == "max_new_tokens" and listed:
        takes += f"; stop=Stop(max_new_tokens={describe(value)}) limits each text"
    return takes


def check_transform(transform: Any) -> Any:
    """Checks that a transform is None or one function, and returns it.

    Raises:
      ValueError: for anything but None or a function of ``(logits, prefix)``.
    """
    takes = "takes one transform, such as transforms.temperature(0.8)"
    if transform is None:
        return None
    if isinstance(transform, type) or transform is transforms.chain:
        name = transform.__name__
        lower = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
        name = f"transforms.{lower}" if hasattr(transforms, lower) else name
        raise ValueError(f"transform: got {name} without its settings; takes {name}(...)")
    if isinstance(transform, (list, tuple)):
        raise ValueError(
            f"transform: got a {type(transform).__name__} of {len(transform)}; {takes}; several "
            "are transforms.chain(first, second)"
        )
    if not callable(transform):
        raise ValueError(f"transform: got {describe(transform)}; {takes}")
    try:
        inspect.signature(transform).bind(None, None)
    except TypeError as error:
        raise ValueError(
            f"transform: got {describe(transform)}, which does not take two arguments ({error}); "
            "takes a function of (logits, prefix)"
        ) from None
    except ValueError:  # A function without a known signature.
        pass
    return transform


def check_stop(stop: Any) -> Any:
    """Checks that stop conditions are None or a ``Stop``, and returns them.

    Raises:
      ValueError: for anything else.
    """
    if stop is None or isinstance(stop, Stop):
        return stop
    if isinstance(stop, str):
        raise ValueError(
            f"stop: got {stop!r}; takes Stop(sequences=(ids,)) with the token ids of a text, such "
            "as tokenizer.pieces gives"
        )
    raise ValueError(f"stop: got {describe(stop)}; takes Stop(eos_ids=(1,)), for example")


def check_switch(name: str, value: Any) -> bool:
    """Checks that a switch is a bool, and returns it.

    Raises:
      ValueError: for anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}: got {describe(value)}; takes True or False")
    return bool(value)


def check_number(name: str, value: Any) -> Any:
    """Checks that a value is a number or an array ``[B]`` of numbers; lists become arrays.

    Raises:
      ValueError: for anything else.
    """
    array = np.asarray(value) if isinstance(value, (int, float, tuple, list)) else value
    kind = getattr(getattr(array, "dtype", None), "kind", "")
    if kind not in ("f", "i", "u", "V") or isinstance(value, bool):  # V: bfloat16
        raise ValueError(f"{name}: got {describe(value)}; takes a number, or one a row [B]")
    plain = isinstance(value, (int, float, tuple, list, np.ndarray, np.generic))
    if name == "gamma" and plain and not ((array >= 0) & (array <= 1)).all():
        raise ValueError(f"gamma: got {value}; takes a probability from 0 to 1")
    return array if isinstance(value, (tuple, list)) else value


def check_points(points: Any) -> Any:
    """Checks that the points of ``arithmetic_sample`` are a name or a function.

    Raises:
      ValueError: for anything else.
    """
    if not isinstance(points, str) and not callable(points):
        raise ValueError(f"points: got {describe(points)}; takes a name such as 'lattice'")
    return points


def check_key(key: Any) -> Any:
    """Refuses a key that is not an array; ``ops.random.row_keys`` checks arrays.

    Raises:
      ValueError: for a plain number or a string.
    """
    if isinstance(key, (int, float, str)):
        raise ValueError(f"key: got {key!r}; takes a typed key such as jax.random.key(0)")
    return key


def check_drafter(drafter: Any) -> Any:
    """Refuses objects that cannot be a drafter, and returns all others.

    Raises:
      ValueError: for a model that is not bound, a pair, a class or a name.
    """
    # A drafter with `bind` can draft without being bound; an unbound model cannot.
    drafts = any(hasattr(drafter, name) for name in ("prefill", "begin", "guess"))
    if hasattr(drafter, "bind") and not drafts:
        raise ValueError(
            f"drafter: got a {type(drafter).__name__} that is not bound to its inputs; takes "
            "drafter.bind(tokens, length), which decoding_jax.generate does by itself"
        )
    if isinstance(drafter, (str, tuple, type)):
        raise ValueError(
            f"drafter: got {describe(drafter)}; takes a language model or a drafter: "
            "decoding_jax.load gives a pair, a model and its tokenizer"
        )
    return drafter


def check_value(name: str, value: Any) -> Any:
    """Checks an argument of a strategy by the argument's name.

    Raises:
      ValueError: for a value of a type that the argument does not take.
    """
    if name in COUNTS:
        return check_count(name, value)
    if name == "fallback":
        return check_switch(name, value)
    listed = name == "length_penalty" and isinstance(value, (tuple, list))
    if listed or name in ("gamma", "diversity_penalty"):
        return check_number(name, value)
    return _CHECKS[name](value) if name in _CHECKS else value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "drafter": check_drafter,
    "key": check_key,
    "model": check_model,
    "points": check_points,
    "prompt": check_prompt_type,
    "stop": check_stop,
    "transform": check_transform,
}
