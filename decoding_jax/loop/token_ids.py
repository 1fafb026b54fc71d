"""Token ids and lengths, checked where they can be read on the host.

Traced values are left alone, and so are arrays that other processes hold. Reading an array waits
until it has been computed.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from decoding_jax.base import Prompt


def on_host(*values: Any) -> list[np.ndarray] | None:
    """Arrays on the host, or None if one of them is traced or partly held by other processes."""
    leaves = jax.tree.leaves(values)
    if any(isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct)) for x in leaves):
        return None
    if any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves):
        return None
    return [np.asarray(x) for x in jax.device_get(values)]


def check_prompt_ids(prompt: Prompt, vocab_size: int, name: str = "prompt") -> None:
    """Checks what can be read of a prompt: lengths from 1 to P, ids within the vocabulary.

    Raises:
      ValueError: for a length or an id that is out of range.
    """
    read = on_host(*prompt)
    if read is None:
        return
    tokens, length = read
    if tokens.ndim != 2 or tokens.size == 0 or length.shape != tokens.shape[:1]:
        return  # ``check_prompt`` says what is wrong with these
    size = tokens.shape[1]
    wrong = (length < 1) | (length > size)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name}.length: got {length[row]} in row {row}; takes 1 to P, {size}")
    real = np.arange(size)[None] < length[:, None]
    wrong = real & ((tokens < 0) | (tokens >= vocab_size))
    if wrong.any():
        row, place = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name}.tokens: got {tokens[row, place]} in row {row}; takes ids from 0 to "
            f"{vocab_size - 1}, the model's vocabulary"
        )


def check_token_ids(name: str, ids: Any, vocab_size: int) -> None:
    """Checks ids that can be read, -1 for none among them.

    Raises:
      ValueError: for an id beyond the vocabulary.
    """
    read = on_host(ids)
    if read is not None and read[0].size and read[0].max() >= vocab_size:
        raise ValueError(
            f"{name}: got {read[0].max()}; takes ids from 0 to {vocab_size - 1}, the model's "
            "vocabulary"
        )
