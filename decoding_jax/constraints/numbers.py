"""The numbers of JSON that follow bounds, as automata over their digits.

Sets are those of values: a text without an exponent is in a set whenever another text of its value
is, which makes complements and intersections exact. Texts with an exponent are in a set only as a
whole, by their sign.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from decimal import Decimal
from typing import Any

from decoding_jax.constraints import automata
from decoding_jax.constraints.automata import Edge
from decoding_jax.constraints.expressions import (
    EMPTY,
    NOTHING,
    Compiled,
    Expression,
    Repeat,
    Symbols,
    Without,
    both,
    compiled,
    optional,
    sequence,
    text,
    union,
)

DIGITS = 20
"""The digits before the point that a number may have where its bounds need no more."""

_MOST_REMAINDERS = 1000
_DIGIT, _NONZERO, _ZERO = Symbols(((48, 57),)), Symbols(((49, 57),)), Symbols(((48, 48),))
_POINT, _MINUS = Symbols(((46, 46),)), Symbols(((45, 45),))
_ANY_DIGITS = Repeat(_DIGIT, 0, None)
_SOME_DIGITS = Repeat(_DIGIT, 1, None)
_FRACTION = optional(sequence(_POINT, _SOME_DIGITS))
_ZEROS = optional(sequence(_POINT, Repeat(_ZERO, 1, None)))
_WHOLE = union(_ZERO, sequence(_NONZERO, _ANY_DIGITS))
_UNSIGNED = sequence(_WHOLE, _FRACTION)
_SIGNED = sequence(optional(_MINUS), _UNSIGNED)
_INTEGERS = sequence(optional(_MINUS), _WHOLE, _ZEROS)
_NO_FRACTION = sequence(optional(_MINUS), _WHOLE)
_EXPONENT = sequence(
    Symbols(((69, 69), (101, 101))),
    optional(Symbols(((43, 43), (45, 45)))),
    Repeat(_DIGIT, 1, 2),
)

Exponents = bool | None
"""Whether all texts with an exponent are in a set, none, or some of them."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A set of numbers.

    Attributes:
      decimals: the texts without an exponent.
      negative: whether texts with a minus and an exponent are in it.
      positive: whether other texts with an exponent are.
      values: the numbers, where they are listed.
      digits: how many digits before the point its bounds need.
    """

    decimals: Expression = _SIGNED
    negative: Exponents = True
    positive: Exponents = True
    values: tuple[Any, ...] | None = None
    digits: int = DIGITS

    @property
    def is_empty(self) -> bool:
        """Whether there is none, as far as it is known."""
        if self.values is not None:
            return not self.values
        return not self.negative and not self.positive and compiled(self.decimals).is_empty


ALL = Numbers()
NONE = Numbers(NOTHING, False, False, ())


def both_of(first: Numbers, second: Numbers) -> Numbers:
    """The numbers of two sets."""
    decimals = both(first.decimals, second.decimals)
    values = None
    if first.values is not None or second.values is not None:
        one, other = (first, second) if first.values is not None else (second, first)
        values = tuple(v for v in one.values or () if _is_in(v, other))
        decimals = union(*map(_of_value, values))
    return Numbers(
        decimals,
        _and(first.negative, second.negative),
        _and(first.positive, second.positive),
        values,
        max(first.digits, second.digits),
    )


def either_of(first: Numbers, second: Numbers) -> Numbers:
    """The numbers of one of two sets."""
    listed = first.values is not None and second.values is not None
    values = (*(first.values or ()), *(second.values or ()))
    return Numbers(
        union(first.decimals, second.decimals),
        _not(_and(_not(first.negative), _not(second.negative))),
        _not(_and(_not(first.positive), _not(second.positive))),
        values if listed else None,
        max(first.digits, second.digits),
    )


def others_than(these: Numbers) -> Numbers:
    """The numbers that are not in a set."""
    return Numbers(
        Without(_SIGNED, these.decimals),
        _not(these.negative),
        _not(these.positive),
        digits=these.digits,
    )


def _and(first: Exponents, second: Exponents) -> Exponents:
    if first is False or second is False:
        return False
    return True if first and second else None


def _not(one: Exponents) -> Exponents:
    return None if one is None else not one


def of_values(values: tuple[Any, ...]) -> Numbers:
    """A list of numbers."""
    return Numbers(union(*map(_of_value, values)), None, None, values)


def integers(with_zeros: bool) -> Numbers:
    """The integers, and perhaps numbers such as 1.0 among them."""
    return Numbers(_INTEGERS if with_zeros else _NO_FRACTION, None, None)


def at_least(bound: int | float, exclusive: bool) -> Numbers:
    """The numbers of at least, or above, a bound.

    Example:
      >>> some = compiled(at_least(-1.5, False).decimals)
      >>> [some.accepts(text) for text in (b"-1.50", b"-1.51", b"3", b"-0")]
      [True, False, True, True]
    """
    limit = exact(bound)
    if limit > 0 or (limit == 0 and exclusive):
        above = _unsigned_from(limit, exclusive)
        return Numbers(above, None, None, digits=_digits(limit))
    below = Without(_UNSIGNED, _unsigned_from(-limit, not exclusive))
    return Numbers(union(_UNSIGNED, sequence(_MINUS, below)), None, True, digits=_digits(limit))


def at_most(bound: int | float, exclusive: bool) -> Numbers:
    """The numbers of at most, or below, a bound."""
    found = at_least(bound, not exclusive)
    limit = exact(bound)
    negative = True if limit > 0 or (limit == 0 and not exclusive) else None
    return Numbers(Without(_SIGNED, found.decimals), negative, None, digits=found.digits)


def _digits(limit: Decimal) -> int:
    return max(DIGITS, min(len(f"{abs(limit):f}".partition(".")[0]) + 1, 300))


def exact(number: int | float) -> Decimal:
    """A number as JSON writes it."""
    return Decimal(number) if isinstance(number, int) else Decimal(repr(number))


@functools.cache
def _unsigned_from(limit: Decimal, exclusive: bool) -> Expression:
    """The numbers without a sign of at least, or above, a limit that is not negative."""
    whole, _, fraction = f"{limit:f}".partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    size = len(whole)
    more = [sequence(_NONZERO, Repeat(_DIGIT, size, None), _FRACTION)]
    for i, digit in enumerate(whole):
        if digit != "9":
            higher = Symbols(((ord(digit) + 1, 57),))
            more.append(
                sequence(
                    _text(whole[:i]), higher, Repeat(_DIGIT, size - i - 1, size - i - 1), _FRACTION
                )
            )
    after = []
    for i, digit in enumerate(fraction):
        if digit != "9":
            after.append(
                sequence(_text(fraction[:i]), Symbols(((ord(digit) + 1, 57),)), _ANY_DIGITS)
            )
    nonzero = sequence(Repeat(_ZERO, 0, None), _NONZERO, _ANY_DIGITS)
    if fraction:
        after.append(sequence(_text(fraction), nonzero if exclusive else _ANY_DIGITS))
    elif exclusive:
        after.append(nonzero)
    same = sequence(_text(whole), _POINT, union(*after)) if after else NOTHING
    if not fraction and not exclusive:
        same = sequence(_text(whole), _FRACTION)
    return union(*more, same)


def multiples_of(number: int | float) -> Numbers | None:
    """The multiples of a number above 0; None where they have too many remainders."""
    _, digits, places = exact(number).normalize().as_tuple()
    assert isinstance(places, int)
    step = int("".join(map(str, digits)))
    if places > 0:
        step, places = step * 10**places, 0
    decimals = -places
    if step > _MOST_REMAINDERS or decimals > 8:
        return None
    return Numbers(Compiled(_multiples(step, decimals)), None, None)


@functools.lru_cache(64)
def _multiples(step: int, decimals: int) -> automata.Automaton:
    number: dict[tuple[str, int, int], int] = {("start", 0, 0): 0}
    queue = [("start", 0, 0)]
    edges: list[list[Edge]] = []
    accepting: list[bool] = []

    def to(key: tuple[str, int, int]) -> int:
        if key not in number:
            number[key] = len(queue)
            queue.append(key)
        return number[key]

    for kind, rest, places in queue:  # which grows
        row: list[Edge] = []
        if kind in ("start", "minus"):
            row += [(48, 48, to(("zero", 0, 0)))]
            row += [(48 + d, 48 + d, to(("whole", d % step, 0))) for d in range(1, 10)]
            if kind == "start":
                row.insert(0, (45, 45, to(("minus", 0, 0))))
        else:
            if kind == "whole":
                row += [
                    (48 + d, 48 + d, to(("whole", (10 * rest + d) % step, 0))) for d in range(10)
                ]
            if kind in ("whole", "zero"):
                row.insert(0, (46, 46, to(("point", rest, 0))))
            elif places < decimals:
                row += [
                    (48 + d, 48 + d, to(("places", (10 * rest + d) % step, places + 1)))
                    for d in range(10)
                ]
            else:
                row.append((48, 48, to(("places", rest, places))))
        edges.append(row)
        whole = rest * 10 ** (decimals - places)
        accepting.append(kind in ("zero", "whole", "places") and whole % step == 0)
    return automata.of_edges(edges, accepting)


def _text(digits: str) -> Expression:
    return text(digits.encode())


def _is_in(value: int | float, numbers: Numbers) -> bool:
    """Whether a number is in a set."""
    return compiled(numbers.decimals).accepts(f"{exact(value):f}".encode())


def _of_value(value: int | float) -> Expression:
    """The texts of one number without an exponent."""
    number = exact(value)
    whole, _, fraction = f"{abs(number):f}".partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    zeros = Repeat(_ZERO, 0, None)
    rest = sequence(_POINT, _text(fraction), zeros) if fraction else _ZEROS
    sign = optional(_MINUS) if number == 0 else _MINUS if number < 0 else EMPTY
    return sequence(sign, _text(whole), rest)


def texts_of(numbers: Numbers) -> Expression:
    """The texts of some numbers, all of which can be read as finite ones.

    Integers have no point, and listed numbers are written as ``json.dumps`` does.
    """
    if numbers.values is not None:
        made = [json.dumps(value) for value in numbers.values]
        made += [str(int(v)) for v in numbers.values if isinstance(v, float) and v.is_integer()]
        return union(*(text(one.encode()) for one in made))
    signs = [(EMPTY, numbers.positive), (_MINUS, numbers.negative)]
    size = numbers.digits
    whole = union(_ZERO, sequence(_NONZERO, Repeat(_DIGIT, 0, size - 1)))
    is_whole = compiled(Without(numbers.decimals, _INTEGERS)).is_empty
    shape = sequence(optional(_MINUS), whole, EMPTY if is_whole else _FRACTION)
    parts: list[Expression] = [both(numbers.decimals, shape)]
    for sign, exponents in signs:
        if exponents and not is_whole:
            parts.append(sequence(sign, whole, _FRACTION, _EXPONENT))
    return Compiled(compiled(union(*parts)))
