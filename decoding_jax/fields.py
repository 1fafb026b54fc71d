"""Settings: fields of frozen dataclasses that say what they take, and are checked when made.

A setting is declared once, where it belongs, by a function of this module in the place of
``dataclasses.field``::

    @decoding_jax.pytree
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Search:
        width: int = fields.count()
        alpha: Any = fields.number("a number of 0 or more", lambda x: x >= 0, default=1.0)
        order: str = fields.choice("best", "oldest", default="best")

        def __post_init__(self) -> None:
            fields.check(self)

The declaration says whether the setting is static (it determines shapes or control flow, and
another value compiles another program) or a leaf of the pytree, whether it may have one value for
each row (``decoding_jax.rows``), and which values it takes. ``check`` reads the declarations; an
error names the field, what it takes and what it got. Traced values are not checked.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Check = Callable[[str, Any], Any]
"""``(name, value) -> value``: returns the value, converted, or raises ValueError."""

COUNTS = ("an int of 0 or more", lambda x: x >= 0, np.int32)
"""The arguments of ``number`` for a count that may differ by row."""

_UNDECLARED = object()
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
_SHOWN = 8  # numbers of an array in an error


def field(
    check: Check | None = None,
    *,
    expected: str = "a value",
    static: bool = False,
    shared_axes: Any = _UNDECLARED,
    token_ids: bool = False,
    **options: Any,
) -> Any:
    """Declares a setting.

    Args:
      check: checks and converts a value. None takes any value.
      expected: the values that the setting takes, for errors.
      static: whether the value is static.
      shared_axes: the number of axes of a value that serves all rows (see ``decoding_jax.rows``).
      token_ids: whether its values are token ids.
      **options: as for ``dataclasses.field``. A default of None also allows None.
    """
    metadata: dict[str, Any] = {"expected": expected, "token_ids": token_ids}
    if check is not None:
        metadata["check"] = check
    if static:
        metadata["static"] = True
    if shared_axes is not _UNDECLARED:
        metadata["shared_axes"] = shared_axes
    return dataclasses.field(metadata=metadata, **options)


def count(minimum: int = 1, **options: Any) -> Any:
    """Declares a static int of ``minimum`` or more."""
    return field(
        lambda name, value: as_count(name, value, minimum),
        expected=_ints(minimum),
        static=True,
        **options,
    )


def switch(**options: Any) -> Any:
    """Declares a static bool."""
    return field(as_switch, expected="True or False", static=True, **options)


def choice(*values: Any, **options: Any) -> Any:
    """Declares a static setting that takes one of some values."""
    expected = f"one of {', '.join(repr(value) for value in values)}"

    def check(name: str, value: Any) -> Any:
        plain = value.item() if isinstance(value, np.generic) else value
        for taken in values:
            if type(plain) is type(taken) and plain == taken:
                return taken
        raise error(name, expected, plain)

    return field(check, expected=expected, static=True, **options)


def number(
    expected: str,
    valid: Callable[[np.ndarray], Any],
    dtype: type = np.float32,
    *,
    by_row: bool = True,
    **options: Any,
) -> Any:
    """Declares a number, or one for each row: an array ``[B]``.

    Args:
      expected: the numbers that the setting takes, for errors.
      valid: maps an array to whether each number is valid. NaN must not be.
      dtype: the dtype of the leaf. A fixed one means that changing 1 to 0.5 does not retrace.
      by_row: whether there may be one number for each row; otherwise all rows share one.
      **options: as for ``field``.
    """
    if by_row:
        options["shared_axes"] = 0
    return field(
        lambda name, value: as_number(name, value, expected, valid, dtype, by_row),
        expected=expected,
        **options,
    )


def static_number(expected: str, valid: Callable[[Any], Any], **options: Any) -> Any:
    """Declares a static number: another value compiles another program."""

    def check(name: str, value: Any) -> Any:
        is_plain = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_plain or not valid(value):
            raise error(name, expected, value)
        return value

    return field(check, expected=expected, static=True, **options)


def probability(**options: Any) -> Any:
    """Declares a probability from 0 to 1, or one for each row."""
    return number("a probability from 0 to 1", lambda x: (x >= 0) & (x <= 1), **options)


def token_ids(axes: int, **options: Any) -> Any:
    """Declares token ids, which strategies compare with the model's vocabulary.

    Args:
      axes: the number of axes of ids that serve all rows.
      **options: as for ``field``.
    """
    options = {"check": as_ids, "expected": "token ids of 0 or more", **options}
    return field(shared_axes=axes, token_ids=True, **options)


def secret(**options: Any) -> Any:
    """Declares a secret key of 64 bits, or one for each row: uint32 ``[2]`` or ``[B, 2]``."""
    return field(as_words, expected="an int from 0 to 2**64 - 1", shared_axes=1, **options)


def token_sequences(**options: Any) -> Any:
    """Declares token sequences: tuples of ids, or int32 ``[Q, M]`` or ``[B, Q, M]``."""
    expected = "sequences of token ids, such as [[5, 6]]"
    return field(as_sequences, expected=expected, shared_axes=2, token_ids=True, **options)


def check(owner: Any, label: str = "") -> None:
    """Checks and converts all fields of a frozen dataclass; its ``__post_init__`` calls this.

    Args:
      owner: the dataclass.
      label: what precedes the names of its fields in errors, such as ``top_p``.

    Raises:
      ValueError: for a value that a field does not take, in one line that names the field.
    """
    for setting in owner.__dataclass_fields__.values():
        if "check" in setting.metadata:
            value = getattr(owner, setting.name)
            converted = checked(setting, value, label)
            if converted is not value:
                object.__setattr__(owner, setting.name, converted)


def checked(setting: dataclasses.Field, value: Any, label: str = "") -> Any:
    """Checks a value of a field, and returns it converted.

    Raises:
      ValueError: for a value that the field does not take.
    """
    convert = setting.metadata.get("check")
    if convert is None or (value is None and setting.default is None):
        return value
    return convert(f"{label}.{setting.name}" if label else setting.name, value)


def check_token_ids(owner: Any, vocab_size: int) -> None:
    """Checks the values that an object and its parts declare as token ids; -1 means none.

    Models have none, and are not searched.

    Args:
      owner: a strategy, stop conditions, a transform, or any other object with declared fields.
      vocab_size: V.

    Raises:
      ValueError: for an id beyond the vocabulary.

    Example:
      >>> from decoding_jax import transforms
      >>> made = transforms.chain(transforms.temperature(2), transforms.forced_first_token(5))
      >>> check_token_ids(made, 5)
      Traceback (most recent call last):
      ValueError: forced_first_token.token: expected ids from 0 to 4, the model's vocabulary, got 5
    """
    if isinstance(owner, (tuple, list)):
        for part in owner:
            check_token_ids(part, vocab_size)
    elif hasattr(type(owner), "__dataclass_fields__") and not hasattr(owner, "prefill"):
        for setting in dataclasses.fields(owner):
            value = getattr(owner, setting.name)
            is_mask = getattr(value, "dtype", None) == np.bool_
            if not setting.metadata.get("token_ids"):
                check_token_ids(value, vocab_size)
            elif value is None or isinstance(value, str) or is_mask:
                continue  # A text has yet to become ids.
            elif (ids := on_host(value)) and ids[0].size and ids[0].max() >= vocab_size:
                expected = f"ids from 0 to {vocab_size - 1}, the model's vocabulary"
                raise error(f"{label(owner)}.{setting.name}", expected, int(ids[0].max()))


def label(owner: Any) -> str:
    """The public lower-case name of a class or of its object.

    Example:
      >>> from decoding_jax import GNMTPenalty, BestKSearch
      >>> label(GNMTPenalty), label(BestKSearch)
      ('gnmt_penalty', 'best_k_search')
    """
    kind = owner if isinstance(owner, type) else type(owner)
    return _WORDS.sub("_", kind.__name__).lower()


def error(name: str, expected: str, value: Any) -> ValueError:
    """The error for a value that the argument ``name`` does not take.

    Example:
      >>> error("top_k", "an int of 1 or more", 0)
      ValueError('top_k: expected an int of 1 or more, got 0')
    """
    return ValueError(f"{name}: expected {expected}, got {describe(value)}")


def as_count(name: str, value: Any, minimum: int = 1) -> int:
    """Checks that a value is a whole number of ``minimum`` or more, and returns it as an int.

    Raises:
      ValueError: for any other value.
    """
    try:
        if isinstance(value, (bool, np.bool_, jax.core.Tracer)):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise error(name, _ints(minimum), value) from None
    if whole < minimum:
        raise error(name, _ints(minimum), whole)
    return whole


def as_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Checks that these are numbers of layers, from 0 to ``num_layers``.

    Raises:
      ValueError: for any other value; the argument is ``layers``.
    """
    for layer in layers:
        if type(layer) is bool or not isinstance(layer, (int, np.integer)):
            raise error("layers", "whole numbers", layer)
        if not 0 <= layer <= num_layers:
            raise error("layers", f"numbers from 0 to {num_layers}", layer)
    return tuple(int(layer) for layer in layers)


def as_switch(name: str, value: Any) -> bool:
    """Checks that a value is a bool, and returns it as one.

    Raises:
      ValueError: for any other value.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise error(name, "True or False", value)
    return bool(value)


def as_number(
    name: str,
    value: Any,
    expected: str,
    valid: Callable[[np.ndarray], Any],
    dtype: type = np.float32,
    by_row: bool = True,
) -> Any:
    """Checks that a value is a number or an array of numbers, and converts plain ones to arrays.

    Traced values, and arrays that are partly on other processes' devices, are not checked.

    Raises:
      ValueError: for anything else, and for a number that is not ``valid``.
    """
    expected = f"{expected}, or one for each row [B]" if by_row else expected
    if not by_row and np.ndim(value):
        raise error(name, f"{expected}, for all rows", value)
    if isinstance(value, jax.core.Tracer) or type(value) is object:
        return value  # ``object()`` stands for a leaf where JAX copies the structure of a tree.
    try:
        array = np.asarray(value) if is_readable(value) else None
        kind = np.dtype(value.dtype if array is None else array.dtype).kind
    except (TypeError, ValueError):  # Lists of several lengths.
        raise error(name, expected, value) from None
    if kind not in ("iu" if np.dtype(dtype).kind == "i" else "iufV"):  # V: bfloat16
        raise error(name, expected, value)
    if array is None:
        return value
    array = array.astype(np.float32) if kind == "V" else array
    good = np.broadcast_to(valid(array), array.shape)
    if not good.all():
        raise error(name, expected, array.tolist() if array.size <= _SHOWN else array[~good][0])
    return value if isinstance(value, jax.Array) else _narrowed(array, dtype)


def _narrowed(array: np.ndarray, dtype: type) -> np.ndarray:
    """An array of another dtype, whose large numbers become the largest one."""
    if np.dtype(dtype).kind == "i" and array.size:
        array = np.asarray(np.clip(array, np.iinfo(dtype).min, np.iinfo(dtype).max))
    return array.astype(dtype)


def as_ids(name: str, value: Any) -> Any:
    """Checks token ids, and converts plain ones to int32; one id is a list of one.

    Raises:
      ValueError: for anything but whole numbers of -1 and above; -1, which means none, may only
        fill up arrays.
    """
    expected = "token ids of 0 or more"
    if isinstance(value, (int, np.integer)):
        value = (value,)
    if isinstance(value, (tuple, list, range)):
        return _whole(name, value, expected)
    if not hasattr(value, "dtype"):
        raise error(name, expected, value)
    if not np.ndim(value):
        value = value.reshape(1)
    if is_readable(value):
        array = np.asarray(value)
        if array.size and (array.dtype.kind not in "iu" or array.min() < -1):
            shown = array.min() if array.dtype.kind in "iu" else array
            raise error(name, f"{expected}, or -1 for none", shown)
    return value


def as_sequences(name: str, value: Any) -> Any:
    """Checks token sequences; several tuples of ids become int32 ``[Q, M]``, padded on the left.

    Raises:
      ValueError: for anything but non-empty sequences of token ids, or ids padded on the left.
    """
    expected = "sequences of token ids, such as [[5, 6]]"
    if isinstance(value, (tuple, list)):
        return pad_left(name, value)
    if not hasattr(value, "dtype"):
        raise error(name, expected, value)
    if not is_readable(value):
        return value
    array = np.asarray(as_ids(name, value))
    if array.ndim < 2:
        raise error(name, expected, array.tolist())
    if np.any((array[..., :-1] >= 0) & (array[..., 1:] < 0)):
        raise ValueError(f"{name}: expected ids padded with -1 on the left, got -1 after a token")
    return value


def as_words(name: str, value: Any) -> Any:
    """Checks ints of 64 bits, and converts plain ones to their high and low words.

    Raises:
      ValueError: for anything but ints from 0 to ``2**64 - 1``, or an array uint32 ``[..., 2]``.

    Example:
      >>> as_words("key", 2**32 + 5).tolist(), as_words("key", (5, 6)).tolist()
      ([1, 5], [[0, 5], [0, 6]])
    """
    dtype = getattr(value, "dtype", None)
    if type(value) is object or (dtype == np.uint32 and np.shape(value)[-1:] == (2,)):
        return value
    numbers = value if isinstance(value, (list, tuple)) else [value]
    is_plain = all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in numbers)
    if not numbers or not is_plain or not all(0 <= x < 2**64 for x in numbers):
        raise error(name, "an int from 0 to 2**64 - 1, or a list of one for each row", value)
    words = np.array([divmod(int(x), 2**32) for x in numbers], np.uint32)
    return words if isinstance(value, (list, tuple)) else words[0]


def pad_left(name: str, sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """Converts token sequences of several lengths to int32 ``[Q, M]``, left-padded with -1.

    Raises:
      ValueError: for an empty sequence, or ids that are not whole numbers of 0 and above.

    Example:
      >>> pad_left("sequences", [[5, 6], [7]]).tolist()
      [[5, 6], [-1, 7]]
    """
    expected = "sequences of token ids, such as [[5, 6]]"
    if any(not isinstance(sequence, (tuple, list, range, np.ndarray)) for sequence in sequences):
        raise error(name, expected, sequences)
    rows = [_whole(name, sequence, expected) for sequence in sequences]
    if any(row.ndim != 1 for row in rows):
        raise error(name, expected, sequences)
    if any(row.size == 0 for row in rows):
        raise ValueError(f"{name}: expected sequences of one token or more, got an empty one")
    padded = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
    for i, row in enumerate(rows):
        padded[i, padded.shape[1] - len(row) :] = row
    return padded


def _whole(name: str, value: Any, expected: str) -> np.ndarray:
    """Converts plain whole numbers of 0 and above to int32."""
    try:
        array = np.asarray(value)
        whole = array.dtype.kind in "iu" or array.size == 0
    except ValueError:  # Lists of several lengths.
        whole = False
    if not whole or np.any(array < 0):
        raise error(name, expected, value)
    return _narrowed(array, np.int32)


def is_readable(value: Any) -> bool:
    """Whether a value is on this host: not traced, and not partly on other processes' devices."""
    if isinstance(value, (jax.core.Tracer, jax.ShapeDtypeStruct)):
        return False
    return not isinstance(value, jax.Array) or value.is_fully_addressable


def on_host(*values: Any) -> list[np.ndarray] | None:
    """Copies arrays to the host; None if one is traced or partly on other processes' devices.

    Reading an array waits until it has been computed.

    Example:
      >>> on_host(jax.numpy.arange(3))
      [array([0, 1, 2], dtype=int32)]
      >>> jax.eval_shape(lambda x: print(on_host(x)), 1.0)
      None
    """
    if not all(map(is_readable, jax.tree.leaves(values))):
        return None
    for x in values:
        if isinstance(x, jax.Array):
            x.copy_to_host_async()  # Of all arrays, before one is waited for.
    return [np.asarray(x) for x in values]


def describe(value: Any) -> str:
    """Describes a value for an error: dtype and shape of an array, else at most 60 characters.

    Example:
      >>> describe(np.zeros((2, 3))), describe([1]), describe(dict)
      ('float64[2, 3]', '[1]', 'the class dict')
    """
    if isinstance(value, jax.core.Tracer) and not value.ndim:
        return "a traced value"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype") and np.shape(value):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple) and len(value) == 2 and _is_model(value[0]):
        return f"a pair with a {type(value[0]).__name__}"
    if _is_model(value) or type(value).__repr__ is object.__repr__:
        return f"a {type(value).__name__}"
    if hasattr(value, "dtype") and not isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}[]"
    if isinstance(value, np.generic):
        value = value.item()
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_model(value: Any) -> bool:
    return not isinstance(value, type) and (hasattr(value, "bind") or hasattr(value, "prefill"))


def _ints(minimum: int) -> str:
    return f"an int of {minimum} or more"
