"""Strings in JSON with a length, whose characters are counted beside the states of an automaton.

A state of such strings is a place in the automaton of strings of any length and a number of
characters, as in an automaton with a counter (Gulwani, Srivastava & Holzmann 2008 have such
counters for repetitions). Its size therefore does not depend on the length.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from decoding_jax.constraints import automata
from decoding_jax.constraints.automata import Automaton
from decoding_jax.constraints.encodings import CHARACTERS, in_json
from decoding_jax.constraints.expressions import Expression, Repeat, both, compiled

_ANY_TEXT = Repeat(CHARACTERS, 0, None)
_FAR = 1 << 30
_LEAST = 8  # states of a repetition


class Place(NamedTuple):
    """A place within strings.

    Attributes:
      string: the strings.
      begins: whether a byte that does not end the string begins a character.
      least: how many more characters the string needs.
    """

    string: Counted
    begins: bool
    least: int


@dataclasses.dataclass(frozen=True)
class Counted:
    """The strings in JSON that have so many characters.

    Attributes:
      texts: the texts of the strings, of any length. Where some are shorter than ``low``, each of
        them has to be the beginning of one with one character more (``can_grow``), so that a string
        that is too short may go on.
      low: the least number of characters.
      high: the largest number.
      any_escapes: as for ``encodings.in_json``.

    Example:
      >>> strings = Counted(_ANY_TEXT, 1, 3, False)
      >>> strings.automaton.accepts(b'"abcd"'), strings.spelled(9).accepts(b'"abcd"')
      (True, False)
      >>> strings.places[1][1:]  # after the first quote
      (True, 0)
    """

    texts: Expression
    low: int
    high: int
    any_escapes: bool

    @property
    def automaton(self) -> Automaton:
        """Over bytes, of the strings of any length."""
        return _in_json(self.texts, self.any_escapes)

    def spelled(self, longest: int) -> Automaton:
        """Over bytes, with a state for each number of characters.

        Args:
          longest: the characters that are enough, unless there have to be more.
        """
        high = min(self.high, max(self.low, longest))
        return _in_json(both(self.texts, Repeat(CHARACTERS, self.low, high)), self.any_escapes)

    @functools.cached_property
    def places(self) -> dict[int, Place] | None:
        """The states of ``automaton`` after its first quote and before its last one.

        None where characters cannot be counted: where the number of characters or of further ones
        does not follow from the state.
        """
        made, whole = self.automaton, _in_json(_ANY_TEXT, self.any_escapes)
        bytes_ = np.arange(256)
        table, plain = made.table[:, made.column(bytes_)], whole.table[:, whole.column(bytes_)]
        between = int(plain[0, ord('"')])
        phase = {0: 0}  # the state of any string, which says what has been read of a character
        edges: list[tuple[int, int, int]] = []
        for state in (queue := [0]):  # which grows
            ahead = np.unique(np.stack([table[state], plain[phase[state]]]), axis=1).T.tolist()
            for to, then in ahead:
                if to >= 0:
                    counts = phase[state] == between and not whole.accepting[then]
                    edges.append((state, to, int(counts)))
                    if to not in phase:
                        phase[to] = then
                        queue.append(to)
                    elif phase[to] != then:
                        return None
        least = np.where(made.accepting, 0, _FAR)
        source, target, counts = np.array(edges).T
        while True:
            before = least.copy()
            np.minimum.at(least, source, least[target] + counts)
            if np.array_equal(before, least):
                break
        inside = np.flatnonzero(~made.accepting)[1:].tolist()
        return {one: Place(self, phase[one] == between, int(least[one])) for one in inside}


@functools.lru_cache(256)
def _in_json(texts: Expression, any_escapes: bool) -> Automaton:
    return in_json(compiled(texts), any_escapes)


def can_grow(automaton: Automaton) -> bool:
    """Whether each text is the beginning of one that has one symbol more.

    From each state, there are then texts of all lengths above the shortest one.

    Example:
      >>> [can_grow(compiled(Repeat(CHARACTERS, 1, high))) for high in (None, 9)]
      [True, False]
    """
    ends = np.append(automaton.accepting, False)  # -1, no state, is the last entry
    return bool(ends[automaton.table[automaton.accepting]].any(axis=1).all())


def unrepeated(automaton: Automaton) -> tuple[Automaton, int, int] | None:
    """An automaton whose last part is repeated freely, and how many symbols the texts then have.

    The texts are those of the new automaton that have so many symbols. None where the automaton
    does not end with the repetition of some symbols, as ``[a-z][a-z0-9]{0,62}`` does.

    Example:
      >>> again, low, high = unrepeated(compiled(Repeat(CHARACTERS, 2, 9)))
      >>> len(again.table), low, high
      (1, 2, 9)
    """
    columns, _ = automata.distinct(automaton.table.T)
    table, accepting = automaton.table[:, columns], automaton.accepting
    live = table >= 0
    source, column = np.nonzero(live)
    before: dict[int, set[int]] = {}
    for one, to in zip(source.tolist(), table[source, column].tolist(), strict=True):
        before.setdefault(to, set()).add(one)
    tail = np.flatnonzero(~live.any(axis=1)).tolist()  # the states of the repetition, backwards
    if len(tail) != 1:
        return None
    while len(found := before.get(tail[-1], set())) == 1:
        [one] = found
        same = len(tail) == 1 or np.array_equal(live[one], live[tail[-1]])
        if not same or set(table[one][live[one]].tolist()) != {tail[-1]}:
            break
        if one in tail or (accepting[one] and not accepting[tail[-1]]):
            break
        tail.append(one)
    depth = _depth_of(table, tail)
    optional = int(accepting[tail].sum())
    others = np.delete(accepting, tail)
    if depth is None or len(tail) < _LEAST or (optional < len(tail) and others.any()):
        return None
    again = automaton.table.copy()
    again[tail[-1], automaton.table[tail[-1]] >= 0] = tail[-1]
    ends = accepting.copy()
    ends[tail[-1]] = True
    high = depth + len(tail) - 1
    low = high - optional + 1 if optional < len(tail) else 0
    return automata.reduced(again, automaton.starts, ends), low, high


def _depth_of(table: np.ndarray, tail: list[int]) -> int | None:
    """The symbols before the last state of a list; None where texts differ in it."""
    depth, ends = {0: 0}, {*tail}
    for state in (queue := [0]):  # which grows
        for to in () if state in ends else {*table[state].tolist()} - {-1}:
            if to not in depth:
                depth[to] = depth[state] + 1
                queue.append(to)
            elif depth[to] != depth[state] + 1:
                return None
    return depth[tail[-1]]


def shortest(automaton: Automaton) -> int:
    """The symbols of the shortest text of an automaton, which is not empty."""
    met = np.zeros(len(automaton.table), bool)
    now, count = np.zeros(1, np.int64), 0
    while not automaton.accepting[now].any():
        met[now] = True
        after = np.unique(automaton.table[now])
        now, count = after[(after >= 0) & ~met[np.clip(after, 0, None)]], count + 1
    return count
