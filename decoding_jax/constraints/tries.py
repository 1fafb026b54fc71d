"""A trie of the texts of a vocabulary, whose nodes an automaton visits from many states at once.

Most states of a schema are within a string, where nearly every token may follow, and all characters
but a few lead to one state. Nodes that a state reaches in the same way are therefore one set, which
is stepped by all bytes that lead to one state together. The sets are kept for other states and
other automata of the vocabulary; small ones are followed node by node.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

_FEW = 64  # texts, which are followed one by one
_WIDE = 32  # bytes that may follow a place, from which texts are followed as sets
_MOST_KEPT = 1 << 22  # nodes of all sets that a trie remembers


class Steps(Protocol):
    """What bytes do to places: the states of an automaton, or what else is like them.

    Attributes:
      table: int32 ``[P, 256]``, the place after each place and byte, or -1.
      asks: bool ``[P]``, the places at which a text is left, with its rest unread.
    """

    table: np.ndarray
    asks: np.ndarray

    def find(self, places: np.ndarray) -> None:
        """Fills in the rows of some places."""


@dataclasses.dataclass
class Edges:
    """Which texts lead from some starts to which places.

    Attributes:
      shared: lists of texts, with starts and the place that all of the texts lead to from each.
      single: starts, texts and places, int ``[3, E]``.
      asking: starts, texts, places that ask, and how many bytes lead to them, int ``[4, A]``.
    """

    shared: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    single: np.ndarray
    asking: np.ndarray


class NodeSet:
    """Nodes of a trie, with their children.

    Attributes:
      nodes: int ``[n]``, sorted.
      texts: the texts that end at them.
      children, bytes: their children, and the byte that leads to each.
      has: bool ``[256]``, which bytes these are.
      size: how many texts begin with those of the nodes.
      number: one of its own.
    """

    def __init__(self, trie: Trie, nodes: np.ndarray, number: int = -1):
        self.nodes, self.number = nodes, number
        ends = trie.text[nodes]
        self.texts = ends[ends >= 0]
        self.children = ranges(trie.begin[nodes], trie.children[nodes])
        self.bytes = trie.byte[self.children]
        self.has = np.zeros(256, bool)
        self.has[self.bytes] = True
        self.size = int(trie.size[nodes].sum())


class Trie:
    """Different texts, sorted, whose common beginnings are one node.

    Nodes are numbered by depth, and those of one depth by the texts, so that children of a node are
    neighbours.

    Attributes:
      texts: the texts, none of them empty.
      parent, byte: int ``[N]``, the node before each node, and the byte between; 0 is the root.
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
        self.parent, self.byte, self.depth, self.text, self.first, self.last = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        self.parent[0] = -1
        self.begin = np.searchsorted(self.parent, np.arange(count + 1))
        self.children = self.begin[1:] - self.begin[:-1]
        self.size = self.last - self.first
        self._sets: dict[bytes, NodeSet] = {}
        self._steps: dict[tuple[int, bytes, bool], NodeSet] = {}
        self._count = itertools.count()  # of the sets that there have been
        self._held = 0  # nodes of sets that are remembered

    def places(self, texts: Sequence[bytes]) -> np.ndarray:
        """Where each text is among the different ones, which an empty text comes after."""
        place = {text: i for i, text in enumerate(self.texts)} | {b"": len(self.texts)}
        return np.array([place[text] for text in texts], np.int64)

    def set_of(self, nodes: np.ndarray) -> NodeSet:
        """The set of some sorted nodes."""
        key = nodes.tobytes()
        if key not in self._sets:
            self._sets[key] = NodeSet(self, nodes, next(self._count))
            self._held += len(nodes) + len(self._sets[key].children)
        return self._sets[key]

    def after(self, some: NodeSet, mask: np.ndarray, repeat: bool = False) -> NodeSet:
        """The nodes after some bytes of a mask ``[256]``: one, or as many as there are."""
        if self._held > _MOST_KEPT:
            self._steps.clear()
            self._sets.clear()
            self._held = 0
        key = some.number, mask.tobytes(), repeat
        if key not in self._steps:
            if not repeat:
                found = self.set_of(some.children[mask[some.bytes]])
            else:
                nodes = some.children[mask[some.bytes]]
                parts = [some.nodes]
                while len(nodes):
                    parts.append(nodes)
                    nodes = ranges(self.begin[nodes], self.children[nodes])
                    nodes = nodes[mask[self.byte[nodes]]]
                found = self.set_of(np.sort(np.concatenate(parts)))
            self._steps[key] = found
            self._held += 16  # for the step itself
        return self._steps[key]


def ranges(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The numbers from each beginning on, so many of each, one after another."""
    return np.arange(count.sum()) + np.repeat(begin - np.cumsum(count) + count, count)


class Walk:
    """Follows the texts of a trie from places, by what bytes do to these."""

    def __init__(self, trie: Trie, steps: Steps):
        self._trie, self._steps, self.texts = trie, steps, trie.texts
        self._kind: dict[int, int] = {}  # which bytes do the same to each place
        self._kinds: dict[bytes, int] = {}
        self._blocks: list[tuple[np.ndarray | None, list[tuple[int, np.ndarray]]]] = []

    def edges(self, starts: np.ndarray) -> Edges:
        """Where texts lead from the places ``starts``; edges have the numbers of these."""
        self._shared: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._single: list[np.ndarray] = []
        self._asking: list[np.ndarray] = []
        self._sets: dict[int, tuple[NodeSet, list[np.ndarray]]] = {}
        self._alone: list[np.ndarray] = []  # starts, nodes and places, int [3, n]
        number = np.arange(len(starts))
        self._steps.find(starts)
        live = (self._steps.table[starts] >= 0).sum(axis=1) > _WIDE
        self._put(self._trie.set_of(np.zeros(1, np.int64)), number[live], starts[live])
        few = number[~live]
        self._alone.append(np.stack([few, np.zeros_like(few), starts[~live]]))
        while self._sets or self._alone:
            while self._sets:
                some, parts = self._sets.pop(next(iter(self._sets)))
                self._follow_set(some, *np.concatenate(parts, axis=1))
            self._follow_alone()
        return Edges(self._shared, _joined(self._single, 3), _joined(self._asking, 4))

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
        kind = self._kind_of(places)
        for number in np.unique(kind).tolist():
            own = np.flatnonzero(kind == number)
            begins, at = starts[own], places[own]
            same, others = self._blocks[number]
            nodes = some if same is None else self._trie.after(some, same, repeat=True)
            if len(nodes.texts):
                self._shared.append((nodes.texts, begins, at))
            for byte, mask in others:
                if (mask & nodes.has).any():
                    after = self._trie.after(nodes, mask)
                    self._put(after, begins, self._steps.table[at, byte])

    def _kind_of(self, places: np.ndarray) -> np.ndarray:
        """A number for each place, of those whose bytes lead to one place alike."""
        each, index = np.unique(places, return_inverse=True)
        new = np.array([one for one in each.tolist() if one not in self._kind], np.int64)
        if len(new):
            rows = self._steps.table[new]
            order = np.argsort(rows, axis=1, kind="stable")
            ordered = np.take_along_axis(rows, order, axis=1)
            changed = np.ones(rows.shape, bool)
            changed[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
            begin = np.maximum.accumulate(np.where(changed, np.arange(256), 0), axis=1)
            block = np.empty_like(rows)  # the first byte that does the same
            np.put_along_axis(block, order, np.take_along_axis(order, begin, 1).astype(np.int32), 1)
            block[rows < 0] = -1
            block[rows == new[:, None]] = -2
            for one, row in zip(new.tolist(), block, strict=True):
                key = row.tobytes()
                if key not in self._kinds:
                    self._kinds[key] = len(self._blocks)
                    firsts = [b for b in np.unique(row).tolist() if b >= 0]
                    same = row == -2
                    others = [(b, row == b) for b in firsts]
                    self._blocks.append((same if same.any() else None, others))
                self._kind[one] = self._kinds[key]
        return np.array([self._kind[one] for one in each.tolist()], np.int64)[index]

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
                self._put(trie.set_of(np.array([one])), start[own], place[own])
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
    return np.concatenate(parts, axis=1) if parts else np.zeros((size, 0), np.int64)
