"""Automata of the rules of grammars in the notation of Lark.

The library ``lark`` reads them.
A rule that begins with itself is rewritten by Arden's rule: A = A a | b has the texts of b a*. The
rules that ``lark`` makes of ``*`` and ``+`` become repetitions within the rules that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.constraints import patterns
from decoding_jax.constraints.automata import Automaton
from decoding_jax.constraints.definitions import reference
from decoding_jax.constraints.encodings import in_utf8
from decoding_jax.constraints.expressions import (
    Compiled,
    Expression,
    Repeat,
    compiled,
    optional,
    sequence,
    union,
)


def automata_of(text: str, name: str = "grammar") -> tuple[list[Automaton], list[str]]:
    r"""The automata of the rules of a grammar, with those of its terminals within them.

    Args:
      text: the grammar, whose texts are those of the rule ``start``.
      name: the name of the argument, for errors.

    Returns:
      As ``json_texts.automata_of``; the rule ``start`` is the first one.

    Raises:
      ValueError: in one line, for a grammar that ``lark`` does not read, or without the library;
        and for a terminal that is not regular, or looks at what is outside of it.

    Example:
      >>> made, places = automata_of('start: "(" start ")" | "a"+')
      >>> places
      ['grammar.start']
    """
    if not isinstance(text, str):
        raise fields.error(name, "a grammar in Lark's notation", text)
    read = _read(text, name)
    rules: dict[str, list[Sequence[Any]]] = {"start": []}
    for rule in read.rules:
        rules.setdefault(rule.origin.name, []).append(rule.expansion)
    terminals: dict[str, Expression] = {}
    for one in read.terminals:
        made = patterns.matched(one.pattern.to_regexp(), f"{name}.{one.name}", alone=False)
        terminals[one.name] = Compiled(in_utf8(compiled(made)))
    spaces = [terminals[key] for key in read.ignore_tokens]
    number = {key: i for i, key in enumerate(key for key in rules if not key.startswith("__"))}

    def of_symbol(symbol: Any) -> Expression:
        if not symbol.is_term:
            own = symbol.name in number
            return (
                reference(number[symbol.name]) if own else Compiled(compiled(of_rule(symbol.name)))
            )
        if symbol.name not in terminals:
            raise fields.error(name, "a pattern for each terminal", symbol.name)
        return sequence(terminals[symbol.name], *([optional(union(*spaces))] if spaces else []))

    def of_rule(key: str) -> Expression:
        parts = [(x, x[:1] and x[0].name == key) for x in rules[key]]
        again = [sequence(*map(of_symbol, x[1:])) for x, is_again in parts if is_again]
        first = [sequence(*map(of_symbol, x)) for x, is_again in parts if not is_again]
        if not first:
            raise fields.error(name, "rules that do not always begin with themselves", key)
        return sequence(union(*first), *([Repeat(union(*again), 0, None)] if again else []))

    return [compiled(of_rule(key)) for key in number], [f"{name}.{key}" for key in number]


def _read(text: str, name: str) -> Any:
    """The grammar as ``lark`` reads it."""
    try:
        import lark
    except ImportError:
        raise ValueError(
            "constraints: expected the library lark, which reads grammars and comes with "
            'pip install "decoding_jax[constraints]", got none'
        ) from None
    try:
        return lark.Lark(text, lexer="dynamic_complete", maybe_placeholders=False)
    except Exception as error:  # Those of regular expressions are of many types.
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{name}: expected a grammar that lark reads, got {reason}") from None
