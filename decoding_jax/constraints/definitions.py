"""Definitions that refer to each other, as one finite automaton, to a bounded depth.

Texts that are nested without a bound are not a regular language; those that are nested at most so
deep are one. A state of its automaton is a set of places in definitions, each with the stack of the
places that follow where a definition has ended: a recursive transition network (Woods 1970), whose
stacks are bounded. Each definition is compiled once, however often it is referred to. Strings
whose characters are counted are definitions too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence, Set

import numpy as np

from decoding_jax import fields
from decoding_jax.constraints import automata
from decoding_jax.constraints.automata import Automaton, TooManyStatesError, distances, distinct
from decoding_jax.constraints.counted import Counted, Place
from decoding_jax.constraints.expressions import Expression, Symbols

_BYTES = 256
MOST_PLACES = 1 << 14
"""The states that definitions with a stack may have; unrolled, there may be more."""

LONGEST = (1024, 128)
"""The characters of strings that are not counted, or fewer if these are too many."""

_MOST_STATES = 1 << 16
_MANY = 8  # times as many configurations as states: few states have more than one


def reference(number: int) -> Expression:
    """What stands for definition ``number`` in the expression of another one: a symbol."""
    return Symbols(((_BYTES + number, _BYTES + number),))


def network_of(
    parts: Sequence[Automaton | Counted], places: Sequence[str], max_depth: int | None, name: str
) -> Automaton | Network:
    """The definitions before they are unrolled, or an automaton where none refers to another.

    Texts are those of the first definition. A definition may be within itself, where another one or
    more may lie between, so that at most ``max_depth`` of it are open at once. A definition that
    ends with a reference to itself is repeated, and does not nest.

    Args:
      parts: the automaton of each definition, in which ``reference(i)`` stands for the texts of
        definition i; those after the first one may be strings whose characters are counted.
      places: where each definition is, for errors.
      max_depth: 1 or more, or None for definitions that do not nest.
      name: the name of the argument, for errors.

    Raises:
      ValueError: in one line, for a definition within itself without ``max_depth``, when it is met.

    Example:
      >>> from decoding_jax.constraints.expressions import compiled, optional, sequence, text
      >>> lists = sequence(text(b"["), optional(reference(0)), text(b"]"))
      >>> network = network_of([compiled(lists)], ["list"], 2, "list")
      >>> network.automaton().table.shape[0]  # [[]] and []
      5
    """
    first = parts[0]
    if isinstance(first, Automaton) and not any(map(_refers, parts)):
        return first
    return Network(parts, places, max_depth, name)


def _refers(part: Automaton | Counted) -> bool:
    if isinstance(part, Counted):
        return False
    return bool((part.table[:, part.starts >= _BYTES] >= 0).any())


class Network:
    """The places of all definitions, and the bytes and references that lead from one to another.

    Attributes:
      max_depth: how often a definition may be within itself.
      starts: the first place of each definition.
      owner: the definition of each place.
      calls: of each place, the definitions that may begin there, each with the place after it.
      table: int32 ``[places, classes of bytes]``, the place after each place and byte, or -1.
      byte_class: int ``[256]``, the class of each byte. Most bytes behave alike.
      accepting: whether the definition may end at each place.
      reads: whether a byte may follow each place.
      only_ends: whether the definition ends at each place, and nothing else may follow.
      strings: the places that are within strings whose characters are counted.
      shortened: what there is to say of strings that are shorter than they may be, or None.

    A configuration is a place s with a stack k, as the number k S + s. Stacks are numbered as they
    are found. A stack has the definitions that are open on top, each of which ends with the next
    one; the place after them; and the stack there. The lowest stack has no place.
    """

    def __init__(
        self,
        parts: Sequence[Automaton | Counted],
        places: Sequence[str],
        max_depth: int | None,
        name: str,
    ):
        self._parts, self._places, self.max_depth, self._name = parts, places, max_depth, name
        self.strings: dict[int, Place] = {}
        self.shortened: str | None = None
        tables: list[np.ndarray] = []
        may_end: list[bool] = []
        self.starts: list[int] = []  # the first place of each definition
        self.owner: list[int] = []  # the definition of each place
        self.calls: list[list[tuple[int, int]]] = []  # (definition, the place after it)
        for i, made in enumerate(parts):
            begin = len(self.owner)
            part = made.automaton if isinstance(made, Counted) else made
            if isinstance(made, Counted):
                inside = made.places or {}
                self.strings |= {begin + number: place for number, place in inside.items()}
            calls: list[list[tuple[int, int]]] = [[] for _ in part.accepting]
            for number in range(len(parts)):
                after = part.table[:, part.column(np.array([_BYTES + number]))[0]]
                for place in np.flatnonzero(after >= 0):
                    calls[place].append((number, begin + int(after[place])))
            transitions = part.table[:, part.column(np.arange(_BYTES))]
            tables.append(np.where(transitions < 0, -1, transitions + begin))
            may_end += part.accepting.tolist()
            self.starts.append(begin)
            self.owner += [i] * len(part.accepting)
            self.calls += calls
        table = np.concatenate(tables)
        first, self.byte_class = distinct(table.T)
        self.table, self._size = table[:, first], len(table)
        self.accepting = may_end
        self.reads = [bool((row >= 0).any()) for row in table]
        # A place where a definition can only end needs no room on a stack.
        self.only_ends = [
            ended and not reads and not calls
            for ended, reads, calls in zip(may_end, self.reads, self.calls, strict=True)
        ]
        self._stacks: list[tuple[frozenset[int], int, int]] = []
        self._stack_of: dict[tuple[frozenset[int], int, int], int] = {}
        self._closure = functools.cache(self._closure_of)
        self._has_room = functools.cache(self._room_for)

    def automaton(self, max_states: int | None = None) -> Automaton:
        """The automaton of all texts, without states from which none ends.

        Raises:
          TooManyStatesError: for more than ``max_states``, by default 65,536. Where they are given,
            it is enough that there are many more configurations, or that strings are counted.
          ValueError: where no text ends.
        """
        is_tried = max_states is not None
        max_states = _MOST_STATES if max_states is None else max_states
        expected = f"a language of at most {max_states:,} states"
        too_many = f"{self._name}: expected {expected}, got more, with max_depth={self.max_depth}"
        if self.strings:
            for longest in () if is_tried else LONGEST:
                with contextlib.suppress(TooManyStatesError):
                    spelled = self.spelled(longest)
                    self.shortened = spelled.shortened
                    return spelled.automaton()
            raise TooManyStatesError(too_many)
        start = self._start()
        if not start:
            raise self.endless()
        if is_tried and self._has_more_configurations(_MANY * max_states):
            raise TooManyStatesError(too_many)
        number, queue = {start: 0}, [start]
        rows, accepting = [], []
        table = self.table.tolist()
        for members in queue:  # which grows
            both = [divmod(member, self._size) for member in members]
            accepting.append(any(self._is_end(k, s) for k, s in both))
            after: dict[tuple[int, ...], int] = {}
            row = []
            for targets in zip(*(table[place] for _, place in both), strict=True):
                if targets not in after:
                    follows = zip(both, targets, strict=True)
                    found = frozenset[int]().union(
                        *(self._closure(k * self._size + to) for (k, _), to in follows if to >= 0)
                    )
                    if found and found not in number:
                        number[found] = len(queue)
                        queue.append(found)
                    after[targets] = number[found] if found else -1
                row.append(after[targets])
            rows.append(row)
            if len(queue) > max_states:
                raise TooManyStatesError(too_many)
        return self._useful(np.array(rows, np.int32), np.array(accepting))

    def spelled(self, longest: int, some: Set[Counted] | None = None) -> Network:
        """These definitions, where each number of characters of a string is a state.

        Args:
          longest: the characters of strings with a larger ``maxLength``.
          some: which strings; all by default.
        """
        made, lengths = list[Automaton | Counted](), list[int]()
        for part in self._parts:
            if isinstance(part, Counted) and (some is None or part in some):
                lengths += [part.high] if part.high > max(part.low, longest) else []
                made.append(part.spelled(longest))
            else:
                made.append(part)
        found = Network(made, self._places, self.max_depth, self._name)
        found.shortened = self.shortened
        if lengths:
            found.shortened = (
                f"{self._name}: strings with maxLength={max(lengths)} have at most {longest:,} "
                "characters, since they have too many states where they cannot be counted"
            )
        return found

    def _has_more_configurations(self, most: int) -> bool:
        """Whether there are more configurations than so many, before they are joined to states."""
        sites: list[set[tuple[int, int]]] = [set() for _ in self.starts]
        sizes = [0] * len(self.starts)
        for one, calls, reads in zip(self.owner, self.calls, self.reads, strict=True):
            sites[one].update(calls)
            sizes[one] += reads
        queue = [(self._numbered(frozenset([0]), -1, -1), 0)]  # stacks, and what is read on them
        seen, count = set(queue), 0
        for stack, one in queue:  # which grows
            count += sizes[one]
            if count > most:
                return True
            for definition, after in sites[one]:
                found = self._opened(stack, definition, after), definition
                if found not in seen and self._has_room(definition, found[0]):
                    seen.add(found)
                    queue.append(found)
        return False

    def accepts(self, text: bytes) -> bool:
        """Whether a text is one of them."""
        members = {(member, 0) for member in self._start()}  # with the characters of a string
        for byte in text:
            column, after = self.byte_class[byte], set[tuple[int, int]]()
            for member, count in members:
                stack, place = divmod(member, self._size)
                following = int(self.table[place, column])
                then = self.count_after(place, following, count) if following >= 0 else None
                if then is not None:
                    found = self._closure(stack * self._size + following)
                    after |= {(one, then) for one in found}
            members = after
        return any(self._is_end(*divmod(member, self._size)) for member, _ in members)

    def count_after(self, place: int, following: int, count: int) -> int | None:
        """The characters of the string after a byte; None where it has too many, or too few.

        Args:
          place, following: the places before and after the byte.
          count: the characters before it, 0 outside of strings that are counted.
        """
        if place not in self.strings:
            return 0
        string, begins, _ = self.strings[place]
        if following not in self.strings:
            return 0 if count >= string.low else None
        count += begins
        return count if count + self.strings[following].least <= string.high else None

    def _start(self) -> frozenset[int]:
        """The configurations before a text."""
        lowest = self._numbered(frozenset([0]), -1, -1)
        return self._closure(lowest * self._size + self.starts[0])

    def bytes_read(self) -> list[int]:
        """The bytes that texts may have."""
        table, reached, queue = self.table.tolist(), set[int](), [self.starts[0]]
        for place in queue:  # which grows
            if place not in reached:
                reached.add(place)
                queue += {*table[place]} - {-1}
                for definition, after in self.calls[place]:
                    queue += [self.starts[definition], after]
        found = np.greater_equal(self.table[[*reached]], 0).any(axis=0)
        return np.flatnonzero(np.take(found, self.byte_class)).tolist()

    def endless(self) -> ValueError:
        """The error of definitions of which no text ends within ``max_depth``."""
        return fields.error("max_depth", "a depth at which some text ends", self.max_depth)

    def _useful(self, table: np.ndarray, accepting: np.ndarray) -> Automaton:
        """The automaton over bytes without the states from which no text ends."""
        source, column = np.nonzero(table >= 0)
        useful = distances(accepting, source, table[source, column]) >= 0
        if not useful[0]:
            raise self.endless()
        kept = np.append(np.where(useful, np.cumsum(useful) - 1, -1), -1).astype(np.int32)
        transitions = kept[table[useful]][:, self.byte_class]  # -1 is the last entry
        transitions = np.append(transitions, np.full((len(transitions), 1), -1, np.int32), axis=1)
        return automata.reduced(transitions, np.arange(_BYTES + 1), accepting[useful])

    def _closure_of(self, configuration: int) -> frozenset[int]:
        """The configurations without bytes between that bytes follow, or where a text ends."""
        found, queue = set(), [configuration]
        seen = {configuration}
        for one in queue:  # which grows
            stack, place = divmod(one, self._size)
            if self.reads[place] or self._is_end(stack, place):
                found.add(one)
            for other in self._moves(place, stack):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return frozenset(found)

    def _is_end(self, stack: int, place: int) -> bool:
        """Whether a text may end here."""
        return self.accepting[place] and self._stacks[stack][2] < 0

    def _moves(self, place: int, stack: int) -> Iterator[int]:
        """The configurations that the end and the beginning of definitions lead to."""
        _, then, rest = self._stacks[stack]
        if rest >= 0 and self.accepting[place]:
            yield rest * self._size + then
        for definition, after in self.calls[place]:
            found = self._opened(stack, definition, after)
            if self._has_room(definition, found):
                yield found * self._size + self.starts[definition]

    def _opened(self, stack: int, definition: int, after: int) -> int:
        """The stack where a definition begins on another stack, with the place after it."""
        if not self.only_ends[after]:
            return self._numbered(frozenset([definition]), after, stack)
        is_open, then, rest = self._stacks[stack]
        return self._numbered(is_open | {definition}, then, rest)

    def _numbered(self, is_open: frozenset[int], place: int, rest: int) -> int:
        key = is_open, place, rest
        if key not in self._stack_of:
            self._stack_of[key] = len(self._stacks)
            self._stacks.append(key)
        return self._stack_of[key]

    def _room_for(self, definition: int, stack: int) -> bool:
        """Whether a definition that is open on top of a stack may be."""
        count = 0
        while stack >= 0:
            is_open, _, stack = self._stacks[stack]
            count += definition in is_open
        if count > 1 and self.max_depth is None:
            place = self._places[definition]
            raise ValueError(f"{place}: expected max_depth, since it refers to itself, got none")
        return count <= (self.max_depth or 1)
