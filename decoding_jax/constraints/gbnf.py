"""Automata of the rules of grammars in GBNF, the notation of llama.cpp.

https://github.com/ggml-org/llama.cpp/tree/master/grammars describes it. Tokens in angle brackets,
which that of a tokenizer alone has, are refused.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

from decoding_jax import fields
from decoding_jax.constraints.automata import Automaton
from decoding_jax.constraints.definitions import reference
from decoding_jax.constraints.encodings import CHARACTERS, in_utf8
from decoding_jax.constraints.expressions import (
    Compiled,
    Expression,
    Repeat,
    Symbols,
    compiled,
    excluded,
    sequence,
    symbols,
    union,
)

_ESCAPE = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[trn\\\"\[\]-])"
_TOKEN = re.compile(
    rf"""(?P<space>[ \t]+ | \#[^\r\n]*) | (?P<line>[\r\n]+)
    | (?P<rule>[A-Za-z0-9_-]+)[ \t]*::= | (?P<name>[A-Za-z0-9_-]+) | (?P<mark>[()|])
    | "(?P<text>(?:{_ESCAPE}|[^"\\])*)"
    | \[(?P<class>(?:\^|(?!\^))(?:{_ESCAPE}|[^]\\])+)\] | (?P<any>\.)
    | (?P<repeat>[*+?] | \{{[ ]*[0-9]+[ ]*(?:,[ ]*[0-9]*[ ]*)?\}})""",
    re.VERBOSE,
)
_ONE = f"({_ESCAPE}|[^\\\\])"
_RANGE = re.compile(f"{_ONE}(?:-{_ONE})?", re.DOTALL)
_SHORT = {"t": "\t", "r": "\r", "n": "\n"}
_TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def automata_of(grammar: str, name: str = "grammar") -> tuple[list[Automaton], list[str]]:
    r"""The automata of the rules of a grammar.

    Args:
      grammar: the grammar, whose texts are those of the rule ``root``.
      name: the name of the argument, for errors.

    Returns:
      As ``json_texts.automata_of``; the rule ``root`` is the first one.

    Raises:
      ValueError: in one line, for what is no such grammar.

    Example:
      >>> made, places = automata_of('root ::= [a-c] (", " item)*\nitem ::= "x"{2,3}')
      >>> places, made[1].accepts(b"xxx"), made[1].accepts(b"x")
      (['grammar.root', 'grammar.item'], True, False)
    """
    if not isinstance(grammar, str):
        raise fields.error(name, "a grammar in GBNF", grammar)
    rules = _Reader(grammar, name).rules()
    return [*map(compiled, rules.values())], [f"{name}.{key}" for key in rules]


class _Token(NamedTuple):
    """A token of a grammar: its type, its value, and its text in the grammar."""

    kind: str
    value: Any
    source: str


class _Reader:
    """Reads the tokens of a grammar, one after another."""

    def __init__(self, grammar: str, name: str):
        self._name, self._tokens, at = name, list[_Token](), 0
        while at < len(grammar):
            found = _TOKEN.match(grammar, at)
            if found is None:
                self._refuse("a grammar in GBNF", grammar[at:].partition("\n")[0])
            kind, at = str(found.lastgroup), found.end()
            if kind != "space":
                self._tokens.append(_Token(kind, self._value(kind, found[kind]), found[0]))
        self._tokens.append(_Token("end", "", ""))
        names = dict.fromkeys(["root", *(x.value for x in self._tokens if x.kind == "rule")])
        self._number, self._at = {one: i for i, one in enumerate(names)}, 0

    def rules(self) -> dict[str, Expression]:
        """The expression of each rule, the one of ``root`` first."""
        found = dict[str, Expression]()
        while (first := self._without_lines()).kind != "end":
            if first.kind != "rule" or first.value in found:
                expected = "rules with ::=, each name once, on one line or in parentheses"
                self._refuse(expected, first.source)
            self._at += 1
            self._without_lines()
            found[first.value] = self._union(nested=False)
            if (after := self._tokens[self._at]).kind not in ("line", "end"):
                self._refuse("each rule on a line of its own", after.source)
        if "root" not in found:
            self._refuse("a rule root", [*found])
        return {key: found[key] for key in self._number}

    def _without_lines(self) -> _Token:
        """The next token that is not the end of a line."""
        while self._tokens[self._at].kind == "line":
            self._at += 1
        return self._tokens[self._at]

    def _union(self, nested: bool) -> Expression:
        parts = [self._sequence(nested)]
        while self._tokens[self._at].source == "|":
            self._at += 1
            self._without_lines()
            parts.append(self._sequence(nested))
        return union(*parts)

    def _sequence(self, nested: bool) -> Expression:
        parts: list[Expression] = []
        while True:
            kind, value, source = self._without_lines() if nested else self._tokens[self._at]
            if kind == "name":
                if value not in self._number:
                    self._refuse("a rule of each name", value)
                parts.append(reference(self._number[value]))
            elif kind in ("text", "class", "any"):
                parts.append(value)
            elif kind == "repeat":
                if not parts:
                    self._refuse("something before a repetition", "nothing")
                parts[-1] = Repeat(parts[-1], *value)
            elif source == "(":
                self._at += 1
                parts.append(self._union(nested=True))
                if (last := self._tokens[self._at].source) != ")":
                    self._refuse("a closing parenthesis", last)
            else:
                return sequence(*parts)
            self._at += 1

    def _value(self, kind: str, found: str) -> Any:
        """What a token stands for."""
        if kind == "text":
            each = (self._code(one) for one in re.findall(_ONE, found, re.DOTALL))
            return sequence(*(_bytes_of(Symbols(((code, code),))) for code in each))
        if kind == "any":
            return _bytes_of(CHARACTERS)
        if kind == "class":
            codes = [
                [self._code(one) for one in pair if one]
                for pair in _RANGE.findall(found.removeprefix("^"))
            ]
            if any(pair[0] > pair[-1] for pair in codes):
                self._refuse("ranges of characters in their order", found)
            some = symbols([(pair[0], pair[-1]) for pair in codes])
            return _bytes_of(excluded(some, CHARACTERS) if found[0] == "^" else some)
        if kind == "repeat" and found not in _TIMES:
            low, comma, high = found.strip("{}").partition(",")
            most = int(high) if high.strip() else None if comma else int(low)
            if most is not None and most < int(low):
                self._refuse("repetitions {m,n} of which n is m or more", found)
            return int(low), most
        return _TIMES.get(found, found)

    def _code(self, one: str) -> int:
        """The code point of a character or of an escape."""
        short = one if len(one) == 1 else _SHORT.get(one[1], one[1])
        code = int(one[2:], 16) if len(one) > 2 else ord(short)
        if not any(low <= code <= high for low, high in CHARACTERS.intervals):
            self._refuse("characters of Unicode", one)
        return code

    def _refuse(self, expected: str, value: Any) -> NoReturn:
        raise fields.error(self._name, expected, value)


def _bytes_of(some: Symbols) -> Expression:
    return Compiled(in_utf8(compiled(some)))
