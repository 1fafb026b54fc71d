"""From an automaton over bytes to one over the tokens of a tokenizer.

A token leads from a state to the one that its bytes lead to; an end token leads from each accepting
state to one that nothing follows. Tokens that lead from each state to the same state form one
class, of which the table has one column: its size hardly depends on the vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from decoding_jax.batches.widths import round_up
from decoding_jax.constraints.automata import Automaton, distances, distinct, ends_of_edges
from decoding_jax.constraints.tries import Trie, Walk
from decoding_jax.text.token_texts import TokenTexts
from decoding_jax.transforms import CompressedAutomaton, PrefixAllowedTokens

_STATES = 4096  # whose tokens are found together, which bounds the memory of it
_LEAST = 8  # states and classes of a table, which is padded so that few programs are compiled


class Vocabulary:
    """The texts of a tokenizer's tokens, sorted once for all constraints.

    Attributes:
      begun: the text of each token after others; none for end tokens.
      first: the text of each token as the first one.
      ends: bool ``[V]``, which tokens end a text.
      digest: ``TokenTexts.digest`` of the texts.
    """

    def __init__(self, texts: TokenTexts, eos_ids: Sequence[int]):
        self.digest = texts.digest()
        self.ends = np.zeros(len(texts.begun), bool)
        self.ends[[i for i in eos_ids if 0 <= i < len(self.ends)]] = True
        each = zip(texts.begun, texts.first, self.ends, strict=True)
        both = [(b"", b"") if end else (begun, first or b"") for begun, first, end in each]
        self.begun, self.first = [begun for begun, _ in both], [first for _, first in both]

    @functools.cached_property
    def single_bytes(self) -> frozenset[int]:
        """The bytes that are the whole text of a token after others."""
        return frozenset(text[0] for text in self.begun if len(text) == 1)

    @functools.cached_property
    def sorted_begun(self) -> tuple[Trie, np.ndarray]:
        """The different texts of ``begun``, and the place of each among them."""
        return _sorted(self.begun)

    @functools.cached_property
    def sorted_first(self) -> tuple[Trie, np.ndarray] | None:
        """As ``sorted_begun``, of the first tokens; None where they have the same texts."""
        return None if self.first == self.begun else _sorted(self.first)


def _sorted(texts: Sequence[bytes]) -> tuple[Trie, np.ndarray]:
    different = Trie(texts)
    return different, different.places(texts)


def over_tokens(automaton: Automaton, vocabulary: Vocabulary) -> PrefixAllowedTokens | None:
    """The transform that keeps texts to an automaton; None where no text of tokens is accepted.

    End tokens are allowed exactly in accepting states, and tokens without text in none. States from
    which no tokens lead to an accepting state are left out.

    Args:
      automaton: over bytes.
      vocabulary: the texts of the tokens.
    """
    ends, first = vocabulary.ends, vocabulary.sorted_first
    transitions = automaton.table[:, automaton.column(np.arange(256))]
    text_class, table = _classes(transitions, *vocabulary.sorted_begun, np.arange(len(transitions)))
    # After the states over bytes come the state after an end token and, where tokens begin a text
    # with another text, the state before the first one.
    states = len(table)
    starts = [0] if first is None else [0, states + 1]
    table = np.pad(table, [(0, len(starts)), (0, 0)], constant_values=-1)
    accepting = np.append(automaton.accepting, [False] * len(starts))
    next_first = np.full(len(ends), -1)
    if first is not None:
        first_class, first_table = _classes(transitions, *first, np.zeros(1, np.int64))
        next_first = first_table[0][first_class]
        accepting[starts[1]] = accepting[0]
    kinds, token_class = distinct(np.stack([text_class, next_first, ends], axis=1))
    table = table[:, text_class[kinds]]
    table[starts[-1]] = np.where(next_first[kinds] >= 0, next_first[kinds], table[starts[-1]])
    table[np.ix_(accepting, ends[kinds])] = states
    accepting[states] = True
    table, numbers, any_text = _pruned(table, accepting, starts)
    if not any_text:
        return None
    shape = [round_up(size, _LEAST) for size in table.shape]
    padding = [(0, to - size) for to, size in zip(shape, table.shape, strict=True)]
    padded = np.pad(table, padding, constant_values=-1)
    return PrefixAllowedTokens(
        CompressedAutomaton.of_classes(padded, token_class.astype(np.int32)),
        start=int(numbers[0]),
        first=int(numbers[starts[1]]) if len(starts) == 2 else None,
    )


def _pruned(
    table: np.ndarray, final: np.ndarray, starts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, bool]:
    """The table of the states between a start and a final one, and of the starts.

    Returns:
      The table; the number of each state in it; and whether any start leads to a final state.
    """
    # One edge for each pair of states: sorting rows takes a fraction of the time of sorting pairs.
    edges = ends_of_edges(np.sort(table, axis=1))
    begins = np.zeros(len(table), bool)
    begins[list(starts)] = True
    useful = distances(final, *edges) >= 0
    used = useful & (distances(begins, *edges[::-1]) >= 0) | begins
    numbers = np.where(used, np.cumsum(used) - 1, -1)
    kept = np.append(np.where(useful, numbers, -1), -1)[table[used]]  # -1 is the last entry
    return kept, numbers, bool(useful[list(starts)].any())


_OfList = tuple[np.ndarray, np.ndarray, np.ndarray]


class Classes:
    """Classes of texts that lead from each state to the same place; states come part by part.

    Args:
      count: the number of texts.
    """

    def __init__(self, count: int):
        self._count = count
        self._states = 0
        self._lists: list[np.ndarray] = []
        self._shared: list[np.ndarray] = []  # states, lists and codes, int [3, n]
        self._single: list[np.ndarray] = []  # states, texts and codes, int [3, n]

    def add(
        self, states: int, lists: Sequence[np.ndarray], shared: np.ndarray, *single: np.ndarray
    ) -> None:
        """Adds a part of ``states`` states, whose arrays of int become its own, and change.

        Args:
          states: their number.
          lists: lists of texts.
          shared: a state of the part, the number of a list and the code of all of its texts, which
            is 0 or more, or below -1; int ``[3, n]``.
          single: a state, a text and its code, int ``[3, n]``; each pair is in one place alone.
        """
        shared[1] += len(self._lists)
        for pairs in (shared, *single):
            pairs[0] += self._states
        self._shared.append(shared)
        self._single += single
        self._lists += lists
        self._states += states

    def finished(self, renamed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The class of each text and of an empty one, and int32 ``[states, C]``, their codes.

        Args:
          renamed: what codes are taken for, if not for themselves.
        """
        single = np.concatenate([np.zeros((3, 0), np.int32), *self._single], axis=1)
        if renamed is not None:
            single[2] = renamed[single[2]]
        by_list = [*self._by_list(renamed)]
        for seed in range(8):
            number, table = self._tabled(seed, single, by_list)
            if table is not None:
                return number, table
        raise RuntimeError("two texts lead from a state by one path")

    def _tabled(
        self, seed: int, single: np.ndarray, by_list: Sequence[_OfList]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Classes of texts with the same sum of random numbers, one for each state and code.

        There is no table where it would not have all codes and no others: sums of different
        numbers may be equal.
        """
        state, text, code = single
        mixed = np.zeros(self._count + 1, np.uint64)
        np.add.at(mixed, text, _mixed(state, code, seed))
        for texts, states, codes in by_list:
            mixed[texts] += _mixed(states, codes, seed).sum(dtype=np.uint64)
        first, number = distinct(mixed.view(np.int64)[:, None])
        columns = [different(number[texts], len(first)) for texts, *_ in by_list]
        table = np.full((self._states, len(first)), -1, np.int32)
        table[state, number[text]] = code
        for column, (_, states, codes) in zip(columns, by_list, strict=True):
            table[states[:, None], column] = codes[:, None]
        is_same = bool((table[state, number[text]] == code).all())
        for column, (_, states, codes) in zip(columns, by_list, strict=True):
            is_same &= bool((table[states[:, None], column] == codes[:, None]).all())
        edges = len(state) + sum(len(texts) * len(states) for texts, states, _ in by_list)
        sizes = np.bincount(number, minlength=len(first))
        is_whole = is_same and edges == int(((table != -1).sum(axis=0) * sizes).sum())
        return number, table if is_whole else None

    def _by_list(self, renamed: np.ndarray | None) -> Iterator[_OfList]:
        """Lists of texts, with states and codes."""
        state, number, code = np.concatenate([np.zeros((3, 0), np.int32), *self._shared], axis=1)
        code = code if renamed is None else renamed[code]
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(self._lists) + 1)).tolist()
        state, code = state[order], code[order]
        for texts, (begin, end) in zip(self._lists, itertools.pairwise(bounds), strict=True):
            yield texts, state[begin:end], code[begin:end]


def different(numbers: np.ndarray, count: int) -> np.ndarray:
    """The different numbers, which are below a count, sorted."""
    is_met = np.zeros(count, bool)
    is_met[numbers] = True
    return np.flatnonzero(is_met)


def _mixed(state: np.ndarray, code: np.ndarray, seed: int) -> np.ndarray:
    """A number that looks random for each pair (Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = (state.astype(np.uint64) << np.uint64(32)) ^ code.astype(np.uint32)
        mixed = (mixed + np.uint64(seed + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


class _Known:
    """The steps of an automaton, as a ``tries.Walk`` takes them."""

    def __init__(self, table: np.ndarray):
        self.table, self.asks = table, np.zeros(len(table), bool)
        self.byte_class = distinct(table.T)[1]

    def find(self, places: np.ndarray) -> None:
        """All are known."""


def _classes(
    transitions: np.ndarray, trie: Trie, places: np.ndarray, states: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Classes of texts that lead from each state to the same one.

    Args:
      transitions: int32 ``[S, 256]``.
      trie: the texts. Empty ones lead nowhere.
      places: int ``[V]``, the place of each text among them.
      states: the states that texts begin in.

    Returns:
      The class of each text, int ``[V]``, and int32 ``[states, C]``, the state after each class.
    """
    classes, walk = Classes(len(trie.texts)), Walk(trie, _Known(transitions))
    for few in np.array_split(states, -(-len(states) // _STATES)):
        edges = walk.edges(few)
        classes.add(len(few), edges.lists, edges.shared, edges.single)
    number, table = classes.finished()
    return number[places], table
