"""Regular expressions as trees, and the automata of them.

Trees are immutable and compared by value, so that what occurs twice is compiled once. Symbols are
integers: the code points of a text, its bytes, or what stands for definitions and assertions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from decoding_jax.constraints import automata
from decoding_jax.constraints.automata import Automaton, Edge, Interval, TooManyStatesError


class Expression:
    """A regular expression."""


@dataclasses.dataclass(frozen=True)
class Symbols(Expression):
    """One symbol of some intervals, which are sorted and do not touch."""

    intervals: tuple[Interval, ...]


@dataclasses.dataclass(frozen=True)
class Series(Expression):
    """Expressions one after another."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Union(Expression):
    """One of some expressions."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Repeat(Expression):
    """An expression ``low`` times or more, and at most ``high`` times if that is not None."""

    part: Expression
    low: int
    high: int | None


@dataclasses.dataclass(frozen=True)
class Both(Expression):
    """The texts of all of some expressions."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Without(Expression):
    """The texts of an expression that are not those of another one."""

    part: Expression
    excluded: Expression


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled(Expression):
    """An automaton that has been made."""

    automaton: Automaton


EMPTY = Series(())
"""The text without symbols."""

NOTHING = Union(())
"""No text."""

_MANY = 16  # intervals, with which symbols are told apart by kind first


def symbols(intervals: Sequence[Interval]) -> Symbols:
    """One symbol of some intervals in any order.

    Example:
      >>> symbols([(5, 6), (1, 2), (3, 3)])
      Symbols(intervals=((1, 3), (5, 6)))
    """
    made: list[Interval] = []
    for low, high in sorted(intervals):
        if made and low <= made[-1][1] + 1:
            made[-1] = made[-1][0], max(high, made[-1][1])
        else:
            made.append((low, high))
    return Symbols(tuple(made))


def excluded(part: Symbols, universe: Symbols) -> Symbols:
    """The symbols of a universe that are none of some others.

    Example:
      >>> excluded(symbols([(2, 3)]), symbols([(0, 9)]))
      Symbols(intervals=((0, 1), (4, 9)))
    """
    made = []
    for begin, end in universe.intervals:
        for low, high in part.intervals:
            if high < begin or low > end:
                continue
            if low > begin:
                made.append((begin, low - 1))
            begin = high + 1
        if begin <= end:
            made.append((begin, end))
    return Symbols(tuple(made))


def sequence(*parts: Expression) -> Expression:
    """Expressions one after another, without those that say nothing."""
    flat: list[Expression] = []
    for part in parts:
        flat += part.parts if isinstance(part, Series) else [part]
    return flat[0] if len(flat) == 1 else Series(tuple(flat))


def union(*parts: Expression) -> Expression:
    """One of some expressions, each of them once."""
    flat: dict[Expression, None] = {}
    for part in parts:
        flat |= dict.fromkeys(part.parts if isinstance(part, Union) else [part])
    return next(iter(flat)) if len(flat) == 1 else Union(tuple(flat))


def both(*parts: Expression) -> Expression:
    """The texts of all of some expressions, each of them once."""
    flat: dict[Expression, None] = {}
    for part in parts:
        flat |= dict.fromkeys(part.parts if isinstance(part, Both) else [part])
    return next(iter(flat)) if len(flat) == 1 else Both(tuple(flat))


def optional(part: Expression) -> Expression:
    """An expression or nothing."""
    return Repeat(part, 0, 1)


def text(symbols_: Sequence[int]) -> Expression:
    """One text.

    Example:
      >>> compiled(text(b"ab")).table.shape[0]
      3
    """
    return Series(tuple(Symbols(((one, one),)) for one in symbols_))


def compiled(expression: Expression) -> Automaton:
    """The smallest automaton of an expression.

    Raises:
      TooManyStatesError: for one of more than 65,536 states, or that would take many more to make.

    Example:
      >>> a = Symbols(((97, 97),))
      >>> compiled(Repeat(a, 2, 3)).table.shape[0]
      4
    """
    if isinstance(expression, Compiled):
        return expression.automaton
    return _compiled(expression)


@functools.lru_cache(4096)
def _compiled(expression: Expression) -> Automaton:
    if isinstance(expression, Both):
        made = [compiled(part) for part in expression.parts]
        return functools.reduce(lambda a, b: automata.combined(a, b, np.logical_and), made)
    if isinstance(expression, Without):
        parts = compiled(expression.part), compiled(expression.excluded)
        return automata.combined(*parts, lambda a, b: a & ~b)
    leaves: set[Symbols] = set()
    if _collect(expression, leaves) and any(len(one.intervals) > _MANY for one in leaves):
        return _by_kinds(expression, sorted(leaves, key=lambda one: one.intervals))
    net = Net()
    start, end = net.state(), net.state()
    net.add(expression, start, end)
    return net.automaton(start, end)


def _collect(expression: Expression, leaves: set[Symbols]) -> bool:
    """Collects the symbols of an expression; whether it has no other leaves."""
    if isinstance(expression, Symbols):
        leaves.add(expression)
        return True
    if isinstance(expression, Repeat):
        return _collect(expression.part, leaves)
    if isinstance(expression, Series | Union):
        return all(_collect(part, leaves) for part in expression.parts)
    return False


def _by_kinds(expression: Expression, leaves: Sequence[Symbols]) -> Automaton:
    """The automaton, made over the kinds of symbols that no part of the expression tells apart."""
    bounds = [bound for one in leaves for low, high in one.intervals for bound in (low, high + 1)]
    starts = np.unique([0, *bounds])
    member = np.zeros((len(leaves), len(starts)), bool)
    for row, one in zip(member, leaves, strict=True):
        for low, high in one.intervals:
            row[slice(*np.searchsorted(starts, (low, high + 1)))] = True
    kinds, kind = automata.distinct(member.T)
    of_leaf = {
        one: symbols([(k, k) for k in np.flatnonzero(row[kinds]).tolist()])
        for one, row in zip(leaves, member, strict=True)
    }

    def mapped(part: Expression) -> Expression:
        if isinstance(part, Symbols):
            return of_leaf[part]
        if isinstance(part, Repeat):
            return dataclasses.replace(part, part=mapped(part.part))
        assert isinstance(part, Series | Union)
        return dataclasses.replace(part, parts=tuple(map(mapped, part.parts)))

    made = compiled(mapped(expression))
    return Automaton(made.table[:, made.column(kind)], starts, made.accepting)


class Net:
    """States with edges of symbols and of none (Thompson 1968), which become an automaton."""

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = []
        self.empty: list[list[int]] = []

    def state(self) -> int:
        """A new state."""
        self.edges.append([])
        self.empty.append([])
        if len(self.edges) > 16 * automata.MOST_STATES:
            raise TooManyStatesError
        return len(self.edges) - 1

    def skip(self, source: int, target: int) -> None:
        """Lets a state follow another one without a symbol."""
        self.empty[source].append(target)

    def automaton(self, start: int, end: int) -> Automaton:
        """The automaton of what lies between two states."""
        accepting = [False] * len(self.edges)
        accepting[end] = True
        return automata.determinised(self.edges, self.empty, accepting, start)

    def add(self, expression: Expression, start: int, end: int) -> None:
        """Puts an expression between two states."""
        if isinstance(expression, Symbols):
            self.edges[start] += [(low, high, end) for low, high in expression.intervals]
        elif isinstance(expression, Series):
            for part in expression.parts[:-1]:
                after = self.state()
                self.add(part, start, after)
                start = after
            if expression.parts:
                self.add(expression.parts[-1], start, end)
            else:
                self.skip(start, end)
        elif isinstance(expression, Union):
            for part in expression.parts:
                # What leads back to its start must not lead into the other parts.
                own = self.state()
                self.skip(start, own)
                self.add(part, own, end)
        elif isinstance(expression, Repeat):
            self._repeat(expression, start, end)
        else:
            self._automaton(compiled(expression), start, end)

    def _repeat(self, expression: Repeat, start: int, end: int) -> None:
        part, low, high = expression.part, expression.low, expression.high
        if (high is not None and high - low > 1) or low > 1:
            part = Compiled(compiled(part))  # It is made once.
            if len(part.automaton.table) * (high or low) > 2 * automata.MOST_STATES:
                raise TooManyStatesError
        for _ in range(low):
            after = self.state()
            self.add(part, start, after)
            start = after
        if high is None:
            loop = self.state()
            self.skip(start, loop)
            after = self.state()
            self.add(part, loop, after)
            self.skip(after, loop)
            self.skip(loop, end)
            return
        for _ in range(high - low):
            self.skip(start, end)
            own, after = self.state(), self.state()
            self.skip(start, own)
            self.add(part, own, after)
            start = after
        self.skip(start, end)

    def _automaton(self, automaton: Automaton, start: int, end: int) -> None:
        begin = len(self.edges)
        self.edges += [[(a, b, to + begin) for a, b, to in row] for row in _edges_of(automaton)]
        self.empty += [[end] if ends else [] for ends in automaton.accepting.tolist()]
        self.skip(start, begin)
        if len(self.edges) > 16 * automata.MOST_STATES:
            raise TooManyStatesError


_EDGES: dict[int, tuple[Automaton, list[list[Edge]]]] = {}


def _edges_of(automaton: Automaton) -> list[list[Edge]]:
    """The edges of an automaton, which are made once for one that is used often."""
    key = id(automaton.table)
    if key not in _EDGES:
        if len(_EDGES) > 4096:
            _EDGES.clear()
        _EDGES[key] = automaton, automaton.edges()
    return _EDGES[key][1]
