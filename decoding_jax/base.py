"""The types that every other layer uses: models, prompts, stop conditions, outputs.

Shapes are written with these letters throughout the library:

====== ==========================================================
``B``  rows: prompts decoded together
``W``  lanes: hypotheses of one row, which share its prompt
``N``  sequences returned for a row
``P``  prompt tokens, right-padded
``T``  new tokens fed to a model in one call
``S``  slots for new tokens in a lane's part of the cache
``L``  the maximum length of the output, ``max_new_tokens``
``V``  vocabulary
``D``  width of the hidden states
====== ==========================================================
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from decoding_jax import fields
from decoding_jax.pytrees import pytree

Array = jax.Array
Cache = Any


class ModelOutput(NamedTuple):
    """The output of a model for the tokens that it is fed.

    Attributes:
      logits: float32 ``[B, W, T, V]``. Strategies also take other floating dtypes, such as
        bfloat16, and convert them to float32 first.
      hidden: ``[B, W, T, D]`` (``[B, 1, P, D]`` from a prefill), after the final normalisation
        and before the projection and its scaling; None where the model does not return it.
      features: hidden states of some layers, each as ``hidden``; see ``SupportsFeatures``.
    """

    logits: Array
    hidden: Array | None = None
    features: tuple[Array, ...] = ()


@runtime_checkable
class LanguageModel(Protocol):
    """A language model as every strategy sees it: ``prefill``, then ``extend`` over a cache.

    A model is a pytree (weights are leaves, settings are static). ``keep``, ``select``,
    ``project``, ``with_features``, ``shared_keys`` and ``widens`` are optional: see the protocols
    named ``Supports...``, and ``loop.Strategy.widens``.

    Attributes:
      vocab_size: V.
      max_positions: the maximum number of positions, prompt and new tokens together, or None
        without a limit. Strategies check it when they are traced.
      ragged: whether the lanes of a batch may be at different slots.
      tree: whether ``extend`` takes ``visible``.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int | None: ...
    @property
    def ragged(self) -> bool: ...
    @property
    def tree(self) -> bool: ...

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, Cache]:
        """Runs every prompt once and creates the cache.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``, from 1 to P.
          lanes: W, the number of lanes that share each row's prompt.
          slots: S, the number of new tokens that a lane can hold.
          with_hidden: whether to return the prompt's hidden states.

        Returns:
          Logits ``[B, 1, 1, V]`` after each row's last real token, and the cache.
        """
        ...

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, Cache]:
        """Feeds T new tokens to every lane, writing token t to slot ``start + t``.

        Args:
          cache: from ``prefill`` or an earlier ``extend``.
          tokens: int32 ``[B, W, T]``.
          start: int32. A scalar when every lane is at the same slot; the caller then guarantees
            ``0 <= start`` and ``start + T <= S``. Or ``[B, W]``: writes outside ``[0, S)`` are
            dropped, and the outputs of those tokens are undefined.
          visible: None for a chain: a token attends to its row's prompt and to its lane's slots
            up to its own. Or bool ``[B, W, T, S']`` with ``S' <= S`` for a tree: a token attends
            to the prompt, to the slots marked (exactly its ancestors, which may be tokens of
            the same call) and to itself.
          position: int32, broadcastable to ``[B, W, T]``; by default ``length + start + t`` in a
            chain and ``length + number of ancestors`` in a tree. Pass it, unbroadcast, when all
            nodes of a call share one depth.

        Returns:
          Logits ``[B, W, T, V]`` after each of the tokens, and the cache.
        """
        ...


@runtime_checkable
class SupportsKeep(Protocol):
    """A model whose cache can move an accepted path to consecutive slots."""

    def keep(self, cache: Cache, source: Array, start: Array | int) -> Cache:
        """Copies slots ``source[..., m]`` to ``start + m`` of the same lane, positions included.

        Args:
          cache: from ``prefill`` or ``extend``.
          source: int32 ``[B, W, M]``. All slots are read before any is written.
          start: int32, a scalar or ``[B, W]``; writes outside ``[0, S)`` are dropped.
        """
        ...


@runtime_checkable
class SupportsSelect(Protocol):
    """A model whose cache can gather whole lanes."""

    def select(self, cache: Cache, lanes: Array) -> Cache:
        """Replaces lane w of row b by its lane ``lanes[b, w]``, for ``lanes`` int32 ``[B, W]``."""
        ...


@runtime_checkable
class SupportsProject(Protocol):
    """A model that can project single hidden states, where not all logits are needed."""

    def project(self, hidden: Array) -> Array:
        """Returns float32 logits ``[..., V]`` of ``ModelOutput.hidden [..., D]``."""
        ...


@runtime_checkable
class SupportsFeatures(Protocol):
    """A model that can return the hidden states of its layers, from which a drafter may draft.

    Attributes:
      num_layers: the number of layers, or None where this model has no such states to return.
    """

    @property
    def num_layers(self) -> int | None: ...
    def with_features(self, layers: tuple[int, ...]) -> LanguageModel:
        """The same model, whose outputs also have ``ModelOutput.features``.

        ``extend`` then returns one array ``[B, W, T, D]`` for each of the layers, and ``prefill``
        one ``[B, 1, P, D]``, with those of all tokens of the prompts.

        Args:
          layers: for each array, the number of layers that it is the output of: 0 is the input of
            the first layer. For all layers of the model, it is ``ModelOutput.hidden``. These are
            the indices of ``hidden_states`` in ``transformers``.
        """
        ...


@runtime_checkable
class SupportsSharedKeys(Protocol):
    """A model whose keys and values a drafter may read, as the assistants of Gemma 4 do."""

    def shared_keys(self, cache: Cache, length: Array) -> Any:
        """The keys and values of some layers, in the form that the drafter reads; without a copy.

        Args:
          cache: from ``prefill`` or ``extend``, with all new tokens of every lane but the last.
          length: int32 ``[B, W]``, the number of new tokens, the last one included. What reads the
            keys sees those of the prompt, and of the tokens before the last one.
        """
        ...


class Prompt(NamedTuple):
    """The tokens that each row starts from.

    Attributes:
      tokens: int32 ``[B, P]``, right-padded with any token: a row's tokens are its first
        ``length`` ids. Rows that are padded on the left, as ``transformers`` does for generation,
        would be read as padding and the first of their tokens; a strategy warns where it sees this.
      length: int32 ``[B]``, from 1 to P: the number of real tokens.

    Example:
      >>> import jax.numpy as jnp
      >>> prompt = Prompt(jnp.array([[5, 6, 7], [8, 0, 0]]), jnp.array([3, 1]))
      >>> prompt.tokens.shape
      (2, 3)
    """

    tokens: Array
    length: Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class CarriedStates:
    """The states of a transform after the first tokens of each path, from which it goes on.

    Attributes:
      states: a pytree of arrays ``[B, W, T]``, from ``Transform.states_after``; T may be 1 where
        the paths of a lane have this beginning in common.
      length: int32, of the same shape: the number of these tokens.
      rest: the maximum number of tokens after them. Static.
    """

    states: Any = fields.field(shared_axes=None)
    length: Any = fields.field(shared_axes=None)
    rest: int = fields.field(static=True, default=0)

    def part(self, index: int) -> CarriedStates | None:
        """The states of one of several transforms; None if it carries none."""
        states = self.states[index]
        return None if states is None else dataclasses.replace(self, states=states)


class Prefix(NamedTuple):
    """The path to each of the logits that a transform is given.

    Attributes:
      prompt: int32 ``[B, P]``, right-padded.
      prompt_length: int32 ``[B]``.
      tokens: int32 ``[B, W, T, L]``: new tokens on the path to each of the T positions, including
        earlier tokens of the same block and a tree's ancestors; undefined from ``length`` on.
      length: int32 ``[B, W, T]``: the number of new tokens on each path.
      carried: the states of the transform after a beginning of each path; None for a transform
        without ``states_after``, and where it reads the whole path.
    """

    prompt: Array
    prompt_length: Array
    tokens: Array
    length: Array
    carried: CarriedStates | None = None

    def part(self, index: int) -> Prefix:
        """The prefix as it is given to one transform of several, whose states are a tuple."""
        if self.carried is None:
            return self
        return self._replace(carried=self.carried.part(index))


class Transform(Protocol):
    """Changes float32 logits ``[B, W, T, V]``, given the path to each; bans tokens by -inf.

    A transform may have a second method, ``states_after(prefix)``, which returns a pytree of arrays
    ``[B, W, T]``: what it has to know of each path. Strategies then carry these states from step to
    step, and give them to the transform as ``prefix.carried``, so that it reads only the tokens
    after them.
    """

    def __call__(self, logits: Array, prefix: Prefix) -> Array: ...


class DecodeOutput(NamedTuple):
    """The result of a strategy.

    Attributes:
      tokens: int32 ``[B, N, L]``: new tokens only, 0 after the end.
      length: int32 ``[B, N]``: the number of new tokens, including the end token if there is one.
      log_prob: float32 ``[B, N]``, in nats: under the model, before any transform. Samplers, greedy
        decoding and speculation use compensated summation, which is accurate to the last digit;
        searches round the sum at every token. NaN where ``nan_logits``.
      score: float32 ``[B, N]``: the value that the strategy ranks by. NaN where ``nan_logits``;
        a search returns these sequences after all others.
      finished: bool ``[B, N]``: ended by a stop condition rather than by running out of length
        or of allowed tokens.
      info: counts and other values that only this strategy returns.
      sample_log_prob: float32 ``[B, N, L]``, in nats, from samplers with ``with_sample_log_prob``,
        and otherwise None: of each token, the log-probability under the distribution that it was
        drawn from, which is the model's after early end tokens are banned and the transform is
        applied; 0 after the end. Its sum is that of the sequence.
    """

    tokens: Array
    length: Array
    log_prob: Array
    score: Array
    finished: Array
    info: Any = None
    sample_log_prob: Array | None = None

    @property
    def nan_logits(self) -> Array:
        """Whether each sequence ended where the model's logits were NaN, bool ``[B, N]``.

        The sequence ends before the token that these logits would choose. A logit that the
        transform makes NaN is a ban, and one of +inf is the largest number.
        """
        return self.log_prob != self.log_prob


@pytree
@dataclasses.dataclass(frozen=True)
class Stop:
    """The conditions that end a sequence. Every setting is a leaf: changing it does not retrace.

    Attributes:
      eos_ids: end tokens, ints or int32 ``[E]`` (every row) or ``[B, E]`` (per row, padded with
        -1), emitted and counted. With None, strategies have no end tokens, and ``generate``,
        ``stream`` and the batch job use the tokenizer's. With ``()``, there are no end tokens.
      sequences: token sequences that end a text whose last new tokens are one of them: a tuple of
        tuples, or int32 ``[Q, M]`` or ``[B, Q, M]``, left-padded with -1. They are emitted.
      min_new_tokens: int or int32 ``[B]``: until a sequence has this many new tokens, end tokens
        are banned (before any transform), and stop sequences and strings do not end it.
      max_new_tokens: None, an int or int32 ``[B]``: a limit for each row, at or below the
        ``max_new_tokens`` of the strategy, which sizes the buffers. 0 gives an empty sequence. At
        its limit, a row is not ``finished``.
      strings: strings that end a text with the first token that completes one, from
        ``min_new_tokens`` on. Strategies take them as compiled by ``text.stop_strings``.

    Raises:
      ValueError: for a negative id or count or an empty stop sequence, as plain numbers.

    Example:
      >>> Stop(eos_ids=(1, 2), sequences=((5, 6), (7,))).sequences
      array([[ 5,  6],
             [-1,  7]], dtype=int32)
    """

    eos_ids: Any = fields.token_ids(1, default=None)
    sequences: Any = fields.token_sequences(default=())
    min_new_tokens: Any = fields.number(*fields.COUNTS, default=0)
    max_new_tokens: Any = fields.number(*fields.COUNTS, default=None)
    strings: Any = None

    def __post_init__(self) -> None:
        fields.check(self)
