"""Finite automata over bytes: of regular expressions, which ``outlines_core`` compiles, and lists.

Regular expressions and texts are those of UTF-8, so an accepted sequence of bytes is a text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax import fields
from decoding_jax.transforms import Trie

_BYTES = 256
_MARK = "\U0010ffff"  # a code point that is no character


class ByteAutomaton(NamedTuple):
    """A deterministic automaton over bytes, whose state 0 is the start.

    Attributes:
      transitions: int32 ``[S, 256]``, the state after each state and byte, or -1.
      accepting: bool ``[S]``, whether a text may end in each state.
    """

    transitions: np.ndarray
    accepting: np.ndarray


def outlines_core() -> Any:
    """The library that compiles patterns and schemas.

    Raises:
      ValueError: in one line, if it is not installed.
    """
    try:
        import outlines_core
        import outlines_core.json_schema
    except ImportError:
        raise ValueError(
            "constraints: expected the library outlines_core, which compiles patterns and schemas "
            'and comes with pip install "decoding_jax[constraints]", got none'
        ) from None
    return outlines_core


def of_pattern(pattern: str, name: str = "pattern") -> ByteAutomaton:
    """The automaton of the texts that a regular expression matches as a whole.

    Args:
      pattern: a regular expression, in the syntax of the Rust crate ``regex``. It may begin with
        ``^`` and end with ``$``, which say nothing more.
      name: the name of the argument, for errors.

    Raises:
      ValueError: for a pattern that cannot be compiled, such as one with a look-ahead.

    Example:
      >>> made = of_pattern("ab?")
      >>> bool(made.accepting[made.transitions[0, ord("a")]])
      True
    """
    if not isinstance(pattern, str):
        raise fields.error(name, "a regular expression", pattern)
    inner = without_anchors(pattern)
    bare = _without_classes(inner)
    if re.search(r"[\^$]|\\[Az]", bare):
        raise fields.error(name, "no anchors but ^ at the beginning and $ at the end", pattern)
    if min(itertools.accumulate((c == "(") - (c == ")") for c in bare), default=0) < 0:
        raise fields.error(name, "an opening parenthesis for each closing one", pattern)
    core = outlines_core()
    single = {bytes([byte]): [byte] for byte in range(_BYTES)}
    try:
        # An index leaves out bytes after which a shorter text has matched and the longer one does
        # not yet: "a" after "ab", for (ab)+. With a mark after the text, none matches before it.
        index = core.Index(f"(?:{inner}){_MARK}", core.Vocabulary(_BYTES, single))
    except ValueError as error:
        reason = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
        expected = "a regular expression in the syntax of the Rust crate regex"
        got = fields.describe(pattern)
        raise ValueError(f"{name}: expected {expected}, got {got} ({reason})") from None
    rows, start = index.get_transitions(), index.get_initial_state()
    others = {*rows, *(after for row in rows.values() for after in row.values())} - {start}
    number = {state: i for i, state in enumerate([start, *sorted(others)])}
    transitions = np.full((len(number) + 1, _BYTES), -1, np.int32)  # The last state is dead.
    for state, row in rows.items():
        for byte, after in row.items():
            if byte < _BYTES:  # The other one is the end token.
                transitions[number[state], byte] = number[after]
    marked = np.arange(len(transitions))
    for byte in _MARK.encode():
        marked = transitions[marked, byte]
    accepting = np.isin(marked, [number[state] for state in index.get_final_states()])
    source, byte = np.nonzero(transitions >= 0)
    useful = reaching(accepting, source, transitions[source, byte])
    return merged(ByteAutomaton(np.where(useful[transitions], transitions, -1), accepting))


def without_anchors(pattern: str) -> str:
    r"""A pattern of whole texts without the ``^`` and ``$`` around it.

    Example:
      >>> without_anchors("^a+$"), without_anchors(r"a\$")
      ('a+', 'a\\$')
    """
    return re.sub(r"(?<!\\)((?:\\\\)*)\$$", r"\1", pattern.removeprefix("^"))


def _without_classes(pattern: str) -> str:
    r"""A pattern with an x for each class of characters, and for each escape that is no anchor.

    Example:
      >>> _without_classes(r"[]^]a[[0-9]^$]\^b\z")
      'xaxxb\\z'
    """
    made = re.sub(r"\\[^Az]", "x", pattern, flags=re.DOTALL)
    count = 1
    while count:  # The innermost classes come first.
        made, count = re.subn(r"\[\^?\]?[^\[\]]*\]", "x", made)
    return made


def of_texts(texts: Sequence[str]) -> ByteAutomaton:
    """The automaton of a list of texts, in which equal ends are shared.

    Example:
      >>> of_texts(["yes", "no"]).transitions.shape
      (5, 256)
    """
    sequences = [text.encode() for text in texts]
    trie = Trie.from_sequences(sequences)
    first_edge, byte = np.asarray(trie.first_edge), np.asarray(trie.token)
    nodes = len(byte) + 1
    transitions = np.full((nodes, _BYTES), -1, np.int32)
    parent = np.repeat(np.arange(nodes), np.diff(first_edge)[:nodes])
    transitions[parent, byte] = np.arange(1, nodes)
    accepting = np.zeros(nodes, bool)
    accepting[[trie.state(sequence) for sequence in sequences]] = True
    return merged(ByteAutomaton(transitions, accepting))


def merged(automaton: ByteAutomaton) -> ByteAutomaton:
    """The automaton without states that are equal: they accept alike, and lead to the same states.

    States are merged from the ends of texts backwards; the result has no two equal states.
    """
    transitions, accepting = automaton
    while True:
        _, used = np.unique(transitions, axis=1, return_index=True)  # Most bytes behave alike.
        rows = np.concatenate([accepting[:, None], transitions[:, used]], axis=1)
        first, state = distinct(rows)
        if len(first) == len(transitions):
            return ByteAutomaton(transitions, accepting)
        transitions, accepting = transitions[first], accepting[first]
        transitions = np.where(transitions < 0, -1, state[transitions]).astype(np.int32)


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first place of each distinct row ``[n, k]``, and the number of each row among them.

    Example:
      >>> [part.tolist() for part in distinct(np.array([[5, 6], [7, 8], [5, 6]]))]
      [[0, 1], [0, 1, 0]]
    """
    keys = [row.tobytes() for row in rows]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    index = np.fromiter((number[key] for key in keys), np.int64, len(keys))
    first = np.full(len(number), len(keys))
    np.minimum.at(first, index, np.arange(len(keys)))
    return first, index


def reaching(accepting: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The states from which edges lead to an accepting one, bool ``[S]``.

    Args:
      accepting: bool ``[S]``.
      source: int ``[E]``, the state that each edge leaves.
      target: int ``[E]``, the state that it leads to.

    Example:
      >>> reaching(np.array([False, True, False]), np.array([0, 1]), np.array([1, 2])).tolist()
      [True, True, False]
    """
    found = accepting.copy()
    while True:
        more = found.copy()
        more[source[found[target]]] = True
        if (more == found).all():
            return found
        found = more
