"""Automata with a stack on the device, for texts that are nested more deeply than can be unrolled.

``decoding_jax.constraints`` makes them of schemas and grammars that refer to themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields
from decoding_jax.pytrees import pytree
from decoding_jax.transforms.history import positions
from decoding_jax.transforms.languages import CompressedAutomaton, check_tokens, unpacked_bytes

Array = jax.Array
States = tuple[Array, ...]

_WORD = 31  # the bits of a word of the stack, which are those of an int32 that is not negative


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class StackAutomaton:
    """Deterministic pushdown automata over the vocabulary, whose stacks have a bounded depth.

    A state of a text is a tuple of int32 arrays: the state of the automaton, and the words of its
    stack. A token leads to another state and pushes frames, or it asks for the frame on top. Then
    the frame is popped, and says what the rest of the token does, which may ask for the next frame.
    Some frames count towards a depth; how many more of them there may be is the room, which
    states and frames depend on where it is small.

    A string whose characters are counted has a state for each number of them, one after another. A
    token that stays in the string leads as many states on as it has characters.

    An entry of a table is -1 where the token may not follow, the number of an outcome, or -2 - i
    for a token that asks for a frame in way i.

    State s of automaton g has the number g N + s, so rows may have different automata. There are G
    automata of N states, C classes of tokens, F frames, W ways to ask for a frame, K kinds of
    counted frames, and R different rooms.

    Attributes:
      row: int32 ``[G, N, R]``, the row of ``table`` of each state and room.
      table: int32 ``[G, T, C]``, what each class of tokens does.
      token_class: int32 ``[G, V']``, the class of each token. Tokens from V' on may not follow any
        state.
      bits: uint8 ``[G, U, V' / 8]``, rows of tokens, as in ``CompressedAutomaton``.
      bits_row: int32 ``[G, T]``, the row of bits of the tokens that ask for no frame, for each row
        of ``table``.
      asked: int32 ``[G, T, A]``, the ways in which some tokens ask; -1 is none.
      asked_row: int32 ``[G, T, A]``, the row of bits of the tokens that ask in each of these.
      count: int32 ``[G, N]``, the number of characters of the string in each state; 0 elsewhere.
      target: int32 ``[G, O]``, the state t after each outcome; or -1 - t for one that stays in a
        string, after which it is t with the count of the state before it added.
      pushed: int32 ``[G, O, P]``, the frames that it pushes, the topmost first; 0 is none.
      frame_row: int32 ``[G, F, R]``, the row of ``frame_table`` of each frame and room.
      frame_table: int32 ``[G, T', W]``, what tokens do that have asked for a frame.
      opened: int32 ``[G, F, K]``, how many of each kind of counted frames a frame is.
      max_depth: int32 ``[G, K]``, how many of each kind there may be.
      rooms: int32 ``[G, K]``, the number of different rooms of each kind; larger ones are as the
        largest.
      capacity: the maximum number of frames of a stack. Static.
      max_popped: the maximum number of frames that a token pops. Static.
    """

    row: Any = fields.field(shared_axes=None)
    table: Any = fields.field(shared_axes=None)
    token_class: Any = fields.field(shared_axes=None)
    bits: Any = fields.field(shared_axes=None)
    bits_row: Any = fields.field(shared_axes=None)
    asked: Any = fields.field(shared_axes=None)
    asked_row: Any = fields.field(shared_axes=None)
    count: Any = fields.field(shared_axes=None)
    target: Any = fields.field(shared_axes=None)
    pushed: Any = fields.field(shared_axes=None)
    frame_row: Any = fields.field(shared_axes=None)
    frame_table: Any = fields.field(shared_axes=None)
    opened: Any = fields.field(shared_axes=None)
    max_depth: Any = fields.field(shared_axes=None)
    rooms: Any = fields.field(shared_axes=None)
    capacity: int = fields.count(0)
    max_popped: int = fields.count(0)

    @property
    def num_automata(self) -> int:
        """G, the number of automata."""
        return self.row.shape[0]

    @property
    def num_states(self) -> int:
        """N, the number of states of each automaton."""
        return self.row.shape[1]

    @classmethod
    def without_stack(cls, automaton: CompressedAutomaton) -> StackAutomaton:
        """An automaton that pushes no frames, to be joined with those that do."""
        groups, states, _ = automaton.transitions.shape
        within = np.asarray(automaton.transitions)
        within = np.where(within < 0, -1, within - states * np.arange(groups)[:, None, None])
        rows = automaton.bits.shape[1]
        each = np.broadcast_to(np.arange(states, dtype=np.int32), (groups, states))

        def empty(*shape: int, filled: int = 0) -> np.ndarray:
            return np.full((groups, *shape), filled, np.int32)

        return cls(
            row=each[..., None],
            table=within.astype(np.int32),
            token_class=automaton.token_class,
            bits_row=np.asarray(automaton.row) - rows * np.arange(groups, dtype=np.int32)[:, None],
            bits=automaton.bits,
            asked=empty(states, 1, filled=-1),
            asked_row=empty(states, 1),
            count=np.zeros_like(each),
            target=each,
            pushed=empty(states, 1),
            frame_row=empty(1, 1),
            frame_table=empty(1, 1, filled=-1),
            opened=empty(1, 1),
            max_depth=empty(1),
            rooms=empty(1, filled=1),
            capacity=0,
            max_popped=0,
        )

    @classmethod
    def joined(cls, automata: Sequence[StackAutomaton | CompressedAutomaton]) -> StackAutomaton:
        """Several automata as one; automaton g has the states from g N on.

        Args:
          automata: one or more, for one vocabulary; of each, the first automaton is taken.
        """
        whole = [
            cls.without_stack(x) if isinstance(x, CompressedAutomaton) else x for x in automata
        ]
        made: dict[str, Any] = {}
        room = max(x.row.shape[-1] for x in whole)
        for field in dataclasses.fields(cls):
            parts = [getattr(x, field.name) for x in whole]
            if isinstance(parts[0], int):
                made[field.name] = max(parts)
                continue
            parts = [np.asarray(part)[:1] for part in parts]
            if field.name in ("row", "frame_row"):  # Larger rooms are as the largest.
                parts = [_widened(part, room) for part in parts]
            shape = np.max([part.shape[1:] for part in parts], axis=0)
            filled = _FILLED.get(field.name, 0)
            padded = [
                np.pad(
                    part,
                    [(0, 0), *((0, n - k) for n, k in zip(shape, part.shape[1:], strict=True))],
                    constant_values=filled,
                )
                for part in parts
            ]
            made[field.name] = np.concatenate(padded)
        return cls(**made)

    @property
    def depth(self) -> int:
        """The length of the longest sequence, which an automaton does not bound."""
        return np.iinfo(np.int32).max

    def begin(self, state: Array) -> States:
        """The state of texts that begin in states of the automaton, with empty stacks."""
        frames = _WORD // self._frame_bits
        return state, *[jnp.zeros_like(state)] * -(-self.capacity // frames)

    def advance(self, states: States, token: Array) -> States:
        """The states after one more token, int32 of its shape; -1 is dead."""
        group, of_group, stack = self._unpacked(states)
        size = self.token_class.shape[-1]
        real = (states[0] >= 0) & (token >= 0) & (token < size)
        column = _of(self.token_class, group, jnp.clip(token, 0, size - 1))
        below = self._rooms_below(group, stack)
        entry = _of(self.table, group, _of(self.row, group, of_group, below[..., 0]), column)
        frames = self._rows_of_frames(group, stack, below)

        def answer(i: Array, asked: tuple[Array, Array]) -> tuple[Array, Array]:
            entry, popped = asked
            asks = entry <= -2
            frame = lax.dynamic_index_in_dim(frames, i, axis=frames.ndim - 1, keepdims=False)
            answer = _of(self.frame_table, group, frame, jnp.where(asks, -2 - entry, 0))
            return jnp.where(asks, answer, entry), popped + asks.astype(jnp.int32)

        popped = jnp.zeros_like(entry)
        if self.max_popped:
            entry, popped = lax.fori_loop(0, self.max_popped, answer, (entry, popped))
        real &= entry >= 0
        outcome = jnp.clip(entry, 0)
        target = _of(self.target, group, outcome)
        target = jnp.where(target < 0, _of(self.count, group, of_group) - 1 - target, target)
        pushed = _of(self.pushed, group, outcome)
        target = group * self.num_states + target
        return jnp.where(real, target, -1), *self._packed(pushed, stack, popped)

    def allowed(self, states: States, vocab_size: int) -> Array:
        """The tokens that may follow states ``[...]``: bool ``[..., V]``."""
        check_tokens(self, vocab_size)
        group, of_group, stack = self._unpacked(states)
        below = self._rooms_below(group, stack)
        row = _of(self.row, group, of_group, below[..., 0])
        bits = _of(self.bits, group, _of(self.bits_row, group, row))
        if self.max_popped:
            ways = self._ways(group, stack, below)
            asked, places = _of(self.asked, group, row), _of(self.asked_row, group, row)
            follows = jnp.take_along_axis(ways, jnp.clip(asked, 0), axis=-1) & (asked >= 0)
            for i in range(asked.shape[-1]):
                more = _of(self.bits, group, places[..., i])
                bits |= jnp.where(follows[..., i : i + 1], more, jnp.uint8(0))
        live = (states[0] >= 0)[..., None]
        return unpacked_bytes(jnp.where(live, bits, jnp.uint8(0)), vocab_size)

    def _ways(self, group: Array, stack: Array, below: Array) -> Array:
        """Whether tokens that ask in each way may follow, bool ``[..., W]``."""
        frames = self._rows_of_frames(group, stack, below)
        ways = jnp.zeros((*group.shape, self.frame_table.shape[-1]), bool)

        def answer(i: Array, ways: Array) -> Array:
            frame = lax.dynamic_index_in_dim(
                frames, self.max_popped - 1 - i, axis=frames.ndim - 1, keepdims=False
            )
            entry = _of(self.frame_table, group, frame)
            way = jnp.clip(-2 - entry, 0, ways.shape[-1] - 1)
            return (entry >= 0) | ((entry <= -2) & jnp.take_along_axis(ways, way, axis=-1))

        return lax.fori_loop(0, self.max_popped, answer, ways)

    @property
    def _frame_bits(self) -> int:
        return max(1, (self.frame_row.shape[1] - 1).bit_length())

    def _unpacked(self, states: States) -> tuple[Array, Array, Array]:
        """The automaton, its state, and the frames of the stack ``[..., D]``, the topmost first."""
        state, *words = states
        bits, per_word = self._frame_bits, _WORD // self._frame_bits
        # After all frames, there are as many without any as a token pops.
        stack = jnp.zeros((*state.shape, self.max_popped + (not words)), jnp.int32)
        if words:
            packed = jnp.stack(words, axis=-1)[..., None]
            frames = packed >> (bits * positions(per_word, packed.ndim))
            frames = (frames & ((1 << bits) - 1)).reshape(*state.shape, -1)
            stack = jnp.concatenate([frames, stack], axis=-1)
        state = jnp.clip(state, 0)
        return state // self.num_states, state % self.num_states, stack

    def _packed(self, pushed: Array, stack: Array, popped: Array) -> list[Array]:
        """The words of a stack after frames ``[..., P]`` are pushed on what is not popped."""
        bits, count = self._frame_bits, (pushed > 0).sum(-1, dtype=jnp.int32)
        per_word = _WORD // bits
        capacity = -(-self.capacity // per_word) * per_word
        if not capacity:
            return []
        index = positions(capacity, stack.ndim) - count[..., None]
        kept = jnp.take_along_axis(
            stack, jnp.clip(index + popped[..., None], 0, stack.shape[-1] - 1), axis=-1
        )
        width = min(pushed.shape[-1], capacity)
        new = jnp.zeros_like(kept).at[..., :width].set(pushed[..., :width])
        frames = jnp.where(index < 0, new, kept).reshape(*count.shape, -1, per_word)
        shifts = bits * positions(per_word, frames.ndim)
        words = (frames << shifts).sum(-1, dtype=jnp.int32)
        return [words[..., i] for i in range(words.shape[-1])]

    def _rows_of_frames(self, group: Array, stack: Array, below: Array) -> Array:
        """The row of ``frame_table`` of each of the topmost frames, int32 ``[..., pops]``."""
        frames = stack[..., : self.max_popped]
        return _of(self.frame_row, group[..., None], frames, below[..., 1:])

    def _rooms_below(self, group: Array, stack: Array) -> Array:
        """The room below each of the topmost frames, as its number, int32 ``[..., pops + 1]``."""
        opened = _of(self.opened, group[..., None], stack)
        count = jnp.flip(jnp.cumsum(jnp.flip(opened, -2), axis=-2), -2)
        count = jnp.pad(count, [(0, 0)] * (count.ndim - 2) + [(0, 1), (0, 0)])
        rooms = _of(self.rooms, group)[..., None, :]
        depth = _of(self.max_depth, group)[..., None, :]
        room = jnp.clip(depth - count[..., : self.max_popped + 1, :], 0, rooms - 1)
        step = jnp.cumprod(rooms, axis=-1) // rooms
        return (room * step).sum(-1, dtype=jnp.int32)


_FILLED = {"table": -1, "frame_table": -1, "asked": -1, "rooms": 1}


def _widened(rows: np.ndarray, room: int) -> np.ndarray:
    return np.pad(rows, [(0, 0), (0, 0), (0, room - rows.shape[-1])], mode="edge")


def _of(table: Any, *index: Array) -> Array:
    """Entries of a table; the indices are in its range."""
    return jnp.asarray(table)[index]
