"""Definitions that refer to each other, as a machine with a stack.

``definitions`` unrolls the stacks of nested definitions into the states of one automaton, which may
be many. Here a state is what has to be known above a common stack, and a byte may push frames or
ask for the frame on top: a deterministic pushdown automaton (Ginsburg & Greibach 1966), made by the
construction of subsets. The texts are the same.

A frame is the pair of the counted definitions that it opens, and the place where the definition
below goes on. A member of a state is a place with the frames above the common stack, the topmost
first. For arrays of arrays, ``a: "[" (a ("," a)*)? "]"``, f is the frame ({a}, after an element),
and the bottom frame ({a}, -1) has nothing below::

    text   pushes   stack     members of the state
    [      bottom   bottom    (after "[", ()), and (before "[", (f)): an element may begin
    [[     f        bottom f  the same state: what is below the common stack makes no difference
    [[]             bottom f  (after "]", ()): it waits, since the frame on top says what follows
           pops f   bottom    (after an element, ())
    [[]]            bottom    (after "]", ()): it waits again
           pops it            (after "]", (bottom)): the text may end

Members may differ in their frames, as where each of two alternatives, ``x: "<" a ">"`` and
``y: "<" a "]"``, goes on elsewhere after ``a``. What is read until then is the same for both, so
one frame is pushed that stands for either, and the frame that is popped gives both members back. It
opens what the one of them opens that opens most: texts that this leaves no room for are left out.

``max_depth`` bounds how many frames open each counted definition; how many more of each may
be opened is called the room. Within a string whose characters are counted, all members of a state
are at one place, which they have reached together.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Any

import numpy as np

from decoding_jax.constraints.automata import first_alike
from decoding_jax.constraints.counted import Counted, Place
from decoding_jax.constraints.definitions import Network

Frame = tuple[frozenset[int], int]
Word = tuple[Frame, ...]
Frames = frozenset[Word]
"""What the stack of the device has as one frame: one of some sequences of frames."""

Member = tuple[int, Word]
Members = tuple[Member, ...]
Room = tuple[int, ...]  # for each counted definition

_MOST_SETS = 1 << 16  # of members
_MOST_MEMBERS = 128  # of a set
_MOST_FRAMES = 32  # of a member, above the common stack
_MOST_COUNTED = 6
AMPLE = 1 << 20
"""A room that is never used up."""


class AmbiguousError(Exception):
    """The text does not determine the frames, the room or the string, or there are too many.

    A definition that is counted and may be empty is an example: no byte shows that it is open.

    Attributes:
      strings: those of which the text does not determine one.
    """

    def __init__(self, strings: Set[Counted] = frozenset()):
        super().__init__()
        self.strings = strings


class Machine:
    """States and what bytes do to them; made by need, and numbered as they are found.

    Attributes:
      counted: the definitions whose frames are counted. The number of open ones of any other
        definition never exceeds that of one of these.
      frames: the frames that have been pushed, by number.
      grown: those that have been found below further definitions since this was cleared.
      start: the state before the first byte, whose common stack is empty.
      has_texts: whether some text ends within the depth.
    """

    def __init__(self, network: Network):
        self._network = network
        self._counted = frozenset(self.counted_of(network))
        self.counted = sorted(self._counted)
        # No byte would show that a definition without one is open, and counts.
        if len(self.counted) > _MOST_COUNTED or self._counted & _may_be_empty(network):
            raise AmbiguousError
        self._next = network.table.tolist()
        self._targets, self._target_of_class = _told_apart(network.table)
        self._tails: defaultdict[int, set[int]] = defaultdict(set)  # what definitions end with
        for owner, calls in zip(network.owner, network.calls, strict=True):
            self._tails[owner] |= {other for other, after in calls if network.only_ends[after]}
        self._within = [self._find_within(one) for one in self.counted]
        self._met_opened = self._find_opened()
        self._needs = _needs(network, self.counted, self._met_opened)
        # The caches are those of one machine, and go with it.
        self._resolved = functools.cache(self._resolve)
        self._required = functools.cache(self._requirement)
        self._options = functools.cache(self._find_options)
        self.needed = functools.cache(self._find_needed)
        self._divided_needs = functools.cache(self._find_divided_needs)
        self._ample = functools.cache(self._with_ample_room)
        self._needs_of = functools.cache(self._find_needs)
        self._divided = functools.cache(self._divide)
        self._pushed = functools.cache(self._push)
        self._tail_calls = functools.cache(self._find_tail_calls)
        self._order = functools.cache(_order)
        self.frames: list[Frames] = []
        self._frame_number: dict[Frames, int] = {}
        self.sets: list[frozenset[Member]] = []
        self._is_waiting: list[bool] = []
        self._set_number: dict[frozenset[Member], int] = {}
        self._above: defaultdict[int, set[int]] = defaultdict(set)  # definitions, by frame
        self.grown: set[int] = set()
        bottom = (self._opened(0), -1)
        begun = network.starts[0], (bottom,)
        depth = network.max_depth or 1
        self.has_texts = any(max(need, default=0) <= depth for need in self._required(*begun))
        start = self._settled({begun})
        if start is None:
            raise AmbiguousError
        self.start = start

    @property
    def byte_class(self) -> np.ndarray:
        """The class of each byte, int ``[256]``."""
        return self._network.byte_class

    def is_waiting(self, state: int) -> bool:
        """Whether a state asks for the frame on top of the stack, before any further byte."""
        return self._is_waiting[state]

    def string(self, state: int) -> Place | None:
        """The place of a state within a string whose characters are counted."""
        return self._network.strings.get(next(iter(self.sets[state]))[0])

    def may_end(self, state: int) -> bool:
        """Whether a text may end in a state."""
        return any(self._is_end(*member) for member in self.sets[state])

    def resolved(self, state: int, frame: int) -> int | None:
        """The state after a waiting one is given the frame on top, perhaps a waiting one again."""
        return self._resolved(state, frame)

    def below(self, state: int) -> frozenset[int]:
        """The definitions on top of the common stack of a waiting state."""
        return frozenset(self._bases(self.sets[state]))

    def may_be_on(self, below: frozenset[int], frame: int) -> bool:
        """Whether a waiting state with these definitions may be met with a frame on top."""
        return below <= frozenset().union(*map(self._tail_calls, self._above[frame]))

    def choices(self, state: int) -> tuple[list[Members], np.ndarray]:
        """What different bytes lead to, and which of it each byte does, int ``[256]``.

        Bytes that may not follow the state, which does not wait, do -1.
        """
        members = sorted(self.sets[state], key=self._order)
        if len(members) == 1:
            [(place, above)] = members
            alone: list[Members] = [((to, above),) for to in self._targets[place]]
            return alone, self._target_of_class[place][self.byte_class]
        columns = [*zip(*(self._next[place] for place, _ in members), strict=True)]
        number: dict[tuple[int, ...], int] = {}
        found: list[Members] = []
        for targets in dict.fromkeys(columns):
            both = zip(targets, members, strict=True)
            after = {(to, above) for to, (_, above) in both if to >= 0}
            if after:
                number[targets] = len(found)
                found.append(tuple(sorted(after, key=self._order)))
        of_class = np.array([number.get(targets, -1) for targets in columns])
        return found, of_class[self.byte_class]

    def after(self, members: Members, room: Room) -> tuple[int, tuple[int, ...]] | None:
        """What a byte does that leads to some members.

        Returns:
          The state after it, which may wait for one of these frames, and the frames that it pushes,
          the topmost first; None where the byte may not follow.
        """
        # Nearly always there is room for all, and one state for all rooms, which is kept.
        if _is_within(self.needed(members), room):
            return self._ample(members)
        kept = [m for m, needs in self._options(members) if _has_one_within(needs, room)]
        while any(not _has_one_within(needs, room) for needs in self._divided_needs(tuple(kept))):
            kept.remove(max(kept, key=lambda member: self._opens(member[1])))
        return self._pushed(tuple(kept)) if kept else None

    def after_one(self, members: Members) -> int | None:
        """The state after a byte that leads to one place on the common stack, whatever the room."""
        [(place, above), *others] = members
        if others or above or self._needs_of(place, None) != {self._none()}:
            return None
        return self._settled(members)

    def least_needed(self, state: int, choices: Iterable[Members]) -> Room:
        """The room of which less is never met with a state.

        It is all that there is where no frame on the stack may open the counted definition;
        elsewhere a text has to be able to end with it.

        Args:
          state: one that does not wait.
          choices: those of the state.
        """
        whole, bases = self._network.max_depth or 1, self._bases(self.sets[state])
        is_below = [bool(bases & within) for within in self._within]
        if not any(is_below):
            return (whole,) * len(is_below)
        needs = {need for members in choices for _, some in self._options(members) for need in some}
        least = tuple(map(min, zip(*needs, strict=True))) if needs else self._none()
        return tuple(n if below else whole for n, below in zip(least, is_below, strict=True))

    def _bases(self, members: Iterable[Member]) -> set[int]:
        """The definitions on the frame on top of the common stack; -1 below the bottom frame."""
        bases = (above[-1][1] if above else place for place, above in members)
        return {self._network.owner[base] if base >= 0 else -1 for base in bases}

    def _find_within(self, definition: int) -> set[int]:
        """The definitions that a definition may have within it, itself included."""
        found, calls = {definition}, zip(self._network.owner, self._network.calls, strict=True)
        inner = [(owner, {other for other, _ in some}) for owner, some in calls if some]
        while more := {o for owner, some in inner if owner in found for o in some} - found:
            found |= more
        return found

    def _find_needed(self, members: Members) -> Room:
        """The room with which a byte does what it does with any larger one."""
        options = self._options(members)
        found = [some for _, some in options] + self._divided_needs(tuple(m for m, _ in options))
        each = (need for some in found for need in some)
        return tuple(map(max, zip(self._none(), *each, strict=True)))

    def _with_ample_room(self, members: Members) -> tuple[int, tuple[int, ...]] | None:
        whole = tuple(member for member, _ in self._options(members))
        return self._pushed(whole) if whole else None

    def opens(self, frames: Iterable[int]) -> Room:
        """How many of some frames open each counted definition."""
        return self._most_opened(self.frames[frame] for frame in frames)

    def _resolve(self, state: int, frame: int) -> int | None:
        each = itertools.product(self.sets[state], self.frames[frame])
        return self._settled({(place, (*above, *word)) for (place, above), word in each})

    def _none(self) -> Room:
        return (0,) * len(self.counted)

    def _opened(self, definition: int) -> frozenset[int]:
        return self._counted & {definition}

    def _is_end(self, place: int, above: Word) -> bool:
        return self._network.accepting[place] and bool(above) and above[0][1] < 0

    def _find_options(self, members: Members) -> list[tuple[Member, set[Room]]]:
        """Those of some members that can end, with the rooms of which this needs one."""
        both = ((member, self._required(*member)) for member in members)
        return [(member, needs) for member, needs in both if needs]

    def _requirement(self, place: int, above: Word) -> set[Room]:
        """The least rooms of which a member needs one to end; none where it cannot end."""
        # Each level is a place and what the frame that it stands on opens; the lowest one's is not
        # known. What the levels below have open adds to what a level needs.
        levels: list[tuple[int, frozenset[int] | None]] = []
        for opened, then in above:
            levels.append((place, opened))
            place = then
        levels.append((place, None))
        needed, count = {self._none()}, self._none()
        for at, on in reversed(levels):
            if on is not None:
                count = tuple(n + (one in on) for n, one in zip(count, self.counted, strict=True))
            if at >= 0:
                here = [tuple(map(int.__add__, count, need)) for need in self._needs_of(at, on)]
                needed = _least({tuple(map(max, x, y)) for x in needed for y in here})
        return needed

    def _find_needs(self, place: int, opened: frozenset[int] | None) -> set[Room]:
        """The least rooms with which a definition may end, above what is open on its frame."""
        if opened is not None:
            return self._needs.get((place, opened), set())
        # The frame is not known.
        met = self._met_opened[self._network.owner[place]]
        found, *others = (self._needs_of(place, one) for one in met)
        if any(found != other for other in others):
            raise AmbiguousError
        return found

    def _find_opened(self) -> dict[int, set[frozenset[int]]]:
        """What the frame on which each definition is may open."""
        found: defaultdict[int, set[frozenset[int]]] = defaultdict(set)
        queue = [(one, self._opened(one)) for one in range(len(self._network.starts))]
        for definition, opened in queue:  # which grows
            if opened in found[definition]:
                continue
            found[definition].add(opened)
            queue += [(other, opened | self._opened(other)) for other in self._tails[definition]]
        return found

    def _push(self, members: Members) -> tuple[int, tuple[int, ...]] | None:
        """The state of some members, without the frames that they have in common; and those."""
        rest, pushed = self._divided(members)
        frames = tuple(map(self._numbered, pushed))
        owner, above = self._network.owner, self._bases(rest)
        for frame, words in zip(frames, pushed, strict=True):
            if not above <= self._above[frame]:
                self._above[frame] |= above
                self.grown.add(frame)
            above = {owner[word[-1][1]] for word in words}
        state = self._settled(rest)
        return None if state is None else (state, frames)

    def _divide(self, members: Members) -> tuple[list[Member], list[Frames]]:
        """Some members without the frames that are certain; and those, the topmost first.

        Which frames there are is certain where all members may be followed by the same ones.
        Without them, texts of any depth meet the same few states, whatever the next bytes decide
        between the members.
        """
        if not any(above for _, above in members):
            return list(members), []
        rest: defaultdict[tuple[Any, ...], set[Word]] = defaultdict(set)
        for place, above in members:
            for i in range(len(above) + 1):
                rest[place, *above[:i]].add(above[i:])
        paths = [
            [rest[place, *above[:i]] for i in range(len(above) + 1)] for place, above in members
        ]
        common = [
            words for words in paths[0] if words != {()} and all(words in path for path in paths)
        ]
        cuts = [[*map(path.index, common), len(path) - 1] for path in paths]
        pushed = list[Frames]()
        for i in reversed(range(len(common))):
            each = zip(members, cuts, strict=True)
            words = frozenset(above[cut[i] : cut[i + 1]] for (_, above), cut in each)
            if () in words:
                break
            pushed.insert(0, words)
        left = len(common) - len(pushed)
        each = zip(members, cuts, strict=True)
        return list({(place, above[: cut[left]]) for (place, above), cut in each}), pushed

    def _find_divided_needs(self, members: Members) -> list[set[Room]]:
        """Rooms, of each of which one is needed, where a frame stands for several that differ.

        It opens what the one of them opens that opens most, so that less room may be left for the
        others than they would have alone.
        """
        rest, pushed = self._divided(members) if members else ([], [])
        if all(len({*map(self._opens, words)}) == 1 for words in pushed):
            return []
        opened, found = self._none(), list[tuple[Room, set[Room]]]()
        for words in reversed(pushed):
            found += [(opened, self._required(-1, word)) for word in words]
            opened = tuple(map(int.__add__, opened, self._most_opened([words])))
        found += [(opened, self._required(*member)) for member in rest]
        return [{tuple(map(int.__add__, below, need)) for need in some} for below, some in found]

    def _most_opened(self, pushed: Iterable[Frames]) -> Room:
        each = (map(max, zip(*map(self._opens, words), strict=True)) for words in pushed)
        return tuple(map(sum, zip(self._none(), *each, strict=True)))

    def _opens(self, word: Word) -> Room:
        return tuple(sum(one in opened for opened, _ in word) for one in self.counted)

    def _numbered(self, frames: Frames) -> int:
        if frames not in self._frame_number:
            self._frame_number[frames] = len(self.frames)
            self.frames.append(frames)
        return self._frame_number[frames]

    def _settled(self, members: Iterable[Member]) -> int | None:
        """The number of the state that members lead to before the next byte; None where none is."""
        queue = list(members)
        seen, found, waits = set(queue), set(), False
        for place, above in queue:  # which grows
            asks, moves = self._moves(place, above)
            waits |= asks
            # A member that neither reads nor ends nor asks has moved on to others.
            if asks or self._network.reads[place] or self._is_end(place, above):
                found.add((place, above))
            if any(len(frames) > _MOST_FRAMES for _, frames in moves):
                raise AmbiguousError
            queue += [move for move in dict.fromkeys(moves) if move not in seen]
            seen.update(moves)
        if not found:
            return None
        if len(found) > _MOST_MEMBERS:
            raise AmbiguousError
        places = {place for place, _ in found}
        # One count is kept for a state, so members within a string have to agree on the place.
        inside = places & self._network.strings.keys()
        if inside and len(places) > 1:
            raise AmbiguousError({self._network.strings[place].string for place in inside})
        key = frozenset(found)
        if key not in self._set_number:
            if len(self.sets) >= _MOST_SETS:
                raise AmbiguousError
            self._set_number[key] = len(self.sets)
            self.sets.append(key)
            self._is_waiting.append(waits)
        return self._set_number[key]

    def _moves(self, place: int, above: Word) -> tuple[bool, list[Member]]:
        """Where the end and the beginning of definitions lead, and whether that asks for one."""
        network, asks, moves = self._network, False, []
        if network.accepting[place]:
            asks = not above
            if above and above[0][1] >= 0:
                moves.append((above[0][1], above[1:]))
        for definition, after in network.calls[place]:
            opened, start = self._opened(definition), network.starts[definition]
            # A definition with which another one ends takes over its frame (a tail call), so that a
            # list of any length needs no stack; the frame then opens both.
            if not network.only_ends[after]:
                moves.append((start, ((opened, after), *above)))
            elif all(opened <= known for known in self._met_opened[network.owner[place]]):
                moves.append((start, above))  # The frame stays as it is.
            elif above:
                moves.append((start, ((above[0][0] | opened, above[0][1]), *above[1:])))
            else:
                asks = True
        return asks, moves

    def _find_tail_calls(self, definition: int) -> frozenset[int]:
        """A definition, and those that it may become without another frame."""
        found, queue = {definition}, [definition]
        for one in queue:  # which grows
            queue += self._tails[one] - found
            found |= self._tails[one]
        return frozenset(found)

    def longest_stack(self, max_depth: int) -> int:
        """An upper bound of the number of frames, where each definition is within its depth."""
        network = self._network
        # The frames that open no counted definition, one upon another.
        longest = [0] * len(network.starts)
        for _ in range(len(longest) + 1):
            for place, calls in enumerate(network.calls):
                for other, after in calls:
                    if other not in self._counted:
                        frames = longest[other] + (not network.only_ends[after])
                        owner = network.owner[place]
                        longest[owner] = max(longest[owner], frames)
        between = max(longest)
        return (len(self.counted) * max_depth + 1) * (between + 1)

    @staticmethod
    def counted_of(network: Network) -> set[int]:
        """The definitions that nest and that have no other one open at least as often.

        A definition is left out where another one lies before each of it, and between one and the
        next one within it: on a frame below, or always on the same one.
        """
        edges: defaultdict[int, set[tuple[int, bool]]] = defaultdict(set)
        for place, calls in enumerate(network.calls):
            for definition, after in calls:
                edges[network.owner[place]].add((definition, not network.only_ends[after]))

        @functools.cache
        def reached(start: int, without: int) -> set[tuple[int, bool]]:
            """Definitions that a path leads to, and whether some reference on it is no tail."""
            found, queue = set[tuple[int, bool]](), [(start, False)]
            for one, nests in queue:  # which grows
                following = {(other, nests or more) for other, more in edges[one]}
                new = {then for then in following - found if then[0] != without}
                found |= new
                queue += new
            return found

        def is_around(outer: int, one: int) -> bool:
            if outer != 0 and (one == 0 or any(one == other for other, _ in reached(0, outer))):
                return False
            kinds = {nests for other, nests in reached(outer, outer) if other == one}
            return len(kinds) == 1 and (one, True) not in reached(one, outer)

        counted = {one for one in range(len(network.starts)) if (one, True) in reached(one, -1)}
        return {
            one for one in counted if not any(is_around(other, one) for other in counted - {one})
        }


def _told_apart(table: np.ndarray) -> tuple[list[list[int]], np.ndarray]:
    """The different numbers of each row ``[n, k]``, and which of them each number is.

    Numbers below 0 are left out of the first, and -1 in the second.
    """
    first = first_alike(table)
    is_first = (first == np.arange(table.shape[1])) & (table >= 0)
    number = np.take_along_axis(np.cumsum(is_first, axis=1) - 1, first, axis=1)
    bounds = np.cumsum(is_first.sum(axis=1))[:-1]
    each = [part.tolist() for part in np.split(table[is_first], bounds)]
    return each, np.where(table < 0, -1, number)


def _order(member: Member) -> tuple[int, list[tuple[list[int], int]]]:
    return member[0], [(sorted(opened), then) for opened, then in member[1]]


def _may_be_empty(network: Network) -> set[int]:
    """The definitions that may be without a byte, which would be opened without being counted."""
    found: set[int] = set()
    while True:
        size = len(found)
        for definition, start in enumerate(network.starts):
            places = [start]
            for place in places:
                places += [
                    after
                    for other, after in network.calls[place]
                    if other in found and after not in places
                ]
            if any(network.accepting[place] for place in places):
                found.add(definition)
        if len(found) == size:
            return found


def _needs(
    network: Network, counted: list[int], met_opened: dict[int, set[frozenset[int]]]
) -> dict[tuple[int, frozenset[int]], set[Room]]:
    """The least rooms with which a definition may end, from each place.

    They are counted from the counted definitions that the frame of the definition opens, of which
    those of each definition are ``met_opened``. A room is left out that exceeds another one.
    """
    none = (0,) * len(counted)
    keys = [(place, found) for place, one in enumerate(network.owner) for found in met_opened[one]]
    following = [sorted({*row} - {-1}) for row in network.table.tolist()]
    before: defaultdict[tuple[int, frozenset[int]], set[tuple[int, frozenset[int]]]]
    before = defaultdict(set)

    def of(opened: frozenset[int]) -> Room:
        return tuple(int(one in opened) for one in counted)

    calls = {}
    for place, opened in keys:
        key, parts = (place, opened), []
        for after in following[place]:
            before[after, opened].add(key)
        for definition, after in network.calls[place]:
            own = frozenset({definition} & set(counted))
            start = network.starts[definition]
            if network.only_ends[after]:
                inner, more = (start, opened | own), of((opened | own) - opened)
                rest: tuple[int, frozenset[int]] | None = None
            else:
                inner, more, rest = (start, own), of(own), (after, opened)
                before[rest].add(key)
            before[inner].add(key)
            parts.append((inner, more, rest))
        calls[key] = parts
    # A least fixed point: from the places where a definition ends, back to all that lead there.
    needs: dict[tuple[int, frozenset[int]], set[Room]] = {}
    queue = [(place, opened) for place, opened in keys if network.accepting[place]]
    while queue:
        key = queue.pop()
        place, opened = key
        found: set[Room] = {none} if network.accepting[place] else set()
        for after in following[place]:
            found |= needs.get((after, opened), set())
        for inner, more, rest in calls[key]:
            for x in needs.get(inner, ()):
                whole = tuple(map(int.__add__, x, more))
                for y in needs.get(rest, ()) if rest else (none,):
                    found.add(tuple(map(max, whole, y)))
        least = {x for x in _least(found) if max(x, default=0) <= (network.max_depth or 1)}
        if least != needs.get(key, set()):
            needs[key] = least
            queue += [one for one in before[key] if needs.get(one) != {none}]  # the least there is
    return needs


def _least(rooms: set[Room]) -> set[Room]:
    """Those rooms that exceed no other one."""
    if len(rooms) <= 1:
        return rooms
    return {x for x in rooms if not any(y != x and _is_within(y, x) for y in rooms)}


def _has_one_within(rooms: set[Room], other: Room) -> bool:
    return any(_is_within(room, other) for room in rooms)


def _is_within(room: Room, other: Room) -> bool:
    return all(map(int.__le__, room, other))
