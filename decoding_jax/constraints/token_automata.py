"""From an automaton over bytes to one over the tokens of a tokenizer.

A token leads from a state to the one that its bytes lead to; an end token leads from each accepting
state to one that nothing follows. Tokens that lead from each state to the same state form one
class, of which the table has one column: its size hardly depends on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from decoding_jax.batches.widths import round_up
from decoding_jax.constraints.automata import Automaton, distinct, reaching
from decoding_jax.text.token_texts import TokenTexts
from decoding_jax.transforms import CompressedAutomaton, PrefixAllowedTokens

_STATES = 64  # whose tokens are found together, which bounds the memory of it
_LEAST = 8  # states and classes of a table, which is padded so that few programs are compiled


def over_tokens(
    automaton: Automaton, texts: TokenTexts, eos_ids: Sequence[int]
) -> PrefixAllowedTokens | None:
    """The transform that keeps texts to an automaton; None where no text of tokens is accepted.

    End tokens are allowed exactly in accepting states, and tokens without text in none. States from
    which no tokens lead to an accepting state are left out.

    Args:
      automaton: over bytes.
      texts: the texts of the tokens.
      eos_ids: the end tokens, whatever their text.
    """
    begun, first, ends = without_ends(texts, eos_ids)
    transitions = automaton.table[:, automaton.column(np.arange(256))]
    text_class, table = _classes(transitions, begun)
    # After the states over bytes come the state after an end token and, where tokens begin a text
    # with another text, the state before the first one.
    states = len(table)
    starts = [0] if first == begun else [0, states + 1]
    table = np.pad(table, [(0, len(starts)), (0, 0)], constant_values=-1)
    accepting = np.append(automaton.accepting, [False] * len(starts))
    next_first = np.full(len(ends), -1)
    if len(starts) == 2:
        first_class, first_table = _classes(transitions, first, [0])
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


def without_ends(
    texts: TokenTexts, eos_ids: Sequence[int]
) -> tuple[list[bytes], list[bytes], np.ndarray]:
    """The texts of tokens after others and as the first ones, and whether each token is an end.

    End tokens have no text, whatever the tokenizer says.
    """
    ends = np.zeros(len(texts.begun), bool)
    ends[[i for i in eos_ids if 0 <= i < len(ends)]] = True
    begun = [b"" if end else text for text, end in zip(texts.begun, ends, strict=True)]
    first = [b"" if end else text or b"" for text, end in zip(texts.first, ends, strict=True)]
    return begun, first, ends


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
    transitions: np.ndarray, texts: Sequence[bytes], states: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Classes of texts that lead from each state to the same one.

    Args:
      transitions: int32 ``[S, 256]``.
      texts: V texts. Empty ones lead nowhere.
      states: the states that texts begin in; None for all.

    Returns:
      The class of each text, int ``[V]``, and int32 ``[states, C]``, the state after each class.
    """
    different = Texts(texts)
    classes = Classes(len(different.texts))
    begins = np.arange(len(transitions)) if states is None else np.asarray(states)
    # States that few texts leave are together, so that most parts are about few texts.
    order = np.argsort((transitions[begins] >= 0).sum(1), kind="stable")
    for few in np.array_split(begins[order], -(-len(begins) // _STATES)):
        edges = different.edges(lambda state, byte: transitions[state, byte], few)
        classes.add(list(edges), len(few))
    number, found = classes.finished()
    rows = np.empty_like(found)
    rows[order] = found
    return number[different.places(texts)], rows


class Texts:
    """Different texts, sorted, whose bytes are followed from several states at once.

    Attributes:
      texts: the texts, none of them empty.
    """

    def __init__(self, texts: Iterable[bytes]):
        self.texts = sorted(set(texts) - {b""})
        self._length = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        self._flat = np.frombuffer(b"".join(self.texts), np.uint8)
        self._begin = np.cumsum(self._length) - self._length
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
        position = 1
        while position == 1 or len(text):
            whole = self._length[text] == position
            yield start[whole], text[whole], state[whole]
            start, text, state = start[~whole], text[~whole], state[~whole]
            state = step(state, self._flat[self._begin[text] + position])
            live = state >= 0
            start, text, state = start[live], text[live], state[live]
            position += 1


class Classes:
    """Classes of texts that lead from each state to the same place; states come part by part.

    Args:
      count: the number of texts.
    """

    def __init__(self, count: int):
        self._count = count
        self._parts: list[np.ndarray] = []  # the class of each text for the states of a part
        self._tables: list[np.ndarray] = []  # int32 [classes of the part, states of the part]

    def add(self, edges: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], states: int) -> None:
        """Adds a part of ``states`` states, with the edges that ``Texts.edges`` finds."""
        found = np.unique(np.concatenate([text for _, text, _ in edges]))
        after = np.full((len(found) + 1, states), -1, np.int32)
        for start, text, state in edges:
            after[np.searchsorted(found, text), start] = state
        first, number = distinct(after)
        part = np.full(self._count + 1, number[-1])
        part[found] = number[:-1]
        self._parts.append(part)
        self._tables.append(after[first])

    def finished(self) -> tuple[np.ndarray, np.ndarray]:
        """The class of each text and of an empty one, and int32 ``[states, C]``, what follows."""
        first, number = distinct(np.stack(self._parts, axis=1))
        both = zip(self._tables, self._parts, strict=True)
        return number, np.concatenate([x[part[first]].T for x, part in both])
