"""From a machine with a stack over bytes to one over the tokens of a tokenizer.

A token does to a state what its bytes do one after another. Where one of them asks for the frame on
top of the stack that the token has met, the rest of the token is done by that frame: the pair of
the state that asks and of the rest is a way to ask. For arrays of arrays (see ``pushdown``), with S
the state after ``[``, T that after an element, and f the frame of an element::

    state   token   entry
    S       [[      outcome: S, which pushes f and f
    S       ]       asks for a frame, with nothing left
    S       ]]      asks for a frame, with ] left: f leads to T, where ] asks for the next frame

The outcomes of tokens and of rests, for each state and frame and for each room that changes them,
are the tables of a ``StackAutomaton``.

A state within a string whose characters are counted is a state of the device for each number of
characters. What tokens do is found once, for a string that has just begun. A token that stays in
the string adds its characters; there are other rows where the string would be too long or short.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.batches.widths import round_up
from decoding_jax.constraints import definitions
from decoding_jax.constraints.automata import distinct, forgotten, ranges
from decoding_jax.constraints.counted import Counted
from decoding_jax.constraints.definitions import MOST_PLACES, Network
from decoding_jax.constraints.pushdown import AMPLE, AmbiguousError, Machine, Members, Room
from decoding_jax.constraints.token_automata import Classes, Vocabulary, different
from decoding_jax.constraints.tries import Edges, Trie, Walk
from decoding_jax.transforms import PrefixAllowedTokens
from decoding_jax.transforms.languages import packed_bytes
from decoding_jax.transforms.stack_automata import StackAutomaton

_DEAD, _UNKNOWN = -1, -2
_LEAST = 8  # of the sizes of tables, which are padded so that few programs are compiled
_MOST_FRAMES = 1024
_CACHED = 1 << 16  # entries of a table that the cache of a processor holds


def over_tokens(network: Network, vocabulary: Vocabulary) -> PrefixAllowedTokens | None:
    """The transform that keeps texts to nested definitions.

    None where the definitions are ambiguous, or the machine or its stack would be large, or where
    not every byte that a text may have is a token, so that a text might not be able to end. Strings
    that cannot be counted have states for their lengths.

    Raises:
      ValueError: where no text ends within the depth.
    """
    depth = network.max_depth or (1 if network.strings else 0)
    if not depth or not vocabulary.single_bytes.issuperset(network.bytes_read()):
        return None
    try:
        with forgotten(Machine(network)) as machine:
            capacity = machine.longest_stack(depth)
            if capacity > _MOST_FRAMES:
                return None
            if not machine.has_texts:
                raise network.endless()
            with forgotten(_Runs(machine)) as runs:
                return _Tables(machine, runs, vocabulary).transform(depth, capacity)
    except AmbiguousError as error:
        if not error.strings:
            return None
        for longest in definitions.LONGEST:
            spelled = network.spelled(longest, error.strings)
            if (made := over_tokens(spelled, vocabulary)) is not None:
                network.shortened = spelled.shortened
                return made
        return None


class Context(NamedTuple):
    """What has to be known of a beginning of a token, beside a state.

    Attributes:
      pushed: the frames that were pushed.
      room: the room that was met.
      needed: the room that has been needed.
      used: the characters of the string that the token begins in; -1 as long as that has no end,
        and 0 where it begins in none that is counted.
      length: the characters of the token that are in the string that is open.
    """

    pushed: tuple[int, ...]
    room: Room
    needed: Room
    used: int
    length: int


class Outcome(NamedTuple):
    """What a token does.

    Attributes:
      state: the state after it.
      pushed: the frames that it pushes.
      length: its characters in the string that is open then.
      stays: whether that is the string that it begins in, so that these are more characters.
    """

    state: int
    pushed: tuple[int, ...] = ()
    length: int = 0
    stays: bool = False


class Code(NamedTuple):
    """What a token does where the string that it begins in is neither too long nor too short.

    Attributes:
      entry: the entry of a table: the number of an outcome, or of a way to ask for a frame.
      needed: the characters that the string has to have room for.
      used: the characters that the string must not lack more of; -1 where it does not end.
    """

    entry: int
    needed: int
    used: int


_Move = tuple[Members, int, tuple[int, ...] | None, Room | None]
"""What a byte leads to; the state after it, or -1 where that depends on more; the frames that it
pushes, or None if it asks for the one on top; and the room that it needs, if any."""


class _Runs:
    """What bytes do one after another, from the stack that they meet: the steps of a ``Walk``.

    Attributes:
      places: each a state and a context.
      least_room: the room of which less is never met with a state.
    """

    def __init__(self, machine: Machine):
        self.machine, self.byte_class = machine, machine.byte_class
        self.places: list[tuple[int, Context]] = []
        self._number: defaultdict[Context, dict[int, int]] = defaultdict(dict)
        self.table = np.full((256, 256), _UNKNOWN, np.int32)
        self.asks = np.zeros(256, bool)
        self._ample = (AMPLE,) * len(machine.counted)
        self._moves = functools.cache(self._find_moves)
        self._plain = functools.cache(self._find_plain)
        self.least_room = functools.cache(self._find_least)
        self._opens = functools.cache(machine.opens)
        self._slack = functools.cache(self._find_slack)
        self._needing = functools.cache(self._find_needing)

    def begin(self, state: int, room: Room) -> int:
        """The place before the first byte."""
        used = 0 if self.machine.string(state) is None else -1
        return self._numbered(state, Context((), room, (0,) * len(room), used, 0))

    def needs(self) -> np.ndarray:
        """The room that has been needed at each place, int ``[places, K]``."""
        needs = [context.needed for _, context in self.places]
        return np.array(needs, np.int64).reshape(len(needs), len(self._ample))

    def _find_least(self, state: int) -> Room:
        return self.machine.least_needed(state, [one for one, *_ in self._moves(state)[0]])

    def find(self, places: np.ndarray) -> None:
        """Fills in the rows of some places."""
        unknown = places[self.table[places, 0] == _UNKNOWN]
        for place in np.unique(unknown).tolist() if len(unknown) else ():
            state, context = self.places[place]
            moves, column = self._moves(state)
            slack, found = self._slack(context), []
            for members, to, frames, need in moves:
                is_known = not need or all(map(int.__le__, need, slack))
                then = context if is_known else self._needing(context, need)
                if to < 0 or then is None or (frames is None and context.pushed):
                    found.append(self._after(state, context, members))
                else:
                    if frames:
                        then = Context(frames + then[0], *then[1:])
                    known = self._number[then]
                    found.append(known[to] if to in known else self._numbered(to, then))
            self.table[place] = np.array([*found, _DEAD]).take(column)

    def _find_slack(self, context: Context) -> Room:
        """The room that a byte may need and leave the context as it is."""
        pushed, room, needed, _, _ = context
        opened = self._opens(pushed)
        within = map(min, room, needed) if AMPLE in room else room
        return tuple(map(int.__sub__, within, opened))

    def _find_needing(self, context: Context, need: Room) -> Context | None:
        """The context after a byte that needs more room than the slack; None without that room."""
        opened = self._opens(context.pushed)
        whole = tuple(map(int.__add__, need, opened))
        if not all(map(int.__le__, whole, context.room)):
            return None
        return context._replace(needed=tuple(map(max, context.needed, whole)))

    def _find_moves(self, state: int) -> tuple[list[_Move], np.ndarray]:
        """What bytes do to a state, and which of it each byte does, or -1."""
        found, of_byte = self.machine.choices(state)
        if self.machine.string(state) is not None:
            return [(one, -1, (), None) for one in found], of_byte
        return [(one, *self._plain(one)) for one in found], of_byte

    def _find_plain(self, members: Members) -> tuple[int, tuple[int, ...] | None, Room | None]:
        """What is known of a byte that leads to some members, as a ``_Move`` has it."""
        machine = self.machine
        one = machine.after_one(members)
        if one is not None:
            return one, None if machine.is_waiting(one) else (), None
        after, need = machine.after(members, self._ample), machine.needed(members)
        if after is None:
            return -1, (), None
        to, frames = after
        needs = need if any(need) else None
        if machine.is_waiting(to):
            return (-1, (), needs) if frames else (to, None, needs)
        return to, frames, needs

    def _after(self, state: int, context: Context, members: Members) -> int:
        pushed, room, needed, used, count = context
        machine, opened = self.machine, self._opens(pushed)
        here = tuple(map(int.__sub__, room, opened))
        found = machine.after(members, here)
        if found is None:
            return _DEAD
        if AMPLE in room:
            need = machine.needed(members)
            if any(need):
                needed = tuple(max(n, k + o) for n, k, o in zip(needed, need, opened, strict=True))
        target, frames = found
        frames += pushed
        while machine.is_waiting(target) and frames:
            resolved = machine.resolved(target, frames[0])
            if resolved is None:
                return _DEAD
            target, frames = resolved, frames[1:]
        string = machine.string(state)
        if string is not None:
            then = machine.string(target)
            if then is not None:
                count += string.begins
                if count + then.least > string.string.high:
                    return _DEAD
            elif used >= 0 and count < string.string.low:
                return _DEAD
            else:
                used, count = count if used < 0 else used, 0
        return self._numbered(target, Context(frames, room, needed, used, count))

    def _numbered(self, state: int, context: Context) -> int:
        known = self._number[context]
        if state not in known:
            number = known[state] = len(self.places)
            self.places.append((state, context))
            if number == len(self.table):
                self.table = np.concatenate([self.table, np.full_like(self.table, _UNKNOWN)])
                self.asks = np.concatenate([self.asks, np.zeros_like(self.asks)])
            self.asks[number] = self.machine.is_waiting(state)
        return known[state]


class _Answers:
    """The states after states that ask are given frames.

    Attributes:
      begins: the state after each state and each frame that it may be given; None if there is none.
      resumed: those that do not ask again, which let what is left of tokens begin.
      passed: those that ask for the next frame, by the state that asked first.
    """

    def __init__(self, machine: Machine):
        self._machine = machine
        self.begins: dict[tuple[int, int], int | None] = {}
        self.resumed: set[int] = set()
        self.passed: defaultdict[int, set[int]] = defaultdict(set)
        self._asking: set[int] = set()
        # States with the same definitions below them may be given the same frames.
        self._alike: dict[frozenset[int], tuple[list[int], dict[int, None]]] = {}

    def ask(self, states: Iterable[int]) -> None:
        """Gives frames that may be on top to states, and to those that ask again then.

        States that have asked before are given the frames that are new.
        """
        machine, grown, queue = self._machine, sorted(self._machine.grown), sorted(states)
        machine.grown.clear()
        for below, (asking, frames) in self._alike.items():
            for frame in grown:
                if frame not in frames and machine.may_be_on(below, frame):
                    frames[frame] = None
                    for state in asking:
                        queue += self._given(state, frame)
        for state in queue:  # which grows
            if state in self._asking:
                continue
            self._asking.add(state)
            below = machine.below(state)
            if below not in self._alike:
                may_be_on = functools.partial(machine.may_be_on, below)
                known = filter(may_be_on, range(len(machine.frames)))
                self._alike[below] = [], dict.fromkeys(known)
            asking, frames = self._alike[below]
            asking.append(state)
            for frame in frames:
                queue += self._given(state, frame)

    def _given(self, state: int, frame: int) -> list[int]:
        """The state after a state is given a frame, if it asks again."""
        then = self.begins[state, frame] = self._machine.resolved(state, frame)
        if then is None:
            return []
        if not self._machine.is_waiting(then):
            self.resumed.add(then)
            return []
        self.passed[state].add(then)
        return [then]


class _Followed:
    """What the texts of a trie do in some states.

    Attributes:
      trie, walk: the texts, and what follows them.
      classes: those of the texts.
      states: the room that each state needs, of which more makes no difference.
      rows: the states and rooms of the rows of ``classes``.
    """

    def __init__(self, trie: Trie, runs: _Runs):
        self.trie, self.walk, self.classes = trie, Walk(trie, runs), Classes(len(trie.texts))
        self.states: dict[int, Room] = {}
        self.rows: list[tuple[int, Room]] = []

    def add(self, rows: Sequence[tuple[int, Room]]) -> None:
        """Adds rows of states that there have been none of, with all rooms that differ."""
        self.rows += rows
        for state, room in rows:
            more = tuple(0 if n == AMPLE else n + 1 for n in room)
            self.states[state] = tuple(map(max, self.states.get(state, more), more))


class _Tables:
    """The outcomes of tokens in all states, and of what is left of them in all frames."""

    def __init__(self, machine: Machine, runs: _Runs, vocabulary: Vocabulary):
        self._machine, self._runs, self._ends = machine, runs, vocabulary.ends
        self._outcomes: dict[Outcome, int] = {}
        self._codes: dict[Code, int] = {}
        self._ways: dict[tuple[int, bytes], int] = {}
        self._answers = _Answers(machine)
        self._largest = (0,) * len(machine.counted)  # the most room that anything needs
        trie, places = vocabulary.sorted_begun
        self._begun = _Followed(trie, self._runs)
        self._parts = [(self._begun, places)]
        queue = self._reached()
        if vocabulary.sorted_first is not None:
            trie, places = vocabulary.sorted_first
            first = _Followed(trie, self._runs)
            self._follow([machine.start], first)
            self._parts.append((first, places))
        while queue:
            self._follow(queue, self._begun)
            self._ask()
            queue = self._new_states()
            if len(self._begun.states) + len(queue) > MOST_PLACES:
                raise AmbiguousError

    def _reached(self) -> list[int]:
        """The states that bytes lead to, and those in which frames let rests of tokens begin."""
        found, answers = {self._machine.start: None}, self._answers
        queue, ample = [*found], (AMPLE,) * len(self._largest)
        while queue:
            begins = np.array([self._runs.begin(state, ample) for state in queue])
            self._runs.find(begins)
            after = np.unique(self._runs.table[begins])
            after = after[after >= 0]
            asks = self._runs.asks[after]
            met = [self._runs.places[place][0] for place in after.tolist()]
            answers.ask(itertools.compress(met, asks.tolist()))
            met = [*itertools.compress(met, (~asks).tolist()), *sorted(answers.resumed)]
            queue = [state for state in dict.fromkeys(met) if state not in found]
            found |= dict.fromkeys(queue)
            if len(found) > MOST_PLACES:
                raise AmbiguousError
        return sorted(found)

    def _new_states(self) -> list[int]:
        """The states that have been met and not yet followed."""
        met = {one.state for one in self._outcomes}
        return sorted((met | self._answers.resumed) - self._begun.states.keys())

    def _follow(self, states: Sequence[int], into: _Followed) -> None:
        """Adds the outcomes of texts from states, with ample room and with all that matter."""
        ample = (AMPLE,) * len(self._largest)
        rows = [(state, ample) for state in states]
        edges = into.walk.edges(np.array([self._runs.begin(*one) for one in rows]))
        scarce = []
        for i, need in enumerate(self._needed(edges, len(rows)).tolist()):
            self._largest = tuple(map(max, self._largest, need))
            # A room of ``need`` or more of a kind is as ample; less than ``least`` is not met.
            least = self._runs.least_room(states[i])
            rooms = itertools.product(
                *([*range(low, n), AMPLE] for low, n in zip(least, need, strict=True))
            )
            scarce += [(i, room) for room in rooms if room != ample]
        if scarce:
            edges = self._with_less_room(edges, states, scarce, into.walk)
            rows += [(states[i], room) for i, room in scarce]
        code = np.full(len(self._runs.places), -1)
        for pairs in (edges.shared, edges.single):
            for place in different(pairs[2], len(code)).tolist():
                if code[place] < 0:
                    code[place] = self._code_at(place)
            pairs[2] = code[pairs[2]]
        ways = self._ways_of(edges.asking, into.walk.texts)
        into.classes.add(len(rows), edges.lists, edges.shared, edges.single, ways)
        into.add(rows)

    def _needed(self, edges: Edges, count: int) -> np.ndarray:
        """The room that the edges of each of some rows need, int ``[rows, K]``."""
        needs = self._runs.needs()
        kinds, kind = distinct(needs)
        is_met = np.zeros((count, len(kinds)), bool)
        for start, _, place, *_ in (edges.shared, edges.single, edges.asking):
            is_met[start, kind[place]] = True
        needed = np.zeros((count, needs.shape[1]), np.int64)
        for met, need in zip(is_met.T, needs[kinds], strict=True):
            needed[met] = np.maximum(needed[met], need)
        return needed

    def _with_less_room(
        self, edges: Edges, states: Sequence[int], scarce: Sequence[tuple[int, Room]], walk: Walk
    ) -> Edges:
        """The edges of rows with ample room, and of rows with less, which come after them.

        A text leads to the same place unless it needs more; only then it is followed again. Where
        that is so of a list of texts, all are.

        Args:
          edges: those of ample room.
          states: the state of each row.
          scarce: rows, and the room of another row of each.
          walk: what the edges are of.
        """
        needs, room = self._runs.needs(), np.array([room for _, room in scarce], np.int64)
        count = np.bincount([row for row, _ in scarce], minlength=len(states))
        first = np.cumsum(count) - count
        is_whole = np.zeros(len(scarce), bool)  # the rows whose texts are all followed again

        def split(start: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, ...]:
            edge = np.repeat(np.arange(len(start)), count[start])
            row = ranges(first[start], count[start])
            fits = (needs[place[edge]] <= room[row]).all(axis=1)
            return edge, row, fits

        _, row, fits = split(edges.shared[0], edges.shared[2])
        is_whole[row[~fits]] = True
        lacking, each = [], []
        for pairs in (edges.shared, edges.single, edges.asking):
            edge, row, fits = split(pairs[0], pairs[2])
            more = pairs[:, edge]
            lacking.append(np.stack([row, more[1]])[:, ~fits & ~is_whole[row]])
            more[0] = len(states) + row
            each.append([pairs, more[:, fits & ~is_whole[row]]])
        lacking, lists = lacking[1:], [*edges.lists]

        def follow(rows: np.ndarray, walk: Walk) -> Edges:
            begins = [self._runs.begin(states[scarce[i][0]], scarce[i][1]) for i in rows.tolist()]
            return walk.edges(np.array(begins, np.int64))

        row = np.flatnonzero(is_whole)
        again = follow(row, walk)
        again.shared[1] += len(lists)
        lists += again.lists
        for found, pairs in zip(each, (again.shared, again.single, again.asking), strict=True):
            found.append(np.concatenate([len(states) + row[pairs[:1]], pairs[1:]]))
        row, row_of = np.unique(np.concatenate(lacking, axis=1)[0], return_inverse=True)
        text, text_of = np.unique(np.concatenate(lacking, axis=1)[1], return_inverse=True)
        is_lacking = np.zeros((len(row), len(text)), bool)
        is_lacking[row_of, text_of] = True
        again = follow(row, Walk(Trie(walk.texts[i] for i in text.tolist()), self._runs))
        sizes = np.array([len(one) for one in again.lists], np.int64)[again.shared[1]]
        many = np.repeat(again.shared, sizes, axis=1)
        many[1] = np.concatenate([again.lists[i] for i in again.shared[1].tolist()] or [many[1]])
        all_single = np.concatenate([again.single, many], axis=1)
        for found, pairs in zip(each[1:], (all_single, again.asking), strict=True):
            more = pairs[:, is_lacking[pairs[0], pairs[1]]]
            found.append(np.concatenate([[len(states) + row[more[0]], text[more[1]]], more[2:]]))
        return Edges(lists, *(np.concatenate(found, axis=1) for found in each))

    def _ways_of(self, asking: np.ndarray, texts: Sequence[bytes]) -> np.ndarray:
        """Starts and texts that ask, with the codes of the ways in which they do."""
        start, text, place, depth = asking
        both = np.zeros((2, len(self._runs.places)), np.int64)
        for one in different(place, len(self._runs.places)).tolist():
            state, context = self._runs.places[one]
            both[:, one] = state, context.used
        first, rest = distinct(np.stack([text, depth], axis=1))
        rests = [texts[i][n:] for i, n in np.stack([text, depth])[:, first].T.tolist()]
        each = {one: i for i, one in enumerate(dict.fromkeys(rests))}
        key = np.stack([*both[:, place], np.array([each[one] for one in rests], np.int64)[rest]])
        first, index = distinct(key.T)
        codes, rests = [], [*each]
        for state, used, one in key[:, first].T.tolist():
            way = self._ways.setdefault((state, rests[one]), len(self._ways))
            codes.append(self._numbered(Code(-2 - way, used, used)))
        return np.stack([start, text, np.array(codes, np.int32)[index]])

    def _code_at(self, place: int) -> int:
        state, (pushed, _, _, used, count) = self._runs.places[place]
        outcome = Outcome(state, pushed, count, used < 0)
        entry = self._outcomes.setdefault(outcome, len(self._outcomes))
        if used >= 0:
            return self._numbered(Code(entry, used, used))
        string = self._machine.string(state)
        assert string is not None  # It has no end yet.
        return self._numbered(Code(entry, count + string.least, -1))

    def _numbered(self, code: Code) -> int:
        return self._codes.setdefault(code, len(self._codes))

    def _ask(self) -> None:
        """Gives frames to the states that ask for them, and follows what is left of the tokens.

        What is left may ask again, with less left; and there may be further frames then.
        """
        machine, answers, known = self._machine, self._answers, -1
        # At the end the states of all ways have been asked, with all frames.
        while known != len(self._ways) or machine.grown:
            answers.ask({state for state, _ in self._ways})
            states = sorted(answers.resumed)
            for found in states:
                self._outcomes.setdefault(Outcome(found), len(self._outcomes))
            queue = [*self._ways]
            for state, rest in queue:  # which grows
                for then in sorted(answers.passed.get(state, ())):
                    if (then, rest) not in self._ways:
                        self._ways[then, rest] = len(self._ways)
                        queue.append((then, rest))
            known = len(self._ways)
            self._rests = _Followed(Trie(rest for _, rest in self._ways), self._runs)
            if self._rests.trie.texts and states:
                self._follow(states, self._rests)

    def transform(self, max_depth: int, capacity: int) -> PrefixAllowedTokens:
        """The transform of the tables, padded."""
        machine, sizes = self._machine, tuple(n + 1 for n in self._largest)
        states, has_first = self._begun.states, len(self._parts) > 1
        strings = map(machine.string, states)
        numbers = [1 if place is None else place.string.high + 1 for place in strings]
        *before, ended = itertools.accumulate(numbers, initial=0)
        state_of = dict(zip(states, before, strict=True))
        # ``ended`` is the state after an end token; then comes that before the first token.
        count = np.concatenate([*map(np.arange, numbers), np.zeros(1 + has_first)])
        frame_row, frame_table = self._frames(sizes)
        frame_table, way_of = _merged(frame_table)
        row, table, token_class = self._states_and_tokens(sizes, way_of)
        table, row = _distinct_rows(table, row)
        frame_table, frame_row = _distinct_rows(frame_table, frame_row)
        of_outcomes = np.array([state_of[one.state] + one.length for one in self._outcomes])
        stays = np.array([one.stays for one in self._outcomes])
        target = np.append(np.where(stays, -1 - of_outcomes, of_outcomes), ended)
        pushed = [[frame + 1 for frame in one.pushed] for one in self._outcomes]
        opened = [(0,) * len(sizes), *(machine.opens([i]) for i in range(len(machine.frames)))]
        allowed, bits_row, asked, asked_row = _rows_of_bits(table)
        language = StackAutomaton(
            row=_padded(row, 0, columns=False),
            table=_padded(table, -1),
            token_class=token_class[None].astype(np.int32),
            bits=packed_bytes(_padded(allowed, False, columns=False)[0], token_class)[None],
            bits_row=_padded(bits_row, 0),
            asked=_padded(asked, -1, columns=False),
            asked_row=_padded(asked_row, 0, columns=False),
            count=_padded(count, 0),
            target=_padded(target, 0),
            pushed=_padded(np.array([*itertools.zip_longest(*pushed, [0], fillvalue=0)]).T, 0),
            frame_row=_padded(frame_row, 0, columns=False),
            frame_table=_padded(frame_table, -1),
            opened=_padded(np.array(opened).reshape(len(opened), len(sizes)), 0, columns=False),
            max_depth=np.full((1, len(sizes)), max_depth, np.int32),
            rooms=np.array([sizes], np.int32).reshape(1, -1),
            capacity=round_up(capacity, _LEAST),
            max_popped=round_up(_longest_chain(table, frame_table, capacity)),
        )
        first = ended + 1 if has_first else None
        return PrefixAllowedTokens(language, start=state_of[machine.start], first=first)

    def _states_and_tokens(
        self, sizes: Room, way_of: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``StackAutomaton.row``, ``table`` and ``token_class``, not yet padded.

        The states are those that have been met, the one after an end token, and perhaps the one
        before the first token of a text.

        Args:
          sizes: of rooms.
          way_of: the number of each way to ask in the tables, int ``[W]``.
        """
        each_code, made = self._classes_of_tokens(way_of)
        both = zip(made, self._parts, strict=True)
        class_of = [of_text[places] for (of_text, _), (_, places) in both]
        kinds, token_class = distinct(np.stack([*class_of, self._ends], axis=1))
        row, spelled, begin = list[np.ndarray](), list[np.ndarray](), 0
        after_end = sum(len(part.rows) for part, _ in self._parts)
        size = after_end + 1
        for (part, _), (_, codes), of_token in zip(self._parts, made, class_of, strict=True):
            rows = self._rows_of_rooms(part, sizes)
            for (state, need), one in zip(part.states.items(), rows, strict=True):
                string = self._machine.string(state)
                if string is None:
                    row.append(begin + one[None])
                    continue
                if any(need):
                    raise AmbiguousError
                those = [each_code[i] for i in codes[one[0], of_token[kinds]].tolist()]
                few, number = _by_length(string.string, those)
                row.append(np.repeat(size + number[:, None], len(one), axis=1))
                spelled.append(few)
                size += len(few)
            row += [np.full((1, rows.shape[1]), after_end)] if part is self._begun else []
            begin += len(part.rows)
        table = np.full((size, len(kinds)), -1, np.int32)
        entries, begin = np.array([code.entry for code in each_code], np.int32), 0
        for (part, _), (_, codes), of_token in zip(self._parts, made, class_of, strict=True):
            whole = table[begin : begin + len(part.rows)]
            _look_up(entries, codes, of_token[kinds], whole)
            may_end = [self._machine.may_end(state) for state, _ in part.rows]
            whole[np.ix_(may_end, self._ends[kinds])] = len(self._outcomes)
            begin += len(whole)
        if spelled:
            table[after_end + 1 :] = np.concatenate(spelled)
        return np.concatenate(row), table, token_class

    def _classes_of_tokens(
        self, way_of: np.ndarray
    ) -> tuple[list[Code], list[tuple[np.ndarray, np.ndarray]]]:
        """The different codes, now that ways are merged, and that of none at the end.

        Also what ``Classes.finished`` gives for each part, with the numbers of these.
        """
        ways = way_of.tolist()
        codes = [
            Code(-2 - ways[-2 - code.entry], *code[1:]) if code.entry <= -2 else code
            for code in self._codes
        ]
        number = {code: i for i, code in enumerate(dict.fromkeys(codes))}
        renamed = np.array([number[one] for one in codes], np.int64)
        made = [part.classes.finished(renamed) for part, _ in self._parts]
        return [*number, Code(-1, 0, -1)], made

    def _rows_of_rooms(self, part: _Followed, sizes: Room) -> np.ndarray:
        """The row of each state of a part with each room, int ``[states, rooms]``."""
        rooms = sorted((_number(room, sizes), room) for room in _rooms(sizes))
        kept = functools.cache(lambda *both: [_kept(room, *both) for _, room in rooms])
        place = {one: i for i, one in enumerate(part.rows)}
        found = np.zeros((len(part.states), len(rooms)), np.int64)
        for to, (state, need) in zip(found, part.states.items(), strict=True):
            to[:] = [place[state, room] for room in kept(self._runs.least_room(state), need)]
        return found

    def _frames(self, sizes: Room) -> tuple[np.ndarray, np.ndarray]:
        """``StackAutomaton.frame_row`` and ``frame_table``; row 0 is that of no frame."""
        machine, ways, rests = self._machine, list(self._ways), self._rests
        found, place = np.zeros((0, 1), np.int32), {one: i for i, one in enumerate(rests.rows)}
        if place:
            number, table = rests.classes.finished()
            entries = np.array([*(code.entry for code in self._codes), -1], np.int32)
            found = entries[table[:, number[rests.trie.places([rest for _, rest in ways])]]]
        numbers = {way: i for i, way in enumerate(ways)}
        frame_row = np.zeros((len(machine.frames) + 1, _count(sizes)), np.int32)
        rows = [np.full(len(ways), -1, np.int32)]
        asking = np.array([state for state, _ in ways], np.int64)
        is_empty = np.array([not rest for _, rest in ways], bool)
        for frame, room in itertools.product(range(len(machine.frames)), list(_rooms(sizes))):
            row = np.full(len(ways), -1, np.int32)
            for state in sorted(set(asking.tolist())):
                then = self._answers.begins.get((state, frame))
                here = asking == state
                if then is None:
                    continue
                if machine.is_waiting(then):
                    row[here] = [-2 - numbers[then, ways[i][1]] for i in np.flatnonzero(here)]
                    continue
                if place:
                    least = self._runs.least_room(then)
                    row[here] = found[place[then, _kept(room, least, rests.states[then])]][here]
                row[here & is_empty] = self._outcomes[Outcome(then)]
            frame_row[frame + 1, _number(room, sizes)] = len(rows)
            rows.append(row)
        return frame_row, np.stack(rows)


def _by_length(string: Counted, codes: Sequence[Code]) -> tuple[np.ndarray, np.ndarray]:
    """What classes of tokens do in a string, by the number of its characters.

    Args:
      string: the strings.
      codes: the code of each class.

    Returns:
      Different rows of entries, int ``[n, C]``; and the row of each number of characters.
    """
    entries, needed, used = np.array(codes, np.int32).T
    count = np.arange(string.high + 1)
    room, lack = string.high - count, np.maximum(string.low - count, 0)
    # Only whether there is room for as many characters as some token has, makes a difference.
    of_room = np.searchsorted(np.unique(needed), room, side="right")
    of_lack = np.searchsorted(np.unique(used), lack)
    differs = np.append(True, (np.diff(of_room) != 0) | (np.diff(of_lack) != 0))
    room, lack = room[differs, None], lack[differs, None]
    fits = (needed <= room) & ((used < 0) | (used >= lack))
    return np.where(fits, entries, -1), np.cumsum(differs) - 1


def _look_up(
    entries: np.ndarray, codes: np.ndarray, columns: np.ndarray, found: np.ndarray
) -> None:
    """Sets ``found`` to the entries of some columns of codes, a few rows at a time.

    So few stay in the cache of the processor, which an array of all of them between would not.
    """
    step = max(1, _CACHED // len(columns))
    for i in range(0, len(codes), step):
        found[i : i + step] = entries[codes[i : i + step, columns]]


def _rooms(sizes: Room) -> Iterator[Room]:
    """All rooms below some sizes."""
    return itertools.product(*map(range, sizes))


def _count(sizes: Room) -> int:
    return int(np.prod(sizes, dtype=np.int64))


def _kept(room: Room, least: Room, need: Room) -> Room:
    """A room, of which there is at least some, where one that is needed or more is ample."""
    each = zip(map(max, room, least), need, strict=True)
    return tuple(AMPLE if have >= n else have for have, n in each)


def _number(room: Room, sizes: Room) -> int:
    """The number of a room among all, the first kind being the fastest to change."""
    number, step = 0, 1
    for have, size in zip(room, sizes, strict=True):
        number, step = number + have * step, step * size
    return number


def _merged(frame_table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The table where ways to ask that every frame answers alike are one; and the new numbers."""
    number = np.arange(frame_table.shape[1])
    while True:
        first, alike = distinct(frame_table.T)
        if len(first) == frame_table.shape[1]:
            return frame_table, number
        number, frame_table = alike[number], frame_table[:, first]
        asks = frame_table <= -2
        frame_table[asks] = -2 - alike[-2 - frame_table[asks]]


def _rows_of_bits(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Which classes of tokens ask for no frame in each row, and which ask in each way.

    Returns:
      Different rows bool ``[U, C]``; int ``[T]``, which of them has those that ask for none; int
      ``[T, A]``, the ways, or -1; and int ``[T, A]``, which of the rows has those that ask so.
    """
    row, column = np.nonzero(table <= -2)
    row, way = np.divmod(np.unique(row << 32 | -2 - table[row, column].astype(np.int64)), 1 << 32)
    count = np.bincount(row, minlength=len(table))
    place = np.arange(len(row)) - (np.cumsum(count) - count)[row]
    asked = np.full((len(table), round_up(int(count.max()) or 1)), -1)
    asked[row, place] = way
    none = np.zeros((1, table.shape[1]), bool)
    rows = np.concatenate([table >= 0, none, table[row] == -2 - way[:, None]])
    first, number = distinct(rows)
    asked_row = np.full(asked.shape, number[len(table)])
    asked_row[row, place] = number[len(table) + 1 :]
    return rows[first], number[: len(table)], asked, asked_row


def _distinct_rows(table: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, number = distinct(table)
    return table[first], number[row]


def _longest_chain(table: np.ndarray, frame_table: np.ndarray, capacity: int) -> int:
    """The most frames that a token pops, or that there are."""
    ways = np.unique(table[table <= -2])
    count = 0
    while len(ways) and count < capacity:
        answers = frame_table[:, -2 - ways]
        ways, count = np.unique(answers[answers <= -2]), count + 1
    return count


def _padded(array: np.ndarray, filled: Any, *, columns: bool = True) -> np.ndarray:
    """One automaton's array ``[1, ...]``, each axis padded to a size of a few."""
    sizes = [round_up(array.shape[0], _LEAST)]
    sizes += [round_up(n, _LEAST) if columns else n for n in array.shape[1:]]
    padding = [(0, to - n) for to, n in zip(sizes, array.shape, strict=True)]
    padded = np.pad(array, padding, constant_values=filled)[None]
    return padded if padded.dtype == bool else padded.astype(np.int32)
