"""Regular expressions in the syntax of ECMA-262 or of Python's ``re``, as automata.

Assertions (``^``, ``$``, ``\\b`` and what looks ahead or behind) become marks in an expression. The
texts with marks are those in which each mark stands where its assertion holds; then the marks are
erased. Groups that are atomic and references to groups are not regular, or not of a language alone,
and are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable

import numpy as np

from decoding_jax import fields
from decoding_jax.constraints import automata
from decoding_jax.constraints.automata import Automaton, Interval, TooManyStatesError
from decoding_jax.constraints.encodings import CHARACTERS
from decoding_jax.constraints.expressions import (
    EMPTY,
    Compiled,
    Expression,
    Repeat,
    Series,
    Symbols,
    Union,
    Without,
    compiled,
    excluded,
    optional,
    sequence,
    symbols,
    text,
    union,
)

_MARK = 1 << 20 | 1 << 17  # with the number of an assertion; above all code points
_MARKS = Symbols(((_MARK, _MARK + (1 << 16)),))
_ANY = Repeat(CHARACTERS, 0, None)
_LINE = Symbols(((10, 10),))
_MOST_REPEATS = 65_535
_DIGITS = symbols([(48, 57)])
_WORD = symbols([(48, 57), (65, 90), (95, 95), (97, 122)])
_ECMA_SPACES = symbols(
    [
        *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ]
)
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12}


class _PatternError(Exception):
    """What is wrong with a pattern."""


@dataclasses.dataclass(frozen=True)
class _Assertion:
    """What holds at a place: the rest of the text, or the text before, is one of some texts."""

    ahead: bool
    negated: bool
    texts: Expression  # with marks perhaps
    reach: Expression | None = None  # what is looked for, if the rest may go on in any way


def searched(pattern: str, place: str) -> Expression:
    """The texts in which an ECMA-262 pattern matches somewhere, as JSON Schema asks for.

    The pattern is read as with the flag ``u``, but for escapes of punctuation and single brackets.

    Raises:
      ValueError: in one line that begins with ``place``, for a pattern that is none, is not
        regular, or has too many states.

    Example:
      >>> compiled(searched("^a|b$", "pattern")).accepts(map(ord, "xb"))
      True
    """
    return _read(pattern, place, "ecma", whole=False)


def matched(pattern: str, place: str, *, alone: bool = True) -> Expression:
    """The texts that a pattern in the syntax of Python's ``re`` matches as a whole.

    Args:
      pattern: the pattern.
      place: where it is, for errors.
      alone: whether the text is nothing but the match. Otherwise an assertion about what is
        before or after the match is an error.

    Raises:
      ValueError: as for ``searched``.

    Example:
      >>> compiled(matched("(?i)a.{2}(?<!x)", "pattern")).accepts(map(ord, "Abc"))
      True
    """
    return _read(pattern, place, "python", whole=True, alone=alone)


def _read(pattern: str, place: str, dialect: str, *, whole: bool, alone: bool = True) -> Expression:
    name = "ECMA-262" if dialect == "ecma" else "Python's re"
    if not isinstance(pattern, str):
        raise fields.error(place, "a regular expression", pattern)
    try:
        return _compiled(pattern, dialect, whole, alone)
    except _PatternError as error:
        got = f"{fields.describe(pattern)} ({error})"
        raise ValueError(f"{place}: expected a regular expression of {name}, got {got}") from None
    except (TooManyStatesError, RecursionError):
        expected = f"a pattern of at most {automata.MOST_STATES:,} states"
        raise ValueError(f"{place}: expected {expected}, got {fields.describe(pattern)}") from None


@functools.lru_cache(1024)
def _compiled(pattern: str, dialect: str, whole: bool, alone: bool) -> Compiled:
    parser = _Parser(pattern, dialect)
    made = parser.whole()
    if not whole:
        parts = made.parts if isinstance(made, Union) else (made,)
        made = union(*(_unanchored(part, parser) for part in parts))
    elif alone:
        made = _trimmed(made, parser)[0]
    return Compiled(_resolved(made, parser.assertions, alone))


def _trimmed(part: Expression, parser: _Parser) -> tuple[Expression, bool, bool]:
    """An expression without the anchors around it, and whether it has them."""
    items = list(part.parts) if isinstance(part, Series) else [part]
    begins = bool(items) and parser.is_anchor(items[0], "^")
    items = items[begins:]
    ends = bool(items) and parser.is_anchor(items[-1], "$")
    return sequence(*items[: len(items) - ends]), begins, ends


def _unanchored(part: Expression, parser: _Parser) -> Expression:
    inner, begins, ends = _trimmed(part, parser)
    return sequence(*([] if begins else [_ANY]), inner, *([] if ends else [_ANY]))


def _marks_of(made: Expression) -> set[int]:
    """The marks in an expression."""
    if isinstance(made, Symbols):
        low = made.intervals[0][0] if made.intervals else 0
        return {low} if low >= _MARK else set()
    if isinstance(made, Repeat):
        return _marks_of(made.part)
    return set().union(*map(_marks_of, getattr(made, "parts", ())))


def _resolved(made: Expression, assertions: list[_Assertion], alone: bool = True) -> Automaton:
    """The texts of an expression with marks, where each assertion holds."""
    marks = _marks_of(made)
    if not marks:
        return compiled(made)
    anything = Repeat(Symbols((*CHARACTERS.intervals, *_MARKS.intervals)), 0, None)
    found: Expression = made
    for mark in sorted(marks):
        one = assertions[mark - _MARK]
        texts = _resolved(one.texts, assertions)
        is_bad = Compiled(texts) if one.negated else Without(_ANY, Compiled(texts))
        bad = Compiled(_with_marks(compiled(is_bad)))
        here = Symbols(((mark, mark),))
        parts = (anything, here, bad) if one.ahead else (bad, here, anything)
        if not alone:
            _check_inside(made, parts, one, assertions)
        found = Without(found, sequence(*parts))
    return automata.without_symbols(compiled(found), _MARK)


def _check_inside(
    made: Expression,
    parts: tuple[Expression, ...],
    one: _Assertion,
    assertions: list[_Assertion],
) -> None:
    """Checks that no assertion depends on what is outside of a match."""
    anything, here = (parts[0], parts[1]) if one.ahead else (parts[2], parts[1])
    if one.reach is None:
        raise _PatternError("an anchor is about what is outside of a terminal")
    reach = _resolved(one.reach, assertions)
    # What is found only with more text: a true part of what is looked for.
    partial = _begun(reach) if one.ahead else _ended(reach)
    rest = Compiled(_with_marks(compiled(Without(Compiled(partial), one.texts))))
    doubtful = Union((rest, EMPTY)) if partial.accepting[0] else rest
    wanted = sequence(anything, here, doubtful) if one.ahead else sequence(doubtful, here, anything)
    both = compiled(Without(made, Without(Repeat(_everything(), 0, None), wanted)))
    if not both.is_empty:
        raise _PatternError("it looks at what is outside of a terminal")


def _everything() -> Symbols:
    return Symbols((*CHARACTERS.intervals, *_MARKS.intervals))


def _begun(automaton: Automaton) -> Automaton:
    """The beginnings of texts."""
    everywhere = np.full_like(automaton.accepting, not automaton.is_empty)
    return automata.reduced(automaton.table, automaton.starts, everywhere)


def _ended(automaton: Automaton) -> Automaton:
    """The ends of texts."""
    edges = automaton.edges()
    count = len(edges)
    return automata.determinised(
        [*edges, []], [[]] * count + [list(range(count))], [*automaton.accepting.tolist(), False],
        count,
    )  # fmt: skip


def _with_marks(automaton: Automaton) -> Automaton:
    """The texts of an automaton, with marks anywhere."""
    [(low, high)] = _MARKS.intervals
    edges = [[*row, (low, high, i)] for i, row in enumerate(automaton.edges())]
    return automata.of_edges(edges, automaton.accepting.tolist())


class _Parser:
    """Reads a pattern.

    Attributes:
      assertions: those that the marks of the expression stand for.
    """

    def __init__(self, pattern: str, dialect: str):
        self._text, self._at, self._python = pattern, 0, dialect == "python"
        self._flags = ""
        self.assertions: list[_Assertion] = []
        self._anchors: dict[int, str] = {}

    def is_anchor(self, part: Expression, which: str) -> bool:
        """Whether a part is an anchor of the whole text."""
        return isinstance(part, Symbols) and self._anchors.get(part.intervals[0][0]) == which

    def whole(self) -> Expression:
        """The expression of the pattern."""
        if self._python and (flags := re.match(r"\(\?([aimsux]+)\)", self._text)):
            self._flags, self._at = flags[1], flags.end()
        made = self._union()
        if self._at < len(self._text):
            raise _PatternError("a closing parenthesis without an opening one")
        return made

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _take(self, expected: str = "") -> str:
        found = self._peek(len(expected) or 1)
        if not found or (expected and found != expected):
            raise _PatternError(f"it ends where {expected or 'a character'} is expected")
        self._at += len(found)
        return found

    def _found(self, pattern: str) -> re.Match[str] | None:
        """What follows, if it matches; it is then read."""
        found = re.compile(pattern).match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _union(self) -> Expression:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._take()
            parts.append(self._sequence())
        return union(*parts)

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while (follows := self._peek()) and follows not in "|)":
            if "x" in self._flags and self._found(r"\s+|#[^\n]*"):
                continue
            atom = self._atom()
            parts.append(EMPTY if atom is None else self._repeated(atom))
        return sequence(*parts)

    def _repeated(self, atom: Expression) -> Expression:
        if "x" in self._flags:
            self._found(r"(\s+|#[^\n]*)+")
        braces = r"\{(\d+)(,(\d*))?\}" if not self._python else r"\{(?=\d|,\d)(\d*)(,(\d*))?\}"
        if simple := self._found(r"[*+?]"):
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[simple[0]]
        elif counts := self._found(braces):
            low = int(counts[1] or 0)
            high = low if counts[2] is None else int(counts[3]) if counts[3] else None
            if max(low, high or 0) > _MOST_REPEATS:
                raise _PatternError(f"more than {_MOST_REPEATS:,} repetitions")
            if high is not None and high < low:
                raise _PatternError("a repetition with a minimum above its maximum")
        else:
            return atom
        if self._peek() == "?":
            self._take()
        elif self._peek() == "+" or self._found(r"[*]") or re.match(braces, self._text[self._at :]):
            raise _PatternError("a repetition of a repetition")
        return atom if (low, high) == (1, 1) else Repeat(atom, low, high)

    def _atom(self) -> Expression | None:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._folded(self._class())
        if character == ".":
            if "s" in self._flags:
                return CHARACTERS
            line = [(10, 10)] if self._python else [(10, 10), (13, 13), (0x2028, 0x2029)]
            return excluded(symbols(line), CHARACTERS)
        if character == "^":
            if "m" in self._flags:
                return self._mark(False, False, optional(sequence(_ANY, _LINE)))
            return self._anchor("^")
        if character == "$":
            if "m" in self._flags:
                return self._mark(True, False, optional(sequence(_LINE, _ANY)))
            return self._anchor("$", optional(_LINE) if self._python else EMPTY)
        if character in "*+?" or (
            character == "{" and re.match(r"\d+(,\d*)?\}", self._text[self._at :])
        ):
            raise _PatternError("a repetition of nothing")
        if character == "\\":
            return self._escape()
        return self._folded(_one(ord(character)))

    def _anchor(self, which: str, texts: Expression = EMPTY) -> Expression:
        made = self._mark(which == "$", False, texts)
        self._anchors[made.intervals[0][0]] = which
        return made

    def _mark(
        self, ahead: bool, negated: bool, texts: Expression, reach: Expression | None = None
    ) -> Symbols:
        self.assertions.append(_Assertion(ahead, negated, texts, reach))
        return _one(_MARK + len(self.assertions) - 1)

    def _group(self) -> Expression | None:
        flags = self._flags
        if looks := self._found(r"\?(<?)([=!])"):
            inner = self._union()
            self._take(")")
            self._flags = flags
            return self._looking(not looks[1], looks[2] == "!", inner)
        if self._python and self._found(r"\?#[^)]*\)"):
            return None
        if self._python and (given := self._found(r"\?([aimsux]*)(-[imsx]+)?:")):
            self._flags = "".join({*flags, *given[1]} - {*(given[2] or "")})
        elif self._peek() == "?" and not self._found(
            r"\?:|\?P<[^\W\d]\w*>" if self._python else r"\?:|\?<[^\W\d]\w*>"
        ):
            raise _PatternError(f"(?{self._peek(2)[1:]} is not followed")
        inner = self._union()
        self._take(")")
        self._flags = flags
        return inner

    def _looking(self, ahead: bool, negated: bool, inner: Expression) -> Expression:
        """What looks ahead or behind for an expression.

        An assertion in the other direction that is at the same place stands beside it.
        """

        def is_other(part: Expression) -> bool:
            marks = _marks_of(part)
            return any(self.assertions[mark - _MARK].ahead != ahead for mark in marks)

        if not is_other(inner):
            around = sequence(inner, _ANY) if ahead else sequence(_ANY, inner)
            return self._mark(ahead, negated, around, inner)
        if isinstance(inner, Union):
            made = [self._looking(ahead, negated, part) for part in inner.parts]
            return sequence(*made) if negated else union(*made)
        items = list(inner.parts) if isinstance(inner, Series) else [inner]
        first = items.pop(0 if ahead else -1)
        if isinstance(first, Union) and is_other(first):  # a boundary
            each = ([part, *items] if ahead else [*items, part] for part in first.parts)
            return self._looking(ahead, negated, union(*(sequence(*one) for one in each)))
        if not isinstance(first, Symbols) or not is_other(first):
            raise _PatternError("an assertion within one in the other direction")
        rest = self._looking(ahead, negated, sequence(*items))
        if not negated:
            return sequence(first, rest)
        [mark] = _marks_of(first)
        one = self.assertions[mark - _MARK]
        return union(self._mark(one.ahead, not one.negated, one.texts, one.reach), rest)

    def _class(self) -> Symbols:
        negated = self._peek() == "^"
        if negated:
            self._take()
        parts: list[Interval] = []
        first = True
        while (first and self._python and self._peek() == "]") or self._peek() != "]":
            first = False
            low = self._in_class()
            if self._peek() != "-" or self._peek(2) == "-]":
                parts += low.intervals
                continue
            self._take()
            high = self._in_class()
            ends = low.intervals, high.intervals
            if any(len(e) != 1 or e[0][0] != e[0][1] for e in ends):
                if self._python:
                    raise _PatternError("a range that ends with a class")
                parts += [*low.intervals, (45, 45), *high.intervals]
                continue
            if ends[0][0][0] > ends[1][0][0]:
                raise _PatternError("a range that ends before it begins")
            parts.append((ends[0][0][0], ends[1][0][0]))
        self._take()
        made = symbols(parts)
        return excluded(self._folded(made), CHARACTERS) if negated else made

    def _in_class(self) -> Symbols:
        character = self._take()
        if character != "\\":
            return _one(ord(character))
        if self._peek() == "b":
            self._take()
            return _one(8)
        made = self._escape(in_class=True)
        if not isinstance(made, Symbols) or _marks_of(made):
            raise _PatternError("an assertion within a class")
        return made

    def _escape(self, in_class: bool = False) -> Expression:
        letter = self._take()
        if letter in "dDwWsS":
            made = self._kind(letter.lower())
            return excluded(made, CHARACTERS) if letter.isupper() else made
        if letter in "bB" and not in_class:
            return self._boundary(letter == "B")
        if letter in _CONTROLS:
            return _one(_CONTROLS[letter])
        if self._python and letter in "AZz":
            return self._anchor("^" if letter == "A" else "$")
        if self._python and letter == "a":
            return _one(7)
        if (code := self._code(letter)) is not None:
            made = _one(code)
            return made if in_class else self._folded(made)
        if not self._python and letter in "pP" and (found := self._found(r"\{([\w=]+)\}")):
            made = _property(found[1])
            return excluded(made, CHARACTERS) if letter == "P" else made
        if letter.isascii() and letter.isalnum():
            raise _PatternError(f"\\{letter} is not followed")
        return _one(ord(letter))

    def _code(self, letter: str) -> int | None:
        """The code point of an escape by its number."""
        if letter == "0" and not re.match(r"\d", self._peek()):
            return 0
        if self._python and letter in "01234567" and (found := self._found(r"[0-7]{1,2}")):
            if letter != "0" and len(found[0]) < 2:
                raise _PatternError("a reference to a group")
            return int(letter + found[0], 8)
        if letter == "x" and (found := self._found(r"[0-9a-fA-F]{2}")):
            return int(found[0], 16)
        if letter == "u" and (found := self._found(r"[0-9a-fA-F]{4}")):
            code = int(found[0], 16)
            if 0xD800 <= code < 0xDC00 and (low := self._found(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")):
                code = 0x10000 + (code - 0xD800 << 10) + int(low[1], 16) - 0xDC00
            if 0xD800 <= code < 0xE000:
                raise _PatternError("a surrogate, which no text has")
            return code
        if self._python and letter == "U" and (found := self._found(r"[0-9a-fA-F]{8}")):
            return int(found[0], 16)
        if not self._python and letter == "u" and (found := self._found(r"\{([0-9a-fA-F]+)\}")):
            return int(found[1], 16)
        if not self._python and letter == "c" and (found := self._found(r"[A-Za-z]")):
            return ord(found[0]) % 32
        return None

    def _kind(self, letter: str) -> Symbols:
        if self._python and "a" not in self._flags:
            return _unicode_kind(letter)
        if letter == "s" and not self._python:
            return _ECMA_SPACES
        return {"d": _DIGITS, "w": _WORD, "s": symbols([(9, 13), (32, 32)])}[letter]

    def _boundary(self, negated: bool) -> Expression:
        word = self._kind("w")
        before, after = sequence(_ANY, word), sequence(word, _ANY)
        made = []
        for is_word in (True, False):
            made.append(
                sequence(
                    self._mark(False, not is_word, before, word),
                    self._mark(True, is_word != negated, after, word),
                )
            )
        return union(*made)

    def _folded(self, made: Symbols) -> Symbols:
        """With the characters that differ in case alone, if the pattern asks for it."""
        if "i" not in self._flags:
            return made
        alike = _cases()
        found = [*made.intervals]
        for low, high in made.intervals:
            if high - low > 10_000:  # Most characters have no case, so these are looked up.
                near = [c for c in alike if low <= c <= high]
            else:
                near = [c for c in range(low, high + 1) if c in alike]
            found += [(other, other) for c in near for other in alike[c]]
        return symbols(found)


def _one(code: int) -> Symbols:
    return Symbols(((code, code),))


def _where(is_in: Callable[[str], bool]) -> Symbols:
    """The characters for which something holds."""
    made: list[Interval] = []
    begin = None
    for code in range(0x110001):
        inside = code < 0x110000 and not 0xD800 <= code < 0xE000 and is_in(chr(code))
        if inside and begin is None:
            begin = code
        elif not inside and begin is not None:
            made.append((begin, code - 1))
            begin = None
    return Symbols(tuple(made))


@functools.cache
def _unicode_kind(letter: str) -> Symbols:
    kinds = {"d": str.isdecimal, "s": str.isspace, "w": lambda c: c.isalnum() or c == "_"}
    return _where(kinds[letter])


@functools.cache
def _property(name: str) -> Symbols:
    """The characters of a general category, by its short name."""
    short = name.removeprefix("General_Category=").removeprefix("gc=")
    long = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z"}
    long |= {"Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Decimal_Number": "Nd"}
    short = long.get(short, short)
    if not re.fullmatch(r"L[ulmto]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfo]", short):
        raise _PatternError(f"\\p{{{name}}} is not followed")
    return _where(lambda c: unicodedata.category(c).startswith(short))


@functools.cache
def _cases() -> dict[int, list[int]]:
    """The characters that ``re.IGNORECASE`` takes for each of those with several cases."""
    alike: dict[int, set[int]] = {}
    for code in range(0x110000):
        character = chr(code)
        for other in (character.lower(), character.upper()):
            if len(other) == 1 and other != character:
                group = alike.get(code, {code}) | alike.get(ord(other), {ord(other)})
                for one in group:
                    alike[one] = group
    return {code: sorted(group) for code, group in alike.items()}


def literal(string: str) -> Expression:
    """One text."""
    return text([ord(character) for character in string])
