"""Finite automata over integers: bytes, code points, and what stands for definitions.

An automaton's alphabet is cut into intervals, each of which is one column of its table, so that the
automata of texts with a million code points are as small as those of texts with two.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

END = 1 << 22
"""All symbols are below: code points, bytes, and numbers of definitions."""

MOST_STATES = 1 << 16
"""The states that an automaton may have."""

_MOST_WORK = 16 * MOST_STATES  # states of sets of states
_FEW = 64  # states, for which plain Python is faster
_MANY_ROWS = 1 << 13  # from which it is faster not to sort them

Interval = tuple[int, int]
"""The first and the last symbol of an interval."""

Edge = tuple[int, int, int]
"""The first and the last symbol of an interval, and the state that they lead to."""


class TooManyStatesError(ValueError):
    """An automaton has more states than it may have."""


class Automaton(NamedTuple):
    """A deterministic automaton, whose state 0 is the start.

    Attributes:
      table: int32 ``[S, I]``, the state after each state and interval of symbols, or -1.
      starts: int ``[I]``, the first symbol of each interval, of which the first is 0.
      accepting: bool ``[S]``, whether a text may end in each state.
    """

    table: np.ndarray
    starts: np.ndarray
    accepting: np.ndarray

    @property
    def is_empty(self) -> bool:
        """Whether no text is accepted. Automata have no state from which none is."""
        return not self.accepting.any()

    def column(self, symbols: np.ndarray) -> np.ndarray:
        """The interval of each symbol."""
        return np.searchsorted(self.starts, symbols, side="right") - 1

    def accepts(self, symbols: Iterable[int]) -> bool:
        """Whether a text is accepted.

        Example:
          >>> of_edges([[(97, 99, 0)]], [True]).accepts(b"abc")
          True
        """
        state = 0
        for column in self.column(np.array([*symbols], np.int64)).tolist():
            state = int(self.table[state, column])
            if state < 0:
                return False
        return bool(self.accepting[state])

    def edges(self) -> list[list[Edge]]:
        """The edges of each state, by symbol."""
        ends = np.append(self.starts[1:], END) - 1
        changed = np.ones(self.table.shape, bool)
        changed[:, 1:] = self.table[:, 1:] != self.table[:, :-1]
        state, first = np.nonzero(changed)
        last = np.append(first[1:], 0) - 1
        last[np.append(state[1:] != state[:-1], True)] = self.table.shape[1] - 1
        target = self.table[state, first]
        live = target >= 0
        made: list[list[Edge]] = [[] for _ in self.accepting]
        columns = state, self.starts[first], ends[last], target
        for s, low, high, to in zip(*(c[live].tolist() for c in columns), strict=True):
            made[s].append((low, high, to))
        return made


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Pauses the search for cycles of objects, of which compilation makes many, and few cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def forgotten(one: T) -> Iterator[T]:
    """An object whose attributes are cleared in the end, after which it is of no use.

    Its caches refer to it, so that only a search for cycles would free it, with much to look at.
    """
    try:
        yield one
    finally:
        vars(one).clear()


def of_edges(edges: Sequence[Sequence[Edge]], accepting: Sequence[bool]) -> Automaton:
    """The automaton of edges, without states that are equal or lead to no end of a text.

    Example:
      >>> of_edges([[(97, 97, 1), (98, 98, 2)], [], [], []], [False, True, True, True]).table.shape
      (2, 3)
    """
    count = np.array([len(row) for row in edges], np.int64)
    flat = np.array([edge for row in edges for edge in row], np.int64).reshape(-1, 3)
    low, high, target = flat.T
    starts = np.unique(np.concatenate([[0], low, high + 1]))
    begin, stop = np.searchsorted(starts, low), np.searchsorted(starts, high + 1)
    table = np.full((len(edges), len(starts)), -1, np.int32)
    width = stop - begin
    source = np.repeat(np.arange(len(edges)), count)
    table[np.repeat(source, width), ranges(begin, width)] = np.repeat(target, width)
    return reduced(table, starts, np.array(accepting, bool))


def reduced(table: np.ndarray, starts: np.ndarray, accepting: np.ndarray) -> Automaton:
    """The smallest automaton of the texts of a table.

    Args:
      table, starts, accepting: as those of an ``Automaton``; texts may lead to no end.
    """
    if len(starts) == 0:
        table, starts = np.full((len(table), 1), -1, np.int32), np.zeros(1, np.int64)
    columns, place = distinct(table.T)
    small = table[:, columns]
    source, target = ends_of_edges(small)
    distance = distances(accepting, source, target)
    useful = distance >= 0
    begins = np.zeros(len(table), bool)
    begins[0] = True
    useful = (useful & (distances(begins, target, source) >= 0)) | begins
    number = np.append(np.where(useful, np.cumsum(useful) - 1, -1), -1)
    small, accepting, distance = number[small[useful]], accepting[useful], distance[useful]
    found = _equal_states(small, accepting, distance)
    _, first, state = np.unique(found, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    small = np.where(small < 0, -1, rank[state[small]])[np.sort(first)]
    wide = small[:, place].astype(np.int32)
    kept = np.ones(len(starts), bool)
    kept[1:] = (wide[:, 1:] != wide[:, :-1]).any(axis=0)
    return Automaton(wide[:, kept], np.asarray(starts)[kept], accepting[np.sort(first)])


def _equal_states(table: np.ndarray, accepting: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """The class of each state, of those that accept the same texts (Hopcroft 1971).

    Equal states have texts that begin with the same symbols, and whose shortest has the same
    length, ``distance``. Most states are alone with theirs. Where a class is divided, its largest
    part keeps the number, and only states that lead to the other parts are looked at again.
    """
    before = _Sources(*ends_of_edges(table), len(table))
    alike = distinct(np.column_stack([accepting, distance, distinct(table >= 0)[1]]))[1]
    state = np.append(alike, -1)  # -1, no state, is the last entry
    sizes, count = np.bincount(alike, minlength=len(table) + 1), int(alike.max()) + 1
    dirty = np.arange(len(table))
    while len(dirty := dirty[sizes[state[dirty]] > 1]):
        keys = np.column_stack([state[dirty], state[table[dirty]]])
        groups: dict[bytes, list[int]] = {}
        for one, key in zip(dirty.tolist(), keys, strict=True):
            groups.setdefault(key.tobytes(), []).append(one)
        parts: dict[int, list[list[int]]] = {}
        for group in groups.values():
            parts.setdefault(state.item(group[0]), []).append(group)
        changed: list[int] = []
        for number, split in parts.items():
            rest = sizes[number] - sum(map(len, split))
            split.sort(key=len)
            if rest < len(split[-1]):
                largest = split.pop()
                if rest:
                    members = state[:-1] == number
                    for group in (largest, *split):
                        members[group] = False
                    split.append(np.flatnonzero(members).tolist())
            for group in split:
                state[group] = count
                sizes[number] -= len(group)
                sizes[count] = len(group)
                count += 1
                changed += group
        if not changed:
            break
        dirty = before.all_of(np.array(changed))
    return state[:-1]


def ends_of_edges(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The states that edges leave and lead to: one edge for neighbouring columns with one end."""
    begins = table >= 0
    begins[:, 1:] &= table[:, 1:] != table[:, :-1]
    source, column = np.nonzero(begins)
    return source, table[source, column]


class _Sources:
    """Where edges come from.

    Args:
      source, target: int ``[E]``, the states that edges leave and lead to.
      count: the number of states.

    Attributes:
      source: int ``[E]``, by the states that edges lead to.
      bounds: int ``[count + 1]``, where those of each state begin.
    """

    def __init__(self, source: np.ndarray, target: np.ndarray, count: int):
        order = np.argsort(target, kind="stable")
        self.source = source[order]
        self.bounds = np.searchsorted(target[order], np.arange(count + 1))

    def all_of(self, targets: np.ndarray) -> np.ndarray:
        """The different states that have an edge to some others."""
        begin, end = self.bounds[targets], self.bounds[targets + 1]
        if len(targets) <= _FEW:
            found = set[int]()
            for low, high in zip(begin.tolist(), end.tolist(), strict=True):
                found.update(self.source[low:high].tolist())
            return np.array(sorted(found), np.int64)
        return np.unique(self.source[ranges(begin, end - begin)])


def ranges(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The numbers from each beginning on, so many of each, one after another."""
    ends = np.cumsum(count, dtype=begin.dtype)
    return np.arange(ends[-1] if len(ends) else 0, dtype=begin.dtype) + np.repeat(
        begin - ends + count, count
    )


@functools.cache
def _multipliers(width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1 << 62, size=width, dtype=np.int64) * 2 + 1


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first place of each distinct row ``[n, k]``, and the number of each row among them.

    Example:
      >>> [part.tolist() for part in distinct(np.array([[5, 6], [7, 8], [5, 6]]))]
      [[0, 1], [0, 1, 0]]
    """
    width = rows.shape[1]
    # Unlike a product of matrices, this makes no int64 copy of the rows.
    mixed = np.einsum("ij,j->i", rows, _multipliers(width)) if width else np.zeros(len(rows))
    if len(rows) > _MANY_ROWS:
        # A place in a table for each row, by its sum. It is the row's alone, or they are sorted.
        slot = np.right_shift(mixed.view(np.uint64), np.uint64(44)).astype(np.int64)
        table = np.empty(1 << 20, np.int64)
        table[slot[::-1]] = np.arange(len(rows) - 1, -1, -1)
        like = table[slot]
        if np.array_equal(mixed[like], mixed) and np.array_equal(rows[like], rows):
            is_first = like == np.arange(len(rows))
            return np.flatnonzero(is_first), (np.cumsum(is_first) - 1)[like]
    _, first, index = np.unique(mixed, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[index] != np.arange(len(rows)))
    if not np.array_equal(rows[first[index[again]]], rows[again]):  # Different rows with one sum.
        _, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[index.ravel()]


def first_alike(rows: np.ndarray) -> np.ndarray:
    """The first column with the same number, in each row ``[n, k]``.

    Example:
      >>> first_alike(np.array([[5, 6, 5, 6]])).tolist()
      [[0, 1, 0, 1]]
    """
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    is_new = np.ones(rows.shape, bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begin = np.maximum.accumulate(np.where(is_new, np.arange(rows.shape[1]), 0), axis=1)
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.take_along_axis(order, begin, axis=1), axis=1)
    return found


def distances(accepting: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """How many edges lead from each state to an accepting one at least; -1 where none do.

    Args:
      accepting: bool ``[S]``.
      source: int ``[E]``, the state that each edge leaves.
      target: int ``[E]``, the state that it leads to.

    Example:
      >>> distances(np.array([False, True, False]), np.array([0, 1]), np.array([1, 2])).tolist()
      [1, 0, -1]
    """
    before = _Sources(source, target, len(accepting))
    origin, bounds = before.source.tolist(), before.bounds.tolist()
    queue = np.flatnonzero(accepting).tolist()
    found = np.where(accepting, 0, -1).tolist()
    for state in queue:  # which grows
        further = found[state] + 1
        for one in origin[bounds[state] : bounds[state + 1]]:
            if found[one] < 0:
                found[one] = further
                queue.append(one)
    return np.array(found, np.int64)


def combined(
    first: Automaton, second: Automaton, accepts: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Automaton:
    """The texts for which ``accepts`` holds of whether each of two automata accepts them.

    Example:
      >>> a, b = of_edges([[(97, 98, 1)], []], [0, 1]), of_edges([[(98, 99, 1)], []], [0, 1])
      >>> both = combined(a, b, np.logical_and)
      >>> [both.accepts(text) for text in (b"a", b"b", b"c")]
      [False, True, False]
    """
    starts = np.union1d(first.starts, second.starts)
    tables, ends = [], []
    for one in (first, second):
        dead = len(one.table)
        table = np.append(one.table, np.full((1, one.table.shape[1]), -1, np.int32), axis=0)
        tables.append(np.where(table < 0, dead, table)[:, one.column(starts)])
        ends.append(np.append(one.accepting, False))
    a, b = tables
    width = len(b)
    number = np.full(len(a) * width, -1, np.int64)
    number[0] = 0
    found, queue, count = [], np.zeros(1, np.int64), 1
    while len(queue):
        found.append(queue)
        after = a[queue // width].astype(np.int64) * width + b[queue % width]
        new = np.unique(after)
        new = new[number[new] < 0]
        number[new] = count + np.arange(len(new))
        count, queue = count + len(new), new
        if count > 8 * MOST_STATES:
            raise TooManyStatesError
    pairs = np.concatenate(found)
    after = a[pairs // width].astype(np.int64) * width + b[pairs % width]
    accepting = accepts(ends[0][pairs // width], ends[1][pairs % width])
    return reduced(number[after].astype(np.int32), starts, accepting)


def of_texts(texts: Sequence[bytes]) -> Automaton:
    """The automaton of a list of texts, in which equal ends are shared.

    Example:
      >>> of_texts([b"yes", b"no"]).table.shape[0]
      5
    """
    edges: list[dict[int, int]] = [{}]
    ends = {0: False}
    for text in texts:
        state = 0
        for byte in text:
            if byte not in edges[state]:
                edges[state][byte] = len(edges)
                edges.append({})
            state = edges[state][byte]
        ends[state] = True
    rows = [[(byte, byte, to) for byte, to in sorted(row.items())] for row in edges]
    return of_edges(rows, [ends.get(i, False) for i in range(len(edges))])


def without_symbols(automaton: Automaton, low: int) -> Automaton:
    """The texts that are left where symbols from ``low`` on are erased from those of an automaton.

    Example:
      >>> marked = of_edges([[(97, 97, 1)], [(300, 300, 2)], [(98, 98, 3)], []], [0, 0, 0, 1])
      >>> without_symbols(marked, 300).accepts(b"ab")
      True
    """
    edges = automaton.edges()
    empty = [[to for first, _, to in row if first >= low] for row in edges]
    kept = [[edge for edge in row if edge[0] < low] for row in edges]
    return determinised(kept, empty, automaton.accepting.tolist(), 0)


def determinised(
    edges: Sequence[Sequence[Edge]],
    empty: Sequence[Sequence[int]],
    accepting: Sequence[bool],
    start: int,
    most: int = MOST_STATES,
) -> Automaton:
    """The automaton of one whose states have several edges for a symbol, or edges without any.

    Args:
      edges: of each state; those of one state may overlap.
      empty: the states that follow each state without a symbol.
      accepting: whether a text may end in each state.
      start: the state before a text.
      most: the states that may be found before it is a ``TooManyStatesError``.

    Example:
      >>> made = determinised([[(97, 98, 0), (98, 98, 1)], []], [[], []], [False, True], 0)
      >>> made.accepts(b"aab"), made.accepts(b"aba")
      (True, False)
    """
    closures: dict[int, tuple[int, ...]] = {}

    def closure(state: int) -> tuple[int, ...]:
        if state not in closures:
            found, seen = [state], {state}
            for one in found:  # which grows
                for other in empty[one]:
                    if other not in seen:
                        seen.add(other)
                        found.append(other)
            # States that nothing leaves matter only where a text may end.
            closures[state] = tuple(sorted(s for s in found if edges[s] or accepting[s]))
        return closures[state]

    def numbered(members: tuple[int, ...]) -> int:
        if members not in number:
            number[members] = len(queue)
            queue.append(members)
            if len(queue) > most:
                raise TooManyStatesError
        return number[members]

    number: dict[tuple[int, ...], int] = {}
    queue: list[tuple[int, ...]] = []
    numbered(closure(start))
    made: list[list[Edge]] = []
    ends: list[bool] = []
    single: dict[int, int] = {}
    work = 0
    for members in queue:  # which grows
        work += len(members)
        if work > _MOST_WORK:
            raise TooManyStatesError
        ends.append(any(accepting[s] for s in members))
        if len(members) == 1:
            row = []
            [only] = members
            if not _overlap(edges[only]):
                for low, high, to in edges[only]:
                    after = single.get(to)
                    if after is None:
                        after = single[to] = numbered(closure(to))
                    row.append((low, high, after))
                made.append(row)
                continue
        made.append(
            [
                (low, high, numbered(_joined(targets, closure)))
                for low, high, targets in _swept([e for s in members for e in edges[s]])
            ]
        )
    return of_edges(made, ends)


def _overlap(edges: Sequence[Edge]) -> bool:
    last = -1
    for low, high, _ in edges:
        if low <= last:
            return True
        last = high
    return False


def _joined(targets: tuple[int, ...], closure: Callable[[int], tuple[int, ...]]) -> tuple[int, ...]:
    if len(targets) == 1:
        return closure(targets[0])
    return tuple(sorted({one for target in targets for one in closure(target)}))


def _swept(edges: Sequence[Edge]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Intervals that do not overlap, each with the targets of all edges that cover it."""
    cuts: dict[int, list[tuple[bool, int]]] = {}
    for low, high, target in edges:
        cuts.setdefault(low, []).append((True, target))
        cuts.setdefault(high + 1, []).append((False, target))
    count: dict[int, int] = {}
    made, last = [], 0
    for cut in sorted(cuts):
        if count:
            made.append((last, cut - 1, tuple(sorted(count))))
        for begins, target in cuts[cut]:
            left = count.get(target, 0) + (1 if begins else -1)
            if left:
                count[target] = left
            else:
                del count[target]
        last = cut
    return made
