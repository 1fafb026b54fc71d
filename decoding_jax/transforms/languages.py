"""Constrained decoding: new tokens that follow a trie or a finite automaton on the device.

A state of a language is an int32. ``prefix_allowed_tokens`` needs ``depth``, ``advance`` and
``allowed``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import carried, history
from decoding_jax.transforms.composition import in_each_part

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Trie:
    """A prefix tree of token sequences; made by ``from_sequences``.

    The root is state 0, and the children of a node have consecutive numbers, in the order of their
    tokens: edge e, in the order by node and token, leads to node e + 1. The dead state comes after
    all nodes.

    Nodes are numbered level by level, so those with many children come first, in most tries. The
    first D nodes have a row of bits each, with the number of children before each word, so that one
    word says which edge a token is (Jacobson 1989, "Space-efficient static trees and graphs"). The
    edges of the others are searched.

    Attributes:
      first_edge: int32 ``[nodes + 2]``, the first edge of each node and of the dead state, and the
        number of edges.
      token: int32 ``[edges]``, the token of each edge.
      depth: int32, the length of the longest sequence.
      bits: uint32 ``[D, K]``: bit i of word k of a node says whether token 32 k + i may follow.
      rank: int32 ``[D, K]``, the number of children before each word.
      max_children: the maximum number of children of a node from D on. Static.

    Example:
      >>> trie = Trie.from_sequences([(5, 6, 1), (5, 1), (7, 1)])
      >>> trie.state((5,)), trie.token.tolist()
      (1, [5, 7, 1, 6, 1, 1])
    """

    first_edge: Any = fields.field(shared_axes=None)
    token: Any = fields.field(shared_axes=None, token_ids=True)
    depth: Any = fields.field(shared_axes=None)
    bits: Any = fields.field(shared_axes=None)
    rank: Any = fields.field(shared_axes=None)
    max_children: int = fields.count(0)

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[Sequence[int]] | np.ndarray, eos_ids: int | Sequence[int] = ()
    ) -> Trie:
        """Makes a trie on the host, in O(n log n) time for n tokens.

        Args:
          sequences: non-empty sequences of token ids, in any order, or an int array ``[N, L]`` of
            sequences of one length. Sequences may be equal, and a sequence may be a prefix of
            another.
          eos_ids: end tokens, each of which may follow every whole sequence. By default no token
            may follow a sequence, which then contains its own end token.

        Raises:
          ValueError: for no sequence, an empty one, or an id that is negative or above 32 bits.
        """
        ends = (eos_ids,) if isinstance(eos_ids, (int, np.integer)) else tuple(eos_ids)
        table = _table(sequences, ends)
        if table.max() > np.iinfo(np.int32).max:
            raise fields.error("sequences", "token ids of 32 bits", table.max())
        table = table[np.lexsort(table.T[::-1])]
        changed = np.ones(table.shape, bool)
        changed[1:] = np.logical_or.accumulate(table[1:] != table[:-1], axis=1)
        # The first occurrence of a prefix is a new edge. Edges are numbered level by level.
        new = changed & (table >= 0)
        # The node that the edge leads to.
        number = np.cumsum(new.T.ravel(), dtype=np.int32).reshape(new.T.shape).T
        parent = np.concatenate([np.zeros((len(table), 1), np.int32), number[:, :-1]], axis=1)
        edges = int(new.sum())
        children = np.bincount(parent[new], minlength=edges + 2)
        first_edge = np.concatenate([[0], np.cumsum(children)])[: edges + 3].astype(np.int32)
        token = table.T[new.T].astype(np.int32)
        bits, rank = _rows_of_bits(first_edge, token, children)
        return cls(
            first_edge=first_edge,
            token=token,
            depth=np.int32(table.shape[1]),
            bits=bits,
            rank=rank,
            max_children=int(children[len(bits) :].max()),
        )

    def state(self, tokens: Sequence[int]) -> int:
        """The state after these tokens, computed on the host, for example a row's ``start``.

        Raises:
          ValueError: if no sequence begins with these tokens.
        """
        first_edge, token = np.asarray(self.first_edge), np.asarray(self.token)
        state = 0
        for next_token in tokens:
            low, high = first_edge[state : state + 2]
            edge = low + int(np.searchsorted(token[low:high], next_token))
            if edge == high or token[edge] != next_token:
                raise fields.error("tokens", "the beginning of a sequence", tuple(tokens))
            state = edge + 1
        return int(state)

    def advance(self, state: Array, token: Array) -> Array:
        """The state after one more token: int32, of the arguments' shape."""
        edges = self.token.shape[0]
        low, high = (
            jnp.asarray(self.first_edge, jnp.int32)[state],
            jnp.asarray(self.first_edge, jnp.int32)[state + 1],
        )
        tokens = jnp.asarray(self.token, jnp.int32)

        def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            less = tokens[jnp.clip(middle, 0, edges - 1)] < token
            open_ = low < high
            return jnp.where(open_ & less, middle + 1, low), jnp.where(open_ & ~less, middle, high)

        edge, _ = lax.fori_loop(0, self.max_children.bit_length(), halve, (low, high))
        found = (edge < high) & (tokens[jnp.clip(edge, 0, edges - 1)] == token)
        nodes, words = self.bits.shape
        if nodes:
            node, word = jnp.clip(state, 0, nodes - 1), jnp.clip(token // 32, 0, words - 1)
            place = jnp.clip(token - 32 * word, 0, 31).astype(jnp.uint32)
            of_node = jnp.asarray(self.bits, jnp.uint32)[node, word]
            before = lax.population_count(of_node & ((jnp.uint32(1) << place) - 1))
            rank = jnp.asarray(self.rank, jnp.int32)[node, word] + before.astype(jnp.int32)
            known = (of_node >> place) & 1 == 1
            inside = (token >= 0) & (token < 32 * words)
            has_bits = state < nodes
            edge = jnp.where(has_bits, low + rank, edge)
            found = jnp.where(has_bits, known & inside, found)
        return jnp.where(found, edge + 1, edges + 1)

    def allowed(self, state: Array, vocab_size: int) -> Array:
        """The tokens that may follow a state ``[...]``: bool ``[..., V]``."""
        first_edge, tokens = (
            jnp.asarray(self.first_edge, jnp.int32),
            jnp.asarray(self.token, jnp.int32),
        )
        edge = first_edge[state][..., None] + history.positions(self.max_children, state.ndim + 1)
        real = edge < first_edge[state + 1][..., None]
        children = tokens[jnp.clip(edge, 0, tokens.shape[0] - 1)]
        nodes, words = self.bits.shape
        if self.max_children > _FEW:
            allowed = history.scatter_counts(children, real, vocab_size) > 0
        else:
            # Comparisons are faster than a scatter, on TPUs above all.
            word = jnp.arange(words, dtype=jnp.int32).reshape((1,) * (state.ndim + 1) + (-1,))
            bit = jnp.where(real, jnp.uint32(1) << (children % 32).astype(jnp.uint32), 0)
            here = (children // 32)[..., None] == word
            allowed = _unpacked(
                jnp.where(here, bit[..., None], 0).sum(-2, dtype=jnp.uint32), vocab_size
            )
        if nodes:
            of_node = jnp.asarray(self.bits, jnp.uint32)[jnp.clip(state, 0, nodes - 1)]
            of_node = _unpacked(of_node, vocab_size)
            allowed = jnp.where((state < nodes)[..., None], of_node, allowed)
        return allowed


_LANES = 128  # of a TPU's registers
_FEW = 32  # children, which are compared with every word of a vocabulary
_MOST_BYTES = 1 << 28  # of the rows of bits of a trie


def _rows_of_bits(
    first_edge: np.ndarray, token: np.ndarray, children: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``Trie.bits`` and ``Trie.rank``, of the nodes up to the last one with many children.

    Where that would take too much memory, the nodes after it are searched.
    """
    words = int(token.max()) // 32 + 1
    many = np.flatnonzero(children[: _MOST_BYTES // (8 * words)] > _FEW)
    nodes = int(many[-1]) + 1 if len(many) else 0
    bits = np.zeros((nodes, words), np.uint32)
    edges = first_edge[nodes]
    node = np.repeat(np.arange(nodes), children[:nodes])
    bit = np.uint32(1) << (token[:edges] % 32).astype(np.uint32)
    np.bitwise_or.at(bits, (node, token[:edges] // 32), bit)
    counts = np.bitwise_count(bits).astype(np.int32)
    return bits, np.cumsum(counts, axis=1, dtype=np.int32) - counts


def _unpacked(words: Array, vocab_size: int) -> Array:
    """The bits of words ``[..., K]``, bool ``[..., V]``; those beyond the words are not set."""
    place = jnp.arange(32, dtype=jnp.uint32).reshape((1,) * words.ndim + (32,))
    found = (words[..., None] >> place) & 1 == 1
    found = found.reshape(*words.shape[:-1], -1)[..., :vocab_size]
    return jnp.pad(found, [(0, 0)] * (words.ndim - 1) + [(0, vocab_size - found.shape[-1])])


_TRANSITIONS = "a table [states, V] of states, -1 for none"


def _as_transitions(name: str, transitions: Any) -> Any:
    if not fields.is_readable(transitions):
        return transitions
    array = np.asarray(transitions)
    good = array.ndim == 2 and array.size and array.dtype.kind == "i"
    if not good or array.min() < -1 or array.max() >= len(array):
        raise fields.error(name, _TRANSITIONS, array)
    return transitions if isinstance(transitions, jax.Array) else array.astype(np.int32)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
    """A finite automaton over the vocabulary, given by its full transition table.

    Attributes:
      transitions: int32 ``[N, V]`` or plain lists, the state after each state and token, and -1 for
        a token that may not follow.

    Raises:
      ValueError: for numbers that are not states, or another number of axes, of a table that is not
        traced.

    Example:
      >>> even_ones = Automaton([[0, 1, -1], [1, 0, -1]])
      >>> even_ones.advance(jnp.array([0, 1, 1]), jnp.array([1, 1, 2]))
      Array([ 1,  0, -1], dtype=int32)
    """

    transitions: Any = fields.field(_as_transitions, expected=_TRANSITIONS, shared_axes=None)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    @property
    def depth(self) -> int:
        """The length of the longest sequence, which an automaton does not bound."""
        return np.iinfo(np.int32).max

    def advance(self, state: Array, token: Array) -> Array:
        """The state after one more token: int32, of the arguments' shape; -1 is dead."""
        table = jnp.asarray(self.transitions, jnp.int32)
        real = (state >= 0) & (token >= 0) & (token < table.shape[1])
        index = jnp.clip(state, 0), jnp.clip(token, 0, table.shape[1] - 1)
        return jnp.where(real, table[index], -1)

    def allowed(self, state: Array, vocab_size: int) -> Array:
        """The tokens that may follow a state ``[...]``: bool ``[..., V]``."""
        table = jnp.asarray(self.transitions, jnp.int32)
        rows.check_vocab(self, "transitions", table, vocab_size)
        return (table[jnp.clip(state, 0)] >= 0) & (state >= 0)[..., None]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class CompressedAutomaton:
    """Automata over the vocabulary whose tables hardly grow with it; made by ``of_classes``.

    Tokens that lead from each state to the same state are one class, of which the table has one
    column. States that allow the same tokens share a row of bits. State s of automaton g has the
    number g N + s, so rows may have different automata.

    Attributes:
      transitions: int32 ``[G, N, C]``, the state after each state and class, and -1 for none.
      token_class: int32 ``[G, V']``, the class of each token. Tokens from V' on may not follow any
        state.
      row: int32 ``[G, N]``, the row of bits of each state, g U + u.
      bits: uint8 ``[G, U, K]``: bit i of byte k says whether token i K + k may follow. K is a
        multiple of 128, so on TPUs the bytes are repeated, and not rearranged.

    Example:
      >>> odd_ones = CompressedAutomaton.of_classes(np.array([[0, 1], [1, 0]]), np.array([0, 1, 0]))
      >>> odd_ones.advance(jnp.array([0, 1, 1]), jnp.array([1, 1, 2]))
      Array([1, 0, 1], dtype=int32)
    """

    transitions: Any = fields.field(shared_axes=None)
    token_class: Any = fields.field(shared_axes=None)
    row: Any = fields.field(shared_axes=None)
    bits: Any = fields.field(shared_axes=None)

    @classmethod
    def of_classes(cls, table: np.ndarray, token_class: np.ndarray) -> CompressedAutomaton:
        """Makes one automaton on the host.

        Args:
          table: int ``[N, C]``, the state after each state and class, or -1.
          token_class: int ``[V']``, the class of each token.
        """
        allowed = table >= 0
        as_bytes = np.ascontiguousarray(np.packbits(allowed, axis=1))
        as_one = as_bytes.view(np.dtype((np.void, as_bytes.shape[1]))).ravel()
        _, first, row = np.unique(as_one, return_index=True, return_inverse=True)
        count = 1 << (len(first) - 1).bit_length()  # so that few programs are compiled
        bits = packed_bytes(np.pad(allowed[first], [(0, count - len(first)), (0, 0)]), token_class)
        return cls(
            transitions=table[None].astype(np.int32),
            token_class=token_class[None].astype(np.int32),
            row=row.reshape(1, -1).astype(np.int32),
            bits=bits[None],
        )

    @property
    def num_automata(self) -> int:
        """G, the number of automata."""
        return self.transitions.shape[0]

    @property
    def num_states(self) -> int:
        """N, the number of states of each automaton."""
        return self.transitions.shape[1]

    @classmethod
    def joined(cls, automata: Sequence[CompressedAutomaton]) -> CompressedAutomaton:
        """Several automata as one; automaton g has the states from g N on.

        Args:
          automata: one or more, for one vocabulary.
        """
        states, classes = np.max([x.transitions.shape[1:] for x in automata], axis=0)
        rows = max(x.bits.shape[1] for x in automata)

        def joined(name: str, shape: tuple[int, ...], step: int = 0) -> np.ndarray:
            parts = [np.asarray(getattr(x, name))[0] for x in automata]
            whole = np.zeros((len(parts), *shape), parts[0].dtype) - (name == "transitions")
            for g, (to, part) in enumerate(zip(whole, parts, strict=True)):
                moved = part if not step else np.where(part < 0, -1, part + g * step)
                to[tuple(slice(n) for n in part.shape)] = moved
            return whole

        size, words = automata[0].token_class.shape[-1], automata[0].bits.shape[-1]
        return cls(
            transitions=joined("transitions", (states, classes), states),
            token_class=joined("token_class", (size,)),
            row=joined("row", (states,), rows),
            bits=joined("bits", (rows, words)),
        )

    @property
    def depth(self) -> int:
        """The length of the longest sequence, which an automaton does not bound."""
        return np.iinfo(np.int32).max

    def advance(self, state: Array, token: Array) -> Array:
        """The state after one more token: int32, of the arguments' shape; -1 is dead."""
        _, states, classes = self.transitions.shape
        size = self.token_class.shape[-1]
        real = (state >= 0) & (token >= 0) & (token < size)
        state, token = jnp.clip(state, 0), jnp.clip(token, 0, size - 1)
        column = jnp.asarray(self.token_class, jnp.int32)[state // states, token]
        table = jnp.asarray(self.transitions, jnp.int32).reshape(-1, classes)
        return jnp.where(real, table[state, column], -1)

    def allowed(self, state: Array, vocab_size: int) -> Array:
        """The tokens that may follow a state ``[...]``: bool ``[..., V]``."""
        check_tokens(self, vocab_size)
        places = self.bits.shape[-1]
        row = jnp.asarray(self.row, jnp.int32).reshape(-1)[jnp.clip(state, 0)]
        of_state = jnp.asarray(self.bits, jnp.uint8).reshape(-1, places)[row]
        of_state = jnp.where((state >= 0)[..., None], of_state, jnp.uint8(0))
        return unpacked_bytes(of_state, vocab_size)


def check_tokens(language: Any, vocab_size: int) -> None:
    """Refuses a language with a ``token_class`` for more tokens than a model's.

    Raises:
      ValueError: for such a language.
    """
    size = language.token_class.shape[-1]
    if size > vocab_size:
        expected = f"tokens of the model's vocabulary of {vocab_size}"
        raise fields.error(f"{fields.label(language)}.token_class", expected, size)


def unpacked_bytes(of_state: Array, vocab_size: int) -> Array:
    """The bits bool ``[..., V]`` of bytes ``[..., K]`` as in ``CompressedAutomaton.bits``."""
    known = min(vocab_size, 8 * of_state.shape[-1])
    bits = [(of_state >> np.uint8(bit)) & 1 for bit in range(8)]
    allowed = jnp.concatenate(bits, axis=-1)[..., :known] == 1
    return jnp.pad(allowed, [(0, 0)] * (of_state.ndim - 1) + [(0, vocab_size - known)])


def packed_bytes(allowed: np.ndarray, token_class: np.ndarray) -> np.ndarray:
    """The bytes uint8 ``[U, K]``, as in ``CompressedAutomaton.bits``, of classes of tokens.

    Args:
      allowed: bool ``[U, C]``, the classes that each row allows.
      token_class: int ``[V]``, the class of each token.
    """
    # The bits of one class lie together, since they are taken together.
    rows = np.ascontiguousarray(np.pad(allowed, [(0, 0), (0, 1)]).T).view(np.uint8)
    filling = -len(token_class) % (8 * _LANES)
    column = np.pad(token_class, (0, filling), constant_values=allowed.shape[1]).reshape(8, -1)
    packed = rows[column[0]]
    for bit in range(1, 8):
        packed |= (rows << np.uint8(bit))[column[bit]]
    return np.ascontiguousarray(packed.T)


def _table(sequences: Sequence[Sequence[int]] | np.ndarray, ends: tuple[int, ...]) -> np.ndarray:
    """Each sequence followed by each end token, as rows padded with -1 on the right."""
    if isinstance(sequences, np.ndarray) and not ends:
        is_table = sequences.ndim == 2 and sequences.size and sequences.dtype.kind in "iu"
        if is_table and sequences.min() >= 0:
            return sequences
    length = np.array([len(s) for s in sequences], np.int64)
    if not len(length) or not length.all():
        got = "an empty sequence" if len(length) else "none"
        raise ValueError(f"sequences: expected sequences of one token or more, got {got}")
    flat = np.fromiter((t for s in sequences for t in s), np.int64, int(length.sum()))
    least = min(flat.min(), *ends) if ends else flat.min()
    if least < 0:
        raise fields.error("sequences", "token ids of 0 or more", least)
    table = np.full((len(length), length.max() + bool(ends)), -1, np.int64)
    table[np.arange(table.shape[1])[None] < length[:, None]] = flat
    if ends:
        table = np.concatenate([table] * len(ends))
        end_index = np.tile(length, len(ends))
        table[np.arange(len(table)), end_index] = np.repeat(ends, len(length))
    return table


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class PrefixAllowedTokens:
    """Bans every token after which the new text is not a prefix of a sequence of a language.

    ``l_i = -inf`` unless a sequence begins with ``x_1 .. x_t i``; x does not include the prompt.
    De Cao, Izacard, Riedel & Petroni (2021), "Autoregressive entity retrieval", arXiv:2010.00904.
    The trie is on the device. Strategies carry its states from step to step, so a step costs a few
    gathers for each token that is new; called by itself, the transform walks the whole new text.

    A sequence contains its end token, as the tokenizer gives it, and no token is allowed after it.
    If sequences have no end token, a strategy ends the text at their end but does not mark it as
    ``finished``. ``Trie.from_sequences(..., eos_ids=1)`` adds end tokens.

    Attributes:
      language: a ``Trie``, an ``Automaton``, or an object with their ``depth``, ``advance`` and
        ``allowed``. Where it has a method ``begin(state)``, that makes its states from those of
        ``start``; they may then be a tuple of arrays.
      start: the state before the first token, an int or int32 ``[B]``. Rows with different
        languages start in different branches of one trie or automaton.
      first: the state before the first token of a text that continues no other, as ``start``; None
        where it is ``start``. The two differ for tokenizers that drop a space before such a text.
      begun: whether the new tokens continue a text, or bool ``[B]``. ``generate``, ``stream`` and
        the batch job set it where it is None, which otherwise means that they do not.
      digest: of the texts of the tokens that ``decoding_jax.constraints`` made it for, which calls
        compare with those of their tokenizer; None for any tokenizer. Static.

    Raises:
      ValueError: for a negative ``start`` that is not traced; and by a strategy, for a trie with
        an id outside the vocabulary.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> trie = transforms.Trie.from_sequences([(2, 0, 1), (2, 3, 1), (3, 1)])
      >>> tokens = jnp.array([[[[2]]]])
      >>> prefix = Prefix(jnp.array([[2]]), jnp.array([1]), tokens, jnp.array([[[1]]]))
      >>> transforms.prefix_allowed_tokens(trie)(jnp.zeros((1, 1, 1, 4)), prefix)
      Array([[[[  0., -inf, -inf,   0.]]]], dtype=float32)
    """

    language: Any
    start: Any = fields.number(*fields.COUNTS, default=0)
    first: Any = fields.number(*fields.COUNTS, default=None)
    begun: Any = fields.field(shared_axes=0, default=None)
    digest: str | None = fields.field(static=True, default=None)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        allowed = self.language.allowed(self.states_after(prefix), logits.shape[-1])
        return jnp.where(allowed, logits, -jnp.inf)

    def states_after(self, prefix: Prefix) -> Any:
        """The state after each path, int32 ``[B, W, T]``, or a tuple of such arrays."""

        def begin() -> Any:
            state = self._state_before(prefix)
            return self.language.begin(state) if hasattr(self.language, "begin") else state

        # After ``depth`` tokens no sequence continues, so further tokens need no walk.
        return carried.walked(prefix, begin, self.language.advance, longest=self.language.depth)

    def _state_before(self, prefix: Prefix) -> Array:
        """The state before the first token, int32 ``[B, 1, 1]`` or ``[1, 1, 1]``."""
        start = rows.per_row(self, "start", prefix.length, jnp.int32)
        if self.first is None:
            return start
        begun = False if self.begun is None else self.begun
        begun = rows.spread("prefix_allowed_tokens.begun", begun, prefix.length, jnp.bool_)
        return jnp.where(begun, start, rows.per_row(self, "first", prefix.length, jnp.int32))


def with_begun(transform: Any, begun: Callable[[], Any]) -> Any:
    """A transform whose languages know which texts continue others, where they depend on it.

    Args:
      transform: any transform, or None.
      begun: returns a bool, or bool ``[B]``.

    Example:
      >>> made = PrefixAllowedTokens(Trie.from_sequences([(2, 1), (3, 1)]), start=0, first=1)
      >>> with_begun(made, lambda: True).begun
      True
    """

    def changed(part: Any) -> Any:
        depends = isinstance(part, PrefixAllowedTokens) and part.first is not None
        return dataclasses.replace(part, begun=begun()) if depends and part.begun is None else part

    return in_each_part(transform, changed)
