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

``max_depth`` bounds how many frames open each counted definition; how many more of each may
be opened is called the room. Within a string whose characters are counted, all members of a state
are at one place, which they have reached together.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Set

import numpy as np

from decoding_jax.constraints.counted import Counted, Place
from decoding_jax.constraints.definitions import Network

Frame = tuple[frozenset[int], int]
Member = tuple[int, tuple[Frame, ...]]
Members = tuple[Member, ...]
Room = tuple[int, ...]  # for each counted definition

_MOST_SETS = 1 << 16  # of members
_MOST_MEMBERS = 64  # of a set
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
      start: the state before the first byte, whose common stack is empty.
      start_needs: the room that any whole text needs; None where no text ends.
    """

    def __init__(self, network: Network):
        self._network = network
        self._counted = frozenset(self.counted_of(network))
        self.counted = sorted(self._counted)
        # No byte would show that a definition without one is open, and counts.
        if len(self.counted) > _MOST_COUNTED or self._counted & _may_be_empty(network):
            raise AmbiguousError
        self._next = network.table.tolist()
        self._tails: defaultdict[int, set[int]] = defaultdict(set)  # what definitions end with
        for owner, calls in zip(network.owner, network.calls, strict=True):
            self._tails[owner] |= {other for other, after in calls if network.only_ends[after]}
        self._met_opened = self._find_opened()
        self._needs = _needs(network, self.counted, self._met_opened)
        # The caches are those of one machine, and go with it.
        self._resolved = functools.cache(self._resolve)
        self._required = functools.cache(self._requirement)
        self._options = functools.cache(self._find_options)
        self.needed = functools.cache(self._find_needed)
        self._ample = functools.cache(self._with_ample_room)
        self._needs_of = functools.cache(self._find_needs)
        self._pushed = functools.cache(self._push)
        self._tail_calls = functools.cache(self._find_tail_calls)
        self.frames: list[Frame] = []
        self._frame_number: dict[Frame, int] = {}
        self.sets: list[frozenset[Member]] = []
        self._is_waiting: list[bool] = []
        self._set_number: dict[frozenset[Member], int] = {}
        self._above: defaultdict[int, set[int]] = defaultdict(set)  # definitions, by frame
        bottom = (self._opened(0), -1)
        begun = network.starts[0], (bottom,)
        self.start_needs = self._required(*begun)
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

    def may_be_on(self, state: int, frame: int) -> bool:
        """Whether a waiting state may be met with this frame on top."""
        owner, known = self._network.owner, self._above[frame]
        bases = {owner[above[-1][1] if above else place] for place, above in self.sets[state]}
        return bases <= set().union(*(self._tail_calls(one) for one in known))

    def choices(self, state: int) -> tuple[list[Members], list[int]]:
        """What bytes lead to that do not do the same, and which of it each class of bytes does.

        Bytes that may not follow the state, which does not wait, do -1.
        """
        members = sorted(self.sets[state], key=_order)
        rows = [self._next[place] for place, _ in members]
        number: dict[tuple[int, ...], int] = {(-1,) * len(members): -1}
        found: list[Members] = []
        of_class = []
        for targets in zip(*rows, strict=True):
            if targets not in number:
                number[targets] = len(found)
                both = zip(targets, members, strict=True)
                after = {(to, above) for to, (_, above) in both if to >= 0}
                found.append(tuple(sorted(after, key=_order)) if len(after) > 1 else tuple(after))
            of_class.append(number[targets])
        return found, of_class

    def after(self, members: Members, room: Room) -> tuple[int, tuple[int, ...]] | None:
        """What a byte does that leads to some members.

        Returns:
          The state after it, which may wait for one of these frames, and the frames that it pushes,
          the topmost first; None where the byte may not follow.
        """
        # Nearly always there is room for all, and one state for all rooms, which is kept.
        if all(map(int.__le__, self.needed(members), room)):
            return self._ample(members)
        options = self._options(members)
        kept = tuple(m for m, needed in options if all(map(int.__le__, needed, room)))
        return self._pushed(kept) if kept else None

    def least_needed(self, state: int, choices: Iterable[Members]) -> Room:
        """The room of which less is never met with a state.

        It is all that there is where nothing is on the stack; elsewhere a text has to be able to
        end with it.

        Args:
          state: one that does not wait.
          choices: those of the state.
        """
        if any(above and above[-1][1] < 0 for _, above in self.sets[state]):
            return (self._network.max_depth or 1,) * len(self.counted)
        needs = {needed for members in choices for _, needed in self._options(members)}
        return tuple(map(min, zip(*needs, strict=True))) if needs else self._none()

    def _find_needed(self, members: Members) -> Room:
        """The room with which a byte does what it does with any larger one."""
        needs = [needed for _, needed in self._options(members)]
        return tuple(map(max, *needs)) if len(needs) > 1 else needs[0] if needs else self._none()

    def _with_ample_room(self, members: Members) -> tuple[int, tuple[int, ...]] | None:
        whole = tuple(member for member, _ in self._options(members))
        return self._pushed(whole) if whole else None

    def opens(self, frames: Iterable[int]) -> Room:
        """How many of some frames open each counted definition."""
        found = [self.frames[frame][0] for frame in frames]
        return tuple(sum(one in opened for opened in found) for one in self.counted)

    def _resolve(self, state: int, frame: int) -> int | None:
        top = self.frames[frame]
        return self._settled({(place, (*above, top)) for place, above in self.sets[state]})

    def _none(self) -> Room:
        return (0,) * len(self.counted)

    def _opened(self, definition: int) -> frozenset[int]:
        return self._counted & {definition}

    def _is_end(self, place: int, above: tuple[Frame, ...]) -> bool:
        return self._network.accepting[place] and bool(above) and above[0][1] < 0

    def _find_options(self, members: Members) -> list[tuple[Member, Room]]:
        """Those of some members that can end, with the room that this needs."""
        both = ((member, self._required(*member)) for member in members)
        return [(member, needed) for member, needed in both if needed is not None]

    def _requirement(self, place: int, above: tuple[Frame, ...]) -> Room | None:
        """The room that a member needs to end, or None where it cannot end."""
        # Each level is a place and what the frame that it stands on opens; the lowest one's is not
        # known. What the levels below have open adds to what a level needs.
        levels: list[tuple[int, frozenset[int] | None]] = []
        for opened, then in above:
            levels.append((place, opened))
            place = then
        levels.append((place, None))
        needed, count = self._none(), self._none()
        for at, on in reversed(levels):
            if on is not None:
                count = tuple(n + (one in on) for n, one in zip(count, self.counted, strict=True))
            if at >= 0:
                here = self._needs_of(at, on)
                if here is None:
                    return None
                needed = tuple(max(x, n + y) for x, n, y in zip(needed, count, here, strict=True))
        return needed

    def _find_needs(self, place: int, opened: frozenset[int] | None) -> Room | None:
        """The room that a definition needs to end, above what is open on its frame."""
        if opened is None:  # The frame is not known.
            owner = self._network.owner[place]
            each = {self._needs_of(place, found) for found in self._met_opened[owner]}
            if len(each) > 1:
                raise AmbiguousError
            return each.pop()
        found = self._needs.get((place, opened), set())
        if len(found) > 1:
            raise AmbiguousError
        return next(iter(found), None)

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
        # The frames that all members end with are certain, whatever the next bytes decide between
        # the members. Without them, texts of any depth meet the same few states.
        common = members[0][1]
        for _, above in members:
            size = 0
            while size < min(len(common), len(above)) and common[-1 - size] == above[-1 - size]:
                size += 1
            common = common[len(common) - size :]
        rest = {(place, above[: len(above) - len(common)]) for place, above in members}
        frames = tuple(map(self._numbered, common))
        if frames:
            owner = self._network.owner
            bases = {owner[above[-1][1] if above else place] for place, above in rest}
            self._above[frames[0]] |= bases
            for below, (_, then) in zip(frames[1:], common, strict=False):
                self._above[below].add(owner[then])
        state = self._settled(rest)
        return None if state is None else (state, frames)

    def _numbered(self, frame: Frame) -> int:
        if frame not in self._frame_number:
            self._frame_number[frame] = len(self.frames)
            self.frames.append(frame)
        return self._frame_number[frame]

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

    def _moves(self, place: int, above: tuple[Frame, ...]) -> tuple[bool, list[Member]]:
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

        A definition is left out that is referred to by one other definition alone, either always at
        its end or never there: then each of it has one of the other around it.
        """
        edges = {
            (network.owner[place], definition, network.only_ends[after])
            for place, calls in enumerate(network.calls)
            for definition, after in calls
        }
        # A definition is counted where it is on a cycle of references with one that is no tail.
        count = len(network.starts)
        reach = np.eye(count, dtype=bool)
        for source, target, _ in edges:
            reach[source, target] = True
        for middle in range(count):
            reach |= reach[:, middle : middle + 1] & reach[middle]
        counted = {
            one
            for source, target, is_tail in edges
            for one in range(count)
            if not is_tail and reach[one, source] and reach[target, one]
        }
        # Those with one reference have the definition around them, whose count bounds theirs; but
        # one of each cycle of such references has to stay.
        around: dict[int, int] = {}
        for one in sorted(counted - {0}, reverse=True):
            sites = {(s, tail) for s, t, tail in edges if t == one and not (s == one and tail)}
            if len(sites) != 1:
                continue
            [(outer, _)] = sites
            last = outer
            while last in around:
                last = around[last]
            if last != one and last in counted:
                around[one] = outer
                counted.discard(one)
        return counted


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
    following = [sorted(set(row[row >= 0].tolist())) for row in network.table]
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
        least = {x for x in found if not any(y != x and _is_within(y, x) for y in found)}
        least = {x for x in least if max(x, default=0) <= (network.max_depth or 1)}
        if least != needs.get(key, set()):
            needs[key] = least
            queue += before[key]
    return needs


def _is_within(room: Room, other: Room) -> bool:
    return all(map(int.__le__, room, other))
