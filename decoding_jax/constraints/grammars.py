"""Regular expressions of the rules of grammars in the notation of Lark.

The library ``lark`` reads them.
A rule that begins with itself is rewritten by Arden's rule: A = A a | b has the texts of b a*. What
is repeated by ``*`` and ``+``, which ``lark`` makes rules of, therefore does not nest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.constraints.definitions import reference


def patterns_of(text: str, name: str = "grammar") -> tuple[list[str], list[str]]:
    r"""The regular expressions of the rules and terminals of a grammar.

    Args:
      text: the grammar, whose texts are those of the rule ``start``.
      name: the name of the argument, for errors.

    Returns:
      As ``schemas.patterns_of``; the rule ``start`` is the first one.

    Raises:
      ValueError: in one line, for a grammar that ``lark`` does not read, or without the library.

    Example:
      >>> patterns, places = patterns_of('start: "a"+')
      >>> places
      ['grammar.start', 'grammar.__start_plus_0', 'grammar.A']
    """
    if not isinstance(text, str):
        raise fields.error(name, "a grammar in Lark's notation", text)
    read = _read(text, name)
    rules: dict[str, list[Sequence[Any]]] = {"start": []}
    for rule in read.rules:
        rules.setdefault(rule.origin.name, []).append(rule.expansion)
    terminals = {terminal.name: terminal.pattern for terminal in read.terminals}
    number = {key: i for i, key in enumerate([*rules, *terminals])}
    spaces = "|".join(reference(number[key]) for key in read.ignore_tokens)

    def sequence(symbols: Sequence[Any]) -> str:
        made = []
        for symbol in symbols:
            if symbol.name not in number:
                raise fields.error(name, "a pattern for each terminal", symbol.name)
            made.append(reference(number[symbol.name]))
            made += [f"({spaces})?"] if spaces and symbol.is_term else []
        return "".join(made)

    patterns = []
    for key, expansions in rules.items():
        again = [sequence(x[1:]) for x in expansions if x and x[0].name == key]
        first = [sequence(x) for x in expansions if not x or x[0].name != key]
        if not first:
            raise fields.error(name, "rules that do not always begin with themselves", key)
        repeated = f"({'|'.join(again)})*" if again else ""
        patterns.append(f"({'|'.join(first)}){repeated}")
    patterns += [pattern.to_regexp() for pattern in terminals.values()]
    return patterns, [f"{name}.{key}" for key in number]


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
