"""A trie of the texts of a vocabulary, whose nodes an automaton visits from many states at once.

Most states of a schema are within a string, where nearly every token may follow, and all characters
but a few lead to one state. Nodes that a state reaches in the same way are therefore one set, which
is stepped by all bytes that lead to one state together. The sets are kept for other states and
other automata of the vocabulary, until there are many; small ones are followed node by node.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from decoding_jax.constraints.automata import first_alike, ranges

_FEW = 64  # texts, which are followed one by one
_WIDE = 8  # bytes that may follow a place, from which texts are followed as sets
_BROAD = 32  # bytes that lead to one place, of which those of names may be told apart
_MANY = 4096  # texts, from which those after each byte of a name are a set of their own
_SEVERAL = 8  # kinds of places, from which that is worth it
_OF_NAMES = np.isin(np.arange(256), [*b"$-./@_ 0123456789", *range(65, 91), *range(97, 123)])
_MOST_KEPT = 1 << 24  # nodes of all sets that a trie remembers, each of a few bytes
_EMPTY = 128  # nodes that take as much memory as a step that leads to none


class Steps(Protocol):
    """What bytes do to places: the states of an automaton, or what else is like them.

    Attributes:
      table: int32 ``[P, 256]``, the place after each place and byte, or -1.
      asks: bool ``[P]``, the places at which a text is left, with its rest unread.
      byte_class: int ``[256]``, the class of each byte, by the first one of each. Bytes of one
        class do the same to all places.
    """

    table: np.ndarray
    asks: np.ndarray
    byte_class: np.ndarray

    def find(self, places: np.ndarray) -> None:
        """Fills in the rows of some places."""


@dataclasses.dataclass
class Edges:
    """Which texts lead from some starts to which places.

    Attributes:
      lists: lists of texts that lead from a start to one place.
      shared: starts, numbers of lists and places, int ``[3, n]``.
      single: starts, texts and places, int ``[3, E]``.
      asking: starts, texts, places that ask, and how many bytes lead to them, int ``[4, A]``.
    """

    lists: list[np.ndarray]
    shared: np.ndarray
    single: np.ndarray
    asking: np.ndarray


class NodeSet:
    """Nodes of a trie, with their children.

    Attributes:
      nodes: int ``[n]``, sorted.
      texts: the texts that end at them.
      children, bytes: their children, and the byte that leads to each.
      size: how many texts begin with those of the nodes.
      held: how many nodes these are, with the children.
      number: one of its own.
    """

    def __init__(self, trie: Trie, nodes: np.ndarray, number: int = -1):
        self.nodes, self.number = nodes, number
        ends = trie.text[nodes]
        self.texts = ends[ends >= 0]
        self.children = ranges(trie.begin[nodes], trie.children[nodes])
        self.bytes = trie.byte[self.children]
        self.size = int(trie.size[nodes].sum())
        self.held = len(nodes) + len(self.children)


class Kind(NamedTuple):
    """What bytes do to some places.

    Attributes:
      key: tells kinds apart.
      same: the bytes that change nothing, bool ``[256]``, or None.
      bytes: one byte of each set of other ones that lead to one place.
      set_of: int ``[256]``, the set of each byte, or -1.
      tells_names: whether many bytes lead to one place, of which some that names have are none.
        Schemas differ in these, so that sets of what follows would serve one schema alone.
    """

    key: bytes
    same: np.ndarray | None
    bytes: np.ndarray
    set_of: np.ndarray
    tells_names: bool


After = tuple[list[tuple[int, NodeSet]], np.ndarray, np.ndarray]
"""Sets of many texts, each after a byte; and all nodes of the others, with the byte of each."""


class Trie:
    """Different texts, sorted, whose common beginnings are one node.

    Nodes are numbered by depth, and those of one depth by the texts, so that children of a node are
    neighbours.

    Attributes:
      texts: the texts, none of them empty.
      parent, byte: ``[N]``, the node before each node, and the byte between; 0 is the root.
      begin: int ``[N + 1]``, the first child of each node.
      children: int ``[N]``, how many each node has.
      depth: int ``[N]``, the length of each node's text.
      text: int ``[N]``, the text that ends at each node, or -1.
      first, last: int ``[N]``, the range of the texts that begin with each node's.
      size: int ``[N]``, how many these are.
    """

    def __init__(self, texts: Iterable[bytes]):
        self.texts = sorted(set(texts) - {b""})
        lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        flat = np.frombuffer(b"".join(self.texts), np.uint8)
        start = np.cumsum(lengths) - lengths
        none = np.zeros(1, np.int64)
        parts = [(none, none, none, none - 1, none, none + len(lengths))]
        live, above, count = np.flatnonzero(lengths > 0), np.zeros(len(lengths), np.int64), 1
        depth = 0
        while len(live):
            byte = flat[start[live] + depth].astype(np.int64)
            new = np.ones(len(live), bool)
            new[1:] = (above[1:] != above[:-1]) | (byte[1:] != byte[:-1])
            depth += 1
            begins = np.flatnonzero(new)
            node = count + np.cumsum(new) - 1
            # Of equal beginnings, the text that ends comes first.
            ends = np.where(lengths[live[begins]] == depth, live[begins], -1)
            last = np.append(live[begins[1:] - 1], live[-1]) + 1
            whole = above[begins], byte[begins], np.full(len(begins), depth)
            parts.append((*whole, ends, live[begins], last))
            count += len(begins)
            going = lengths[live] > depth
            live, above = live[going], node[going]
        self.parent, byte, self.depth, self.text, self.first, self.last = (
            np.concatenate(part).astype(np.int32) for part in zip(*parts, strict=True)
        )
        self.parent[0] = -1
        self.byte = byte.astype(np.uint8)
        self.begin = np.searchsorted(self.parent, np.arange(count + 1)).astype(np.int32)
        self.children = self.begin[1:] - self.begin[:-1]
        self.size = self.last - self.first
        self._sets: weakref.WeakValueDictionary[bytes, NodeSet] = weakref.WeakValueDictionary()
        self._alone: dict[int, NodeSet] = {}
        self._steps: dict[tuple[int, bytes, bool], tuple[int, Any]] = {}  # by their last use
        self._count = itertools.count()  # of the sets that there have been
        self._held = 0  # nodes of what all steps lead to

    def places(self, texts: Sequence[bytes]) -> np.ndarray:
        """Where each text is among the different ones, which an empty text comes after."""
        place = {text: i for i, text in enumerate(self.texts)} | {b"": len(self.texts)}
        return np.array([place[text] for text in texts], np.int64)

    def set_of(self, nodes: np.ndarray) -> NodeSet:
        """The set of some sorted nodes."""
        nodes = nodes.astype(np.int32)
        key = hashlib.blake2b(nodes.tobytes(), digest_size=16).digest()
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = NodeSet(self, nodes, next(self._count))
        return found

    def alone(self, node: int) -> NodeSet:
        """The set of one node, which is remembered for good: those of many texts are few."""
        if node not in self._alone:
            self._alone[node] = self.set_of(np.array([node]))
        return self._alone[node]

    def after(self, some: NodeSet, kind: Kind) -> After:
        """What comes after some nodes by each set of bytes of a kind."""

        def find() -> tuple[int, After]:
            number = kind.set_of[some.bytes]
            known = number >= 0
            size = self.size[some.children[known]]
            count = np.bincount(number[known], weights=size, minlength=len(kind.bytes))
            few = np.append(count <= _FEW, False)[number]
            of_many = np.flatnonzero(count > _FEW).tolist()
            byte = kind.bytes.tolist()
            sets = [(byte[i], self.set_of(some.children[number == i])) for i in of_many]
            held = _EMPTY + sum(one.held for _, one in sets) + int(few.sum())
            return held, (sets, some.children[few], kind.bytes[number[few]])

        return self._step((some.number, kind.key, False), find)

    def repeated(self, some: NodeSet, same: np.ndarray) -> NodeSet:
        """The nodes after any number of some bytes, of a mask ``[256]``."""

        def find() -> tuple[int, NodeSet]:
            nodes, parts = some.children[same[some.bytes]], [some.nodes]
            while len(nodes):
                parts.append(nodes)
                nodes = ranges(self.begin[nodes], self.children[nodes])
                nodes = nodes[same[self.byte[nodes]]]
            found = self.set_of(np.sort(np.concatenate(parts)))
            return _EMPTY + found.held, found

        return self._step((some.number, same.tobytes(), True), find)

    def _step(self, key: tuple[int, bytes, bool], find: Callable[[], tuple[int, Any]]) -> Any:
        """What is remembered of a step, or found, with how many nodes it holds."""
        found = self._steps.pop(key, None)
        if found is None:
            found = find()
            self._held += found[0]
            while self._held > _MOST_KEPT and self._steps:
                self._held -= self._steps.pop(next(iter(self._steps)))[0]
        self._steps[key] = found
        return found[1]


@functools.lru_cache(1024)
def _kind(key: bytes) -> Kind:
    """The kind of a place, by the first byte that leads where each does; -1 nowhere, -2 back."""
    blocks = np.frombuffer(key, np.int16)
    bytes_ = np.unique(blocks[blocks >= 0])
    same, masks = blocks == -2, blocks == bytes_[:, None]
    named = (masks & _OF_NAMES).sum(axis=1)
    some_names = (masks.sum(axis=1) > _BROAD) & (named > 0) & (named < _OF_NAMES.sum())
    is_repeated = bool(same.any())
    tells_names = not is_repeated and bool(some_names.any())
    set_of = np.where(blocks < 0, -1, np.searchsorted(bytes_, blocks))
    return Kind(key, same if is_repeated else None, bytes_, set_of, tells_names)


_NAMES = _kind(np.where(_OF_NAMES, np.arange(256), -1).astype(np.int16).tobytes())


class Walk:
    """Follows the texts of a trie from places, by what bytes do to these."""

    def __init__(self, trie: Trie, steps: Steps):
        self._trie, self._steps, self.texts = trie, steps, trie.texts
        self._first = np.unique(steps.byte_class, return_index=True)[1]  # byte of each class
        self._kind = np.zeros(0, np.int64)  # which bytes do the same to each place, or -1
        self._kinds: dict[bytes, int] = {}
        self._all_kinds: list[Kind] = []

    def edges(self, starts: np.ndarray) -> Edges:
        """Where texts lead from the places ``starts``; edges have the numbers of these."""
        self._lists: dict[int, tuple[int, np.ndarray]] = {}  # by the number of a set of nodes
        self._shared: list[np.ndarray] = []
        self._single: list[np.ndarray] = []
        self._asking: list[np.ndarray] = []
        self._sets: dict[int, tuple[NodeSet, list[np.ndarray]]] = {}
        self._alone: list[np.ndarray] = []  # starts, nodes and places, int [3, n]
        # Most edges are of single texts, and there may be millions: they are of 32 bits.
        starts, number = starts.astype(np.int32), np.arange(len(starts), dtype=np.int32)
        self._steps.find(starts)
        live = (self._steps.table[starts] >= 0).sum(axis=1) > _WIDE
        self._put(self._trie.alone(0), number[live], starts[live])
        few = number[~live]
        self._alone.append(np.stack([few, np.zeros_like(few), starts[~live]]))
        while self._sets or self._alone:
            while self._sets:
                some, parts = self._sets.pop(next(iter(self._sets)))
                self._follow_set(some, *np.concatenate(parts, axis=1))
            self._follow_alone()
        found = _joined(self._shared, 3), _joined(self._single, 3), _joined(self._asking, 4)
        return Edges([texts for _, texts in self._lists.values()], *found)

    def _put(self, some: NodeSet, starts: np.ndarray, places: np.ndarray) -> None:
        """Lets pairs of starts and places wait at a set of nodes."""
        alone = self._steps.asks[places] | (some.size <= _FEW)
        if alone.any():
            few = np.flatnonzero(alone)
            pair, node = np.repeat(few, len(some.nodes)), np.tile(some.nodes, len(few))
            self._alone.append(np.stack([starts[pair], node, places[pair]]))
            starts, places = starts[~alone], places[~alone]
        if len(starts):
            waiting = self._sets.setdefault(some.number, (some, []))[1]
            waiting.append(np.stack([starts, places]))

    def _follow_set(self, some: NodeSet, starts: np.ndarray, places: np.ndarray) -> None:
        self._steps.find(places)
        number_of, named = self._kind_of(places), []
        numbers = np.unique(number_of).tolist()
        by_names = [number for number in numbers if self._all_kinds[number].tells_names]
        if some.size <= _MANY or len(by_names) < _SEVERAL:
            by_names = []
        for number in numbers:
            own = np.flatnonzero(number_of == number)
            begins, at = starts[own], places[own]
            kind = self._all_kinds[number]
            nodes = some if kind.same is None else self._trie.repeated(some, kind.same)
            if len(nodes.texts):
                one = len(self._lists), nodes.texts
                number_of_list, _ = self._lists.setdefault(nodes.number, one)
                self._shared.append(np.stack([begins, np.full_like(begins, number_of_list), at]))
            if number in by_names:
                set_of = np.where(_OF_NAMES, -1, kind.set_of)
                kind = kind._replace(key=kind.key + b"-", set_of=set_of)
                named.append(own)
            self._go_on(nodes, kind, begins, at)
        if named:
            own = np.concatenate(named)
            self._go_on(some, _NAMES, starts[own], places[own])

    def _go_on(self, some: NodeSet, kind: Kind, starts: np.ndarray, places: np.ndarray) -> None:
        """Follows all bytes of a kind from some nodes."""
        sets, nodes, bytes_ = self._trie.after(some, kind)
        for byte, after in sets:
            then = self._steps.table[places, byte]
            live = then >= 0
            self._put(after, starts[live], then[live])
        if len(nodes):
            then = self._steps.table[places[:, None], bytes_]
            pair, node = np.nonzero(then >= 0)
            self._alone.append(np.stack([starts[pair], nodes[node], then[pair, node]]))

    def _kind_of(self, places: np.ndarray) -> np.ndarray:
        """A number for each place, of those whose bytes lead to one place alike."""
        if more := len(self._steps.table) - len(self._kind):
            self._kind = np.append(self._kind, np.full(more, -1))
        new = np.unique(places[self._kind[places] < 0])
        if len(new):
            rows = self._steps.table[new][:, self._first]
            blocks = first_alike(rows).astype(np.int32)  # of classes of bytes
            blocks[rows < 0] = -1
            blocks[rows == new[:, None]] = -2
            for one, row in zip(new.tolist(), blocks, strict=True):
                key = row.tobytes()
                if key not in self._kinds:
                    self._kinds[key] = len(self._all_kinds)
                    first = np.where(row < 0, row, self._first[row])
                    block = first[self._steps.byte_class].astype(np.int16)
                    self._all_kinds.append(_kind(block.tobytes()))
                self._kind[one] = self._kinds[key]
        return self._kind[places]

    def _follow_alone(self) -> None:
        """One byte more of all pairs that wait at single nodes."""
        if not self._alone:
            return
        trie, steps = self._trie, self._steps
        start, node, place = np.concatenate(self._alone, axis=1)
        self._alone = []
        asks = steps.asks[place]
        if asks.any():
            count = trie.size[node[asks]]
            text = ranges(trie.first[node[asks]], count)
            some = (start[asks], place[asks], trie.depth[node[asks]])
            of_start, of_place, depth = (np.repeat(one, count) for one in some)
            self._asking.append(np.stack([of_start, text, of_place, depth]))
            start, node, place = start[~asks], node[~asks], place[~asks]
        steps.find(place)
        # In a string, with many texts before it, it is a set again.
        many = trie.size[node] > 4 * _FEW
        if many.any():
            many[many] = (steps.table[place[many]] >= 0).sum(axis=1) > _WIDE
            for one in np.unique(node[many]).tolist():
                own = many & (node == one)
                self._put(trie.alone(one), start[own], place[own])
            start, node, place = start[~many], node[~many], place[~many]
        ends = trie.text[node] >= 0
        if ends.any():
            self._single.append(np.stack([start[ends], trie.text[node[ends]], place[ends]]))
        count = trie.children[node]
        child = ranges(trie.begin[node], count)
        then = steps.table[np.repeat(place, count), trie.byte[child]]
        live = np.flatnonzero(then >= 0)
        if len(live):
            self._alone.append(np.stack([np.repeat(start, count)[live], child[live], then[live]]))


def _joined(parts: list[np.ndarray], size: int) -> np.ndarray:
    return np.concatenate(parts, axis=1) if parts else np.zeros((size, 0), np.int32)
