"""From automata over code points to those over bytes: of UTF-8, and of strings in JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from decoding_jax.constraints import automata
from decoding_jax.constraints.automata import Automaton, Interval, TooManyStatesError
from decoding_jax.constraints.expressions import (
    Compiled,
    Expression,
    Symbols,
    compiled,
    sequence,
    symbols,
    text,
    union,
)

CHARACTERS = Symbols(((0, 0xD7FF), (0xE000, 0x10FFFF)))
"""The code points of texts, which surrogates are not."""

_READ = 1 << 21  # with the number of an interval: a character of it has been read
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_LAST = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # code points of one byte, of two, three and four


def in_utf8(automaton: Automaton) -> Automaton:
    """The automaton of the bytes of the texts of an automaton over code points.

    Example:
      >>> from decoding_jax.constraints.expressions import Repeat
      >>> dots = compiled(Repeat(CHARACTERS, 2, 2))
      >>> [in_utf8(dots).accepts("éa".encode()[:n]) for n in (2, 3)]
      [False, True]
    """
    return _encoded(automaton, _raw)


def in_json(automaton: Automaton, any_escapes: bool = False) -> Automaton:
    r"""The automaton of the strings in JSON whose texts are those of an automaton.

    A character is escaped where JSON asks for it, in its short form if there is one; ``/`` may be.
    With ``any_escapes``, each may be, in any form.

    Example:
      >>> from decoding_jax.constraints.expressions import Repeat
      >>> two = in_json(compiled(Repeat(CHARACTERS, 2, 2)))
      >>> [two.accepts(text) for text in (b'"ab"', rb'"\n\u0001"', rb'"\u0041b"')]
      [True, True, False]
    """
    quote = Symbols(((34, 34),))
    bytes_of = _in_json_or_escaped if any_escapes else _in_json
    return compiled(sequence(quote, Compiled(_encoded(automaton, bytes_of)), quote))


BytesOf = Callable[[int, int], Iterator[Expression]]
"""Gives the bytes of the code points of an interval."""


def _encoded(automaton: Automaton, bytes_of: BytesOf) -> Automaton:
    columns, place = automata.distinct(automaton.table.T)
    ends = np.append(automaton.starts[1:], automata.END) - 1
    of_column: list[list[Interval]] = [[] for _ in columns]
    for number, low, high in zip(
        place.tolist(), automaton.starts.tolist(), ends.tolist(), strict=True
    ):
        of_column[number] += [
            (max(low, a), min(high, b)) for a, b in CHARACTERS.intervals if low <= b and high >= a
        ]
    live = [i for i, c in enumerate(columns) if (automaton.table[:, c] >= 0).any()]
    reader = _reader(tuple(symbols(of_column[i]).intervals for i in live), bytes_of)
    return _read_by(reader, automaton, columns[live])


def _read_by(reader: Automaton, automaton: Automaton, columns: np.ndarray) -> Automaton:
    """The automaton that reads characters by a reader, whose last symbol says which one it was."""
    is_byte = reader.starts < 256
    inner, after = reader.table[:, is_byte], reader.table[:, ~is_byte]
    kinds = reader.starts[~is_byte] - _READ
    whole = np.greater_equal(after, 0).any(axis=1)  # the states after a whole character
    kind = np.where(whole, kinds[(after >= 0).argmax(axis=1)] if after.size else 0, -1)
    number = np.where(whole, -1, np.cumsum(~whole) - 1)  # The start is the first one.
    count = int((~whole).sum())
    states = len(automaton.table)
    if states * count > automata.MOST_STATES // 2:
        raise TooManyStatesError
    if not len(columns):
        return automata.reduced(
            np.full((states, 1), -1, np.int32), np.zeros(1, np.int64), automaton.accepting
        )
    inner = inner[~whole]
    target = np.where(inner < 0, 0, inner)
    then = automaton.table[:, columns]
    # int [states, count, bytes]: within a character, or at the state after it.
    within = np.arange(states)[:, None, None] * count + number[target][None]
    read = then[:, np.clip(kind[target], 0, None)]
    table = np.where(whole[target], np.where(read < 0, -1, read * count), within)
    table = np.where(inner < 0, -1, table).reshape(states * count, -1).astype(np.int32)
    accepting = np.zeros((states, count), bool)
    accepting[:, 0] = automaton.accepting
    # Symbols after the bytes lead nowhere.
    table = np.append(table, np.full((len(table), 1), -1, np.int32), axis=1)
    starts = np.append(reader.starts[is_byte], 256)
    return automata.reduced(table, starts, accepting.ravel())


@functools.lru_cache(256)
def _reader(kinds: tuple[tuple[Interval, ...], ...], bytes_of: BytesOf) -> Automaton:
    """Reads the bytes of one character, and then a symbol that says of which kind it is."""
    parts = []
    for number, intervals in enumerate(kinds):
        kind = Symbols(((_READ + number, _READ + number),))
        for low, high in intervals:
            parts += [sequence(x, kind) for x in bytes_of(low, high)]
    return compiled(union(*parts))


def _in_json(low: int, high: int) -> Iterator[Expression]:
    for begin, end in ((32, 33), (35, 91), (93, 0x10FFFF)):
        if low <= end and high >= begin:
            yield from _raw(max(low, begin), min(high, end))
    for character, letter in _ESCAPED.items():
        if low <= ord(character) <= high:
            yield text(f"\\{letter}".encode())
    for code in range(low, min(high, 31) + 1):
        if chr(code) not in _ESCAPED:
            yield from _unit(code, code)


def _in_json_or_escaped(low: int, high: int) -> Iterator[Expression]:
    yield from _in_json(low, high)
    if low <= 0xFFFF:
        yield from _unit(low, min(high, 0xFFFF))
    # Others are two units, of which each has ten bits.
    low, high = max(low - 0x10000, 0), high - 0x10000
    while low <= high:
        last = min(high, low | 0x3FF)
        if low & 0x3FF == 0 and high - low >= 0x3FF:
            last = ((high + 1) & ~0x3FF) - 1
        for first in _unit(0xD800 + (low >> 10), 0xD800 + (last >> 10)):
            for second in _unit(0xDC00 + (low & 0x3FF), 0xDC00 + (last & 0x3FF)):
                yield sequence(first, second)
        low = last + 1


def _unit(low: int, high: int) -> Iterator[Expression]:
    """The escapes of the code units of an interval, by four hexadecimal digits."""
    for digits in _hexadecimal(low, high, 4):
        yield sequence(text(rb"\u"), digits)


def _hexadecimal(low: int, high: int, count: int) -> Iterator[Expression]:
    """Numbers of so many digits, as sequences of intervals of digits."""
    step = 16 ** (count - 1)
    begin, end = low // step, high // step
    if low % step == 0 and high % step == step - 1:
        yield sequence(_digit(begin, end), *[_digit(0, 15)] * (count - 1))
    elif begin == end:
        for rest in _hexadecimal(low % step, high % step, count - 1):
            yield sequence(_digit(begin, begin), rest)
    else:
        yield from _hexadecimal(low, (begin + 1) * step - 1, count)
        if end - begin > 1:
            yield from _hexadecimal((begin + 1) * step, end * step - 1, count)
        yield from _hexadecimal(end * step, high, count)


def _digit(low: int, high: int) -> Expression:
    places = {ord(f(f"{i:x}")) for i in range(low, high + 1) for f in (str.lower, str.upper)}
    return symbols([(place, place) for place in places])


def _raw(low: int, high: int) -> Iterator[Expression]:
    """The bytes of the code points of an interval, as sequences of intervals of bytes."""
    for begin, end in zip((0, *(last + 1 for last in _LAST[:-1])), _LAST, strict=True):
        if low <= end and high >= begin:
            yield from _of_one_length(max(low, begin), min(high, end))


def _of_one_length(low: int, high: int) -> Iterator[Expression]:
    first, last = chr(low).encode(), chr(high).encode()
    for i in range(1, len(first)):
        mask = (1 << 6 * i) - 1
        if low >> 6 * i != high >> 6 * i:
            if low & mask:
                yield from _of_one_length(low, low | mask)
                yield from _of_one_length((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from _of_one_length(low, (high & ~mask) - 1)
                yield from _of_one_length(high & ~mask, high)
                return
    yield sequence(*(Symbols(((a, b),)) for a, b in zip(first, last, strict=True)))
