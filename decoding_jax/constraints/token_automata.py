"""From an automaton over bytes to one over the tokens of a tokenizer.

A token leads from a state to the one that its bytes lead to; an end token leads from each accepting
state to one that nothing follows. Tokens that lead from each state to the same state form one
class, of which the table has one column: its size hardly depends on the vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from decoding_jax.batches.widths import round_up
from decoding_jax.constraints.automata import Automaton, distinct, reaching
from decoding_jax.text.token_texts import TokenTexts
from decoding_jax.transforms import CompressedAutomaton, PrefixAllowedTokens

_STATES = 64  # whose tokens are found together, which bounds the memory of it
_RUNS = 512  # states of a group, likewise
_WIDE = 80  # bytes that lead to one state, from which a text is taken to be within a string
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
    def sorted_begun(self) -> tuple[Texts, np.ndarray]:
        """The different texts of ``begun``, and the place of each among them."""
        return _sorted(self.begun)

    @functools.cached_property
    def sorted_first(self) -> tuple[Texts, np.ndarray] | None:
        """As ``sorted_begun``, of the first tokens; None where they have the same texts."""
        return None if self.first == self.begun else _sorted(self.first)


def _sorted(texts: Sequence[bytes]) -> tuple[Texts, np.ndarray]:
    different = Texts(texts)
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
    text_class, table = _classes(transitions, *vocabulary.sorted_begun)
    # After the states over bytes come the state after an end token and, where tokens begin a text
    # with another text, the state before the first one.
    states = len(table)
    starts = [0] if first is None else [0, states + 1]
    table = np.pad(table, [(0, len(starts)), (0, 0)], constant_values=-1)
    accepting = np.append(automaton.accepting, [False] * len(starts))
    next_first = np.full(len(ends), -1)
    if first is not None:
        first_class, first_table = _classes(transitions, *first, [0])
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
    source, column = np.nonzero(table >= 0)
    edges = np.unique(np.stack([source, table[source, column]], axis=1), axis=0).T
    begins = np.zeros(len(table), bool)
    begins[list(starts)] = True
    useful = reaching(final, *edges)
    used = useful & reaching(begins, *edges[::-1]) | begins
    numbers = np.where(used, np.cumsum(used) - 1, -1)
    kept = np.where(useful[table[used]] & (table[used] >= 0), numbers[table[used]], -1)
    return kept, numbers, bool(useful[list(starts)].any())


def _classes(
    transitions: np.ndarray,
    different: Texts,
    places: np.ndarray,
    states: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Classes of texts that lead from each state to the same one.

    Args:
      transitions: int32 ``[S, 256]``.
      different: the texts. Empty ones lead nowhere.
      places: int ``[V]``, the place of each text among them.
      states: the states that texts begin in; None for all.

    Returns:
      The class of each text, int ``[V]``, and int32 ``[states, C]``, the state after each class.
    """
    classes = Classes(len(different.texts))
    begins = np.arange(len(transitions)) if states is None else np.asarray(states)
    order: list[int] = []
    for group in _runs(transitions, begins):
        order += _follow_runs(transitions, *group, different, classes)
    rest = begins[~np.isin(begins, order)]
    # States that few texts leave are together, so that most parts are about few texts.
    rest = rest[np.argsort((transitions[rest] >= 0).sum(1), kind="stable")]
    for few in np.array_split(rest, -(-len(rest) // _STATES)) if len(rest) else ():
        edges = different.edges(lambda state, byte: transitions[state, byte], few)
        classes.add(list(edges), len(few))
        order += few.tolist()
    number, found = classes.finished()
    rows = np.empty_like(found)
    place = np.searchsorted(begins, order)
    rows[place] = found
    return number[places], rows


def _runs(
    transitions: np.ndarray, begins: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Groups of states in which the same many bytes lead to one state, as within a string.

    Yields:
      bool ``[256]``, the bytes; the states of ``begins``; and int ``[S]``, the state that the bytes
      lead to from each state of the group, or -1 for other states.
    """
    wide = np.flatnonzero((transitions >= 0).sum(1) >= _WIDE)
    if not len(wide):
        return
    ordered = np.sort(transitions[wide], axis=1)
    place = np.arange(256)
    changed = np.ones(ordered.shape, bool)
    changed[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    length = place - np.maximum.accumulate(np.where(changed, place, 0), axis=1) + 1
    most = np.where(ordered >= 0, length, 0).argmax(axis=1)
    common = ordered[np.arange(len(wide)), most]
    same = transitions[wide] == common[:, None]
    _, group = distinct(np.packbits(same, axis=1))
    for number in range(int(group.max()) + 1):
        members = group == number
        bytes_ = same[members][0]
        then = np.full(len(transitions), -1)
        then[wide[members]] = common[members]
        # Where a run has to end, none of its bytes may follow.
        last = np.setdiff1d(common[members], wide[members])
        if bytes_.sum() >= _WIDE and not (transitions[last][:, bytes_] >= 0).any():
            chosen = wide[members][np.isin(wide[members], begins)]
            if len(chosen):
                yield bytes_, chosen, then


def _follow_runs(
    transitions: np.ndarray,
    bytes_: np.ndarray,
    states: np.ndarray,
    then: np.ndarray,
    texts: Texts,
    classes: Classes,
) -> list[int]:
    """Adds the texts that lead from a group of ``_runs``, whose common bytes are read at once.

    Returns:
      The states, in the order in which they are added.
    """
    run = texts.run_lengths(bytes_)
    whole = run == texts.lengths
    others = np.flatnonzero(~whole)
    longest = int(run.max(initial=0))
    for few in np.array_split(states, -(-len(states) // _RUNS)):
        reached = np.full((longest + 1, len(few)), -1)
        reached[0] = few
        for i in range(longest):
            reached[i + 1] = np.where(reached[i] < 0, -1, then[reached[i]])
        state = reached[run[others]]
        text, start = np.nonzero(state >= 0)
        edges = list(
            texts.walk(
                lambda state, byte: transitions[state, byte],
                *(start, others[text], state[text, start], run[others[text]]),
            )
        )
        classes.add(edges, len(few), np.where(whole, run, 0), reached)
    return states.tolist()


class Texts:
    """Different texts, sorted, whose bytes are followed from several states at once.

    Attributes:
      texts: the texts, none of them empty.
    """

    def __init__(self, texts: Iterable[bytes]):
        self.texts = sorted(set(texts) - {b""})
        self.lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        self._flat = np.frombuffer(b"".join(self.texts), np.uint8)
        self._begin = np.cumsum(self.lengths) - self.lengths
        # Texts with the same first byte are neighbours.
        self._bounds = np.searchsorted(self._flat[self._begin], np.arange(257))

    def places(self, texts: Sequence[bytes]) -> np.ndarray:
        """Where each text is among the different ones, which an empty text comes after."""
        place = {text: i for i, text in enumerate(self.texts)} | {b"": len(self.texts)}
        return np.array([place[text] for text in texts], np.int64)

    def edges(
        self, step: Callable[[np.ndarray, np.ndarray], np.ndarray], states: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The texts that lead from some states to another state.

        Args:
          step: the states after states and bytes, of one shape, or -1.
          states: int ``[k]``.

        Yields:
          For each length of a text, the place of the state among ``states``, the number of the
          text, and the state after it.
        """
        count = self._bounds[1:] - self._bounds[:-1]
        [bytes_] = np.nonzero(count)
        after = step(np.repeat(states[:, None], len(bytes_), 1), np.tile(bytes_, (len(states), 1)))
        start, column = np.nonzero(after >= 0)
        state, byte = after[start, column], bytes_[column]
        count = count[byte]
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        text = offset + np.repeat(self._bounds[byte], count)
        state, start = np.repeat(state, count), np.repeat(start, count)
        yield from self.walk(step, start, text, state, np.ones_like(text))

    def walk(
        self,
        step: Callable[[np.ndarray, np.ndarray], np.ndarray],
        start: np.ndarray,
        text: np.ndarray,
        state: np.ndarray,
        position: np.ndarray,
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """As ``edges``, from states at which so many bytes of each text have been read."""
        while len(text):
            is_whole = self.lengths[text] == position
            if is_whole.any():
                yield start[is_whole], text[is_whole], state[is_whole]
                going = ~is_whole
                start, text, state = start[going], text[going], state[going]
                position = position[going]
            state = step(state, self._flat[self._begin[text] + position])
            live = state >= 0
            start, text, state, position = start[live], text[live], state[live], position[live] + 1

    def run_lengths(self, bytes_: np.ndarray) -> np.ndarray:
        """How many bytes at the beginning of each text are among some, bool ``[256]``."""
        if not self.texts:
            return np.zeros(0, np.int64)
        place = np.arange(len(self._flat)) - np.repeat(self._begin, self.lengths)
        end = np.where(bytes_[self._flat], np.repeat(self.lengths, self.lengths), place)
        return np.minimum.reduceat(end, self._begin)


class Classes:
    """Classes of texts that lead from each state to the same place; states come part by part.

    Args:
      count: the number of texts.
    """

    def __init__(self, count: int):
        self._count = count
        self._parts: list[np.ndarray] = []  # the class of each text for the states of a part
        self._tables: list[np.ndarray] = []  # int32 [classes of the part, states of the part]

    def add(
        self,
        edges: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
        states: int,
        run: np.ndarray | None = None,
        reached: np.ndarray | None = None,
    ) -> None:
        """Adds a part of ``states`` states, with the edges that ``Texts.edges`` finds.

        Args:
          edges: from the place of a state in the part, by a text, to a state.
          states: their number.
          run: int ``[count]``, a number above 0 for texts that have no edges of their own.
          reached: int ``[numbers, states]``, the state that such texts lead to, or -1.
        """
        empty = np.zeros(0, np.int64)
        found = np.unique(np.concatenate([empty, *(text for _, text, _ in edges)]))
        after = np.full((len(found) + 1, states), -1, np.int32)
        for start, text, state in edges:
            after[np.searchsorted(found, text), start] = state
        part = np.full(self._count + 1, len(found))
        part[found] = np.arange(len(found))
        if run is not None and reached is not None:
            part[:-1][run > 0] = len(found) + run[run > 0]
            after = np.concatenate([after, reached[1:]]).astype(np.int32)
        first, number = distinct(after)
        self._parts.append(number[part])
        self._tables.append(after[first])

    def finished(self) -> tuple[np.ndarray, np.ndarray]:
        """The class of each text and of an empty one, and int32 ``[states, C]``, what follows."""
        first, number = distinct(np.stack(self._parts, axis=1))
        both = zip(self._tables, self._parts, strict=True)
        return number, np.concatenate([x[part[first]].T for x, part in both])
