"""A language model from a function of tokens to logits, which keeps no cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.adapters import functions, paths
from decoding_jax.adapters.paths import Tokens
from decoding_jax.base import Array, ModelOutput
from decoding_jax.pytrees import pytree


@pytree
@dataclasses.dataclass(frozen=True)
class UncachedModel:
    """A language model that computes every path from its first token on. See ``from_logits``."""

    parameters: Any
    function: Callable[..., Any] = fields.field(static=True)
    vocab_size: int = fields.field(static=True)
    max_positions: int | None = fields.field(static=True)
    hidden: bool = fields.field(static=True, default=False)
    feature_layers: tuple[int, ...] = fields.field(static=True, default=())

    @property
    def num_layers(self) -> int | None:
        """N, if the function returns the hidden states of N layers and their input."""
        if not self.hidden:
            return None
        one = jax.ShapeDtypeStruct((1, 1), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
        states = _check_pair(jax.eval_shape(self._call, *one))[1]
        return len(states) - 1 if isinstance(states, (tuple, list)) else None

    def with_features(self, layers: tuple[int, ...]) -> UncachedModel:
        """See ``base.SupportsFeatures.with_features``.

        Raises:
          ValueError: for a number outside 0 to that of the layers.
        """
        layers = fields.as_layers(layers, self.num_layers or 0)
        return dataclasses.replace(self, feature_layers=layers)

    @property
    def ragged(self) -> bool:
        return True

    @property
    def tree(self) -> bool:
        return True

    @property
    def widens(self) -> bool:
        return True

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, Tokens]:
        """See ``base.LanguageModel.prefill``. Hidden states need a function that returns them."""
        cache = paths.start_tokens(tokens, length, lanes, slots)
        logits, states = self._computed(cache.prompt, cache.length[:, None] - 1)
        hidden, *features = (x[:, None] for x in states) if states else (None,)
        hidden = hidden if with_hidden else None
        return ModelOutput(logits[:, None], hidden, tuple(features)), cache

    def extend(
        self,
        cache: Tokens,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, Tokens]:
        """See ``base.LanguageModel.extend``."""
        tokens, start = jnp.asarray(tokens, jnp.int32), jnp.asarray(start, jnp.int32)
        if position is not None:
            depth = jnp.asarray(position, jnp.int32)
        elif visible is not None:
            depth = cache.length[:, None, None] + visible.sum(-1, dtype=jnp.int32)
        else:
            slot = start.reshape(start.shape or (1, 1))[..., None]
            slot = slot + jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None]
            depth = cache.length[:, None, None] + slot
        depth = jnp.broadcast_to(depth, tokens.shape)
        cache = paths.add(cache, tokens, start, depth)
        size = cache.prompt.shape[1] + cache.slots.shape[-1]
        size = size if self.max_positions is None else min(size, self.max_positions)
        end = jnp.clip(depth, 0, size - 1)
        if visible is not None:
            nodes = paths.tree_paths(cache, visible, tokens, end, size)
            output = self._last(nodes, end)
        elif self._gives_every_token(tokens.shape[0] * tokens.shape[1], size):
            chains = paths.chains(cache, size)
            output = self._at(chains, end)
        else:
            chains = paths.chains(cache, size)[:, :, None]
            output = self._last(jnp.broadcast_to(chains, (*tokens.shape, size)), end)
        return output, cache

    def keep(self, cache: Tokens, source: Array, start: Array | int) -> Tokens:
        """See ``base.SupportsKeep.keep``."""
        return paths.keep(cache, source, start)

    def select(self, cache: Tokens, lanes: Array) -> Tokens:
        """See ``base.SupportsSelect.select``."""
        return paths.select(cache, lanes)

    def _last(self, tokens: Array, end: Array) -> ModelOutput:
        """The output ``[..., V]`` after place ``end [...]`` of paths ``[..., size]``."""
        return jax.tree.map(lambda x: x[..., 0, :], self._at(tokens, end[..., None]))

    def _at(self, tokens: Array, ends: Array) -> ModelOutput:
        """The output ``[..., T, V]`` after places ``ends [..., T]`` of paths ``[..., size]``."""
        logits, states = self._computed(tokens, ends)
        if not states:
            return ModelOutput(logits)
        hidden, *features = (jnp.take_along_axis(x, ends[..., None], axis=-2) for x in states)
        return ModelOutput(logits, hidden, tuple(features))

    def _computed(self, tokens: Array, ends: Array) -> tuple[Array, tuple[Array, ...]]:
        """Logits ``[..., T, V]`` after places ``[..., T]``, and states ``[..., size, D]``.

        The states are none, or the hidden states and those of ``feature_layers``.

        With more than one place a path, the function has to return logits after every token.
        """
        shape, size = tokens.shape[:-1], tokens.shape[-1]
        length = ends.max(-1) + 1
        tokens = paths.clean_paths(tokens, length, self.vocab_size)
        returned = self._call(tokens.reshape(-1, size), length.reshape(-1))
        rows = tokens.size // size
        logits, hidden = _check_pair(returned) if self.hidden else (returned, ())
        each = tuple(hidden) if isinstance(hidden, (tuple, list)) else (hidden,)
        states = tuple(each[n] for n in (-1, *self.feature_layers) if each)
        for state in states:
            _check_hidden(state, (rows, size))
        states = tuple(x.reshape(*shape, *x.shape[1:]) for x in states)
        shapes = ("[B, V]", (rows, self.vocab_size)), ("[B, P, V]", (rows, size, self.vocab_size))
        functions.check_logits("function", logits, *shapes)
        logits = logits.reshape(*shape, *logits.shape[1:])
        if logits.ndim == ends.ndim:
            return logits[..., None, :], states
        return jnp.take_along_axis(logits, ends[..., None], axis=-2), states

    def _call(self, tokens: Array, length: Array) -> Any:
        if self.parameters is None:
            return self.function(tokens, length)
        # Objects that hold arrays, such as Flax's variables, may be changed in place: they are new.
        parameters = jax.tree.map(lambda x: x, self.parameters)
        return self.function(parameters, tokens, length)

    def _gives_every_token(self, rows: int, size: int) -> bool:
        """Whether the function returns ``[B, P, V]``."""
        shapes = ((rows, size), jnp.int32), ((rows,), jnp.int32)
        logits = jax.eval_shape(self._call, *(jax.ShapeDtypeStruct(*shape) for shape in shapes))
        if self.hidden:
            logits, _ = _check_pair(logits)
        return getattr(logits, "ndim", 0) == 3


def from_logits(
    function: Callable[..., Any],
    vocab_size: int,
    *,
    parameters: Any = None,
    max_positions: int | None = None,
    hidden: bool = False,
) -> UncachedModel:
    """Makes a language model from a function of tokens to logits.

    Every strategy runs with it, trees and speculation included; contrastive search where the
    function returns hidden states. Nothing is cached: every call computes all paths from their
    first token on. Decoding is exact, and its time grows with the square of the length, so this is
    for small models, for research, and for a first look.

    Args:
      function: ``(tokens int32 [B, P], length int32 [B]) -> logits``, of any batch size and width.
        Row b holds ``length[b]`` tokens, from 1 to P, and zeros after them. Logits are floating
        ``[B, V]``, after each row's last token; or ``[B, P, V]``, after every token, where no token
        may see later ones. With ``[B, P, V]``, a drafted block is scored in one pass over its path
        rather than in one for each token. The function is part of the compiled program and is
        compared by identity, so define it once.
      vocab_size: V.
      parameters: a pytree of arrays, such as weights, that the function takes as its first
        argument: ``(parameters, tokens, length) -> logits``. Other parameters do not compile again.
        Arrays that the function closes over are constants of the program.
      max_positions: the largest width that the function takes, or None. Strategies do not exceed
        it, and paths are not padded beyond it. A search on a tree pads its paths to the prompt and
        all nodes of the tree, so a limit close to what is needed saves time.
      hidden: whether the function returns a pair, the logits and hidden states ``[B, P, D]`` of all
        tokens, none of which sees later ones. ``contrastive_search`` compares them. In the place of
        the states, a tuple has the input of the first layer and the output of each, the last of
        which are those states, as ``hidden_states`` of ``transformers``: drafters such as ``Eagle``
        read them.

    Returns:
      A ``LanguageModel``, ``ragged`` and ``tree``, with ``keep`` and ``select``, and a pytree
      whose leaves are the parameters.

    Raises:
      ValueError: for a function that does not take these arguments, or a size below 1. Logits of
        another shape or dtype are refused when a strategy is traced.

    Example:
      >>> from decoding_jax import Prompt, beam_search
      >>> def next_token(scores, tokens, length):
      ...     last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
      ...     return scores[last[:, 0]]
      >>> scores = jax.random.normal(jax.random.key(0), (5, 5))
      >>> model = from_logits(next_token, 5, parameters=scores)
      >>> prompt = Prompt(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1]))
      >>> beam_search(model, prompt, beam_size=3, max_new_tokens=4).tokens.shape
      (2, 3, 4)
    """
    leading = () if parameters is None else ("parameters",)
    functions.check_function("function", function, (*leading, "tokens", "length"))
    vocab_size = fields.as_count("vocab_size", vocab_size)
    if max_positions is not None:
        max_positions = fields.as_count("max_positions", max_positions)
    hidden = fields.as_switch("hidden", hidden)
    return UncachedModel(parameters, function, vocab_size, max_positions, hidden)


def _check_pair(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ValueError(
            "function: expected a pair, logits and hidden states, with hidden=True, got"
            f" {functions.describe(returned)}"
        )
    return returned


def _check_hidden(hidden: Any, shape: tuple[int, int]) -> None:
    floating = jnp.issubdtype(getattr(hidden, "dtype", object), jnp.floating)
    if not floating or hidden.ndim != 3 or hidden.shape[:2] != shape:
        raise ValueError(
            "function: expected floating hidden states [B, P, D], which begin with"
            f" {list(shape)} here, got {functions.describe(hidden)}"
        )
