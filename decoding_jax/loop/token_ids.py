"""Checks of token ids and lengths, where they are readable on the host.

Traced values and arrays that are partly on other processes' devices are not checked. Reading an
array waits until it has been computed.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from decoding_jax.base import Prompt
from decoding_jax.ops.host import on_host


def check_prompt_ids(prompt: Prompt, vocab_size: int, name: str = "prompt") -> None:
    """Checks that a prompt's lengths are from 1 to P and its ids within the vocabulary.

    Warns:
      UserWarning: if the rows seem to be padded on the left.

    Raises:
      ValueError: for a length or an id that is out of range.
    """
    values = on_host(*prompt)
    if values is None:
        return
    tokens, length = values
    if tokens.ndim != 2 or tokens.size == 0 or length.shape != tokens.shape[:1]:
        return  # ``check_prompt`` refuses these shapes.
    size = tokens.shape[1]
    wrong = (length < 1) | (length > size)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name}.length: got {length[row]} in row {row}; takes 1 to P, {size}")
    real = np.arange(size)[None] < length[:, None]
    wrong = real & ((tokens < 0) | (tokens >= vocab_size))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name}.tokens: got {tokens[row, column]} in row {row}; takes ids from 0 to "
            f"{vocab_size - 1}, the model's vocabulary"
        )

    padding = _left_padding(tokens, length)
    if padding is not None:
        row = int((length < size).argmax())
        warnings.warn(
            f"{name}: got rows that seem to be padded on the left with {padding}, such as row "
            f"{row}, {tokens[row].tolist()[:8]} of length {length[row]}; takes each row's "
            "tokens first, and padding after them",
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


def check_token_ids(name: str, ids: Any, vocab_size: int) -> None:
    """Checks token ids, in which -1 means none.

    Raises:
      ValueError: for an id beyond the vocabulary.
    """
    values = on_host(ids)
    if values is not None and values[0].size and values[0].max() >= vocab_size:
        raise ValueError(
            f"{name}: got {values[0].max()}; takes ids from 0 to {vocab_size - 1}, the model's "
            "vocabulary"
        )
