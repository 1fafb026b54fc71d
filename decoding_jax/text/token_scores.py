"""Scores of every token of decoded sequences, by one more pass of the model."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields
from decoding_jax.base import (
    Array,
    Cache,
    LanguageModel,
    Prefix,
    Prompt,
    SupportsProject,
    Transform,
)
from decoding_jax.batches.widths import round_up
from decoding_jax.loop import model_calls
from decoding_jax.loop.inputs import (
    as_int32,
    as_integers,
    check_model,
    check_prompt,
    check_prompt_ids,
)
from decoding_jax.models.shared_prefix import prefix_of
from decoding_jax.ops.jit import jit
from decoding_jax.ops.logits import clean, log_softmax
from decoding_jax.ops.top_k import top_k
from decoding_jax.sharding.meshes import to_host
from decoding_jax.transforms import carried

CHUNK = 16
"""The largest number of tokens of a call of the model, whose logits are held together."""


class TokenScores(NamedTuple):
    """Scores of tokens, each under the model's distribution before any transform.

    The shapes are those of N sequences of each of B prompts; of a ``Completion``, NumPy arrays
    without the first two axes.

    Attributes:
      log_prob: float32 ``[B, N, L]``, the log-probability of each token, in nats.
      entropy: float32 ``[B, N, L]``, the entropy of the distribution that each token is from, in
        nats.
      top_tokens: int32 ``[B, N, L, n]``, the n most probable tokens of that distribution, the most
        probable first, and of equal ones the lower id.
      top_log_probs: float32 ``[B, N, L, n]``, their log-probabilities.
      self_certainty: float32 ``[B, N, L]``, the Kullback-Leibler divergence from the even
        distribution over the vocabulary to the one that each token is from, in nats: 0 if that is
        even too, infinite if a token has no probability. Kang, Zhao & Song (2025),
        arXiv:2502.18581.
      kept: float32 ``[B, N, L]``, the probability that the model gives to all tokens together that
        the transform of a call allows there, such as a constraint; None without a transform, and
        outside of ``generate``.
    """

    log_prob: Array
    entropy: Array
    top_tokens: Array
    top_log_probs: Array
    self_certainty: Array
    kept: Array | None = None


class Scoring(NamedTuple):
    """The scores so far, and the state that is needed to go on.

    Attributes:
      cache: the model's.
      first: float32 ``[B, 1, 1, V]``, the logits of the first tokens.
      scores: of ``1 + S`` tokens, where S slots are a multiple of the tokens of a call.
    """

    cache: Cache
    first: Array
    scores: TokenScores


def token_scores(
    model: LanguageModel,
    prompt: Prompt,
    tokens: Array,
    end: Array | int | None = None,
    *,
    num_alternatives: int = 0,
) -> TokenScores:
    """Returns scores of each token after its prompt and the tokens before it.

    One sequence for each prompt is read together with its prompt, by one call of a model that
    projects hidden states (``SupportsProject``). Otherwise, the model reads each prompt once, and
    the sequences at most sixteen tokens a call. The programs are compiled for a few lengths, to
    which texts are padded, and kept.

    Args:
      model: a language model.
      prompt: B prompts.
      tokens: int32 ``[B, N, L]``: N sequences of new tokens for each prompt. Tokens after the end
        of a sequence may be any of the vocabulary, and are scored like the others.
      end: int32, the number of tokens of the longest sequence, after which nothing is computed; L
        by default.
      num_alternatives: n, the number of the most probable tokens, 0 to V.

    Raises:
      ValueError: in one line, for a model that is not bound to its inputs, a prompt without tokens,
        no tokens, ids outside the vocabulary, an ``end`` that is not one int, and texts with more
        tokens than the model has positions. Traced arguments are not checked.

    Example:
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> scores = token_scores(model, prompt, jnp.array([[[3, 0, 4]]]), num_alternatives=2)
      >>> scores.log_prob.shape, scores.top_tokens.shape
      ((1, 1, 3), (1, 1, 3, 2))
    """
    check_model(model)
    num_alternatives = fields.as_count("num_alternatives", num_alternatives, 0)
    if num_alternatives > model.vocab_size:
        expected = f"an int from 0 to {model.vocab_size}, the model's vocabulary"
        raise fields.error("num_alternatives", expected, num_alternatives)
    prompt, tokens = check_prompt(prompt), as_integers("tokens", tokens)
    shape = f"[B, N, L] with L of 1 or more, and {len(prompt.length)} prompts for B"
    if tokens.ndim != 3 or tokens.shape[0] != len(prompt.length) or 0 in tokens.shape:
        raise fields.error("tokens", shape, tokens)
    end = tokens.shape[2] if end is None else end
    values: Any = fields.on_host(*prompt, tokens, end)
    if values is None or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(model)):
        return compiled_scores(model, prompt, tokens, end, num_alternatives=num_alternatives)
    given = Prompt(*values[:2]), values[2], fields.as_count("end", values[3], 0)
    _check_values(model, *given)
    if tokens.shape[1] == 1 and reads_whole_texts(model):
        scores = _by_whole_texts(model, *given, num_alternatives)
        if scores is not None:
            return scores
    return _by_chunks(model, *given, num_alternatives)


def _check_values(model: LanguageModel, prompt: Prompt, tokens: np.ndarray, end: int) -> None:
    check_prompt_ids(prompt, model.vocab_size)
    outside = tokens[(tokens < 0) | (tokens >= model.vocab_size)]
    if outside.size:
        expected = f"ids from 0 to {model.vocab_size - 1}, the model's vocabulary"
        raise fields.error("tokens", expected, int(outside[0]))
    size, positions = tokens.shape[2], model.max_positions
    if not 0 <= end <= size:
        raise fields.error("end", f"an int from 0 to {size}, the number of tokens", end)
    longest = int(np.max(prompt.length))
    if positions is not None and longest + end - 1 > positions:  # The last token is not read.
        room = positions - longest + 1
        raise ValueError(
            f"tokens: expected at most {room} after a prompt of {longest}, since the model has "
            f"{positions} positions, got {end}"
        )


def reads_whole_texts(model: Any) -> bool:
    """Whether a prompt that holds a whole text gives each token the distribution of a decode."""
    joined = getattr(getattr(model, "config", None), "bidirectional_prompt", False)
    return isinstance(model, SupportsProject) and not joined and prefix_of(model) is None


def _by_whole_texts(
    model: Any, prompt: Prompt, tokens: np.ndarray, end: int, num_alternatives: int
) -> TokenScores | None:
    """The scores of one sequence for each prompt; None if the model returns no hidden states."""
    size, length = tokens.shape[2], np.asarray(prompt.length)
    longest, positions = int(length.max()) + max(end, 1) - 1, model.max_positions
    width = round_up(longest, CHUNK)
    width = width if positions is None else max(longest, min(width, positions))
    texts = np.zeros((len(length), width + 1), np.int32)
    for row, own, count, new in zip(texts, prompt.tokens, length, tokens[:, 0], strict=True):
        row[:count] = own[:count]
        row[count : count + end] = new[:end]
    found = _OF_TEXTS(
        model,
        texts,
        (length + max(end, 1) - 1).astype(np.int32),
        np.int32(length.min() - 1),
        np.int32(longest if end else 0),
        num_alternatives=num_alternatives,
    )
    if found is None:
        return None
    place = np.minimum(length[:, None, None] - 1 + np.arange(size), width - 1)
    within = np.broadcast_to(np.arange(size) < end, place.shape)

    def taken(values: np.ndarray) -> Array:
        further = (1,) * (values.ndim - 3)
        at = place.reshape(place.shape + further)
        kept = within.reshape(place.shape + further)
        return jnp.asarray(np.where(kept, np.take_along_axis(values, at, 2), 0))

    return jax.tree.map(taken, to_host(found))


def scores_of_texts(
    model: Any, texts: Array, length: Array, begin: Array, end: Array, *, num_alternatives: int
) -> TokenScores | None:
    """The scores of the tokens of whole texts, by one prefill; None without hidden states.

    Args:
      model: a model that projects hidden states.
      texts: int32 ``[B, 1 + T]``, right-padded.
      length: int32 ``[B]``, the number of tokens that the model reads, from 1 to T.
      begin, end: int32, from which token to which one logits are computed.
      num_alternatives: as for ``token_scores``.

    Returns:
      Scores ``[B, 1, T]``, the first of the second token.
    """
    read = Prompt(texts[:, :-1], length)
    output, _ = model.prefill(*read, lanes=1, slots=1, with_hidden=True)
    if output.hidden is None:
        return None
    size = read.tokens.shape[1]
    padding = -size % CHUNK
    hidden = jnp.pad(output.hidden, ((0, 0), (0, 0), (0, padding), (0, 0)))
    chosen = jnp.pad(texts[:, None, 1:], ((0, 0), (0, 0), (0, padding)))

    def step(i: Array, scores: TokenScores) -> TokenScores:
        states, new = (lax.dynamic_slice_in_dim(x, i * CHUNK, CHUNK, 2) for x in (hidden, chosen))
        logits = model_calls.project(model, states, model.vocab_size, name="model")
        return _placed(scores, _scored(logits, new, num_alternatives), i * CHUNK)

    empty = _empty(chosen.shape, num_alternatives)
    scores = lax.fori_loop(begin // CHUNK, -(-end // CHUNK), step, empty)
    return jax.tree.map(lambda x: x[:, :, :size], scores)


def _by_chunks(
    model: LanguageModel, prompt: Prompt, tokens: np.ndarray, end: int, num_alternatives: int
) -> TokenScores:
    """As ``scores_by_chunks``, compiled for a few numbers of tokens."""
    size, positions = tokens.shape[2], model.max_positions
    slots = round_up(max(size - 1, 1), CHUNK)
    if positions is not None and prompt.tokens.shape[1] + slots > positions:
        slots = size - 1
    padded: Any = np.pad(tokens, ((0, 0), (0, 0), (0, 1 + slots - size))).astype(np.int32)
    last: Any = np.int32(end)  # A dtype of its own: a plain number would be another program.
    scores = compiled_scores(
        model, as_int32(prompt), padded, last, num_alternatives=num_alternatives
    )
    return jax.tree.map(lambda x: jnp.asarray(x[:, :, :size]), to_host(scores))


def scores_by_chunks(
    model: LanguageModel,
    prompt: Prompt,
    tokens: Array,
    end: Array | int | None = None,
    *,
    num_alternatives: int = 0,
    transform: Transform | None = None,
) -> TokenScores:
    """``token_scores``, of which nothing is checked, for a program that is compiled elsewhere.

    With a transform, the scores have ``kept``.
    """
    _, lanes, length = tokens.shape
    scoring = begin(
        model,
        prompt,
        lanes=lanes,
        length=length,
        num_alternatives=num_alternatives,
        with_kept=transform is not None,
    )
    end = length if end is None else end
    scores = score(model, prompt, scoring, tokens, 0, end, transform).scores
    return jax.tree.map(lambda x: x[:, :, :length], scores)


def begin(
    model: LanguageModel,
    prompt: Prompt,
    *,
    lanes: int,
    length: int,
    num_alternatives: int,
    with_kept: bool = False,
) -> Scoring:
    """Reads the prompts; nothing is scored yet.

    Args:
      model, prompt, num_alternatives: as for ``token_scores``.
      lanes: N.
      length: L.
      with_kept: whether the scores have ``kept``.
    """
    slots = max(-(-(length - 1) // CHUNK), 1) * CHUNK
    if model.max_positions is not None:
        slots = max(min(slots, model.max_positions - prompt.tokens.shape[1]), 1)
    output, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=slots)
    scores = _empty((prompt.tokens.shape[0], lanes, 1 + slots), num_alternatives, with_kept)
    return Scoring(cache, output.logits, scores)


def _empty(shape: tuple[int, ...], num_alternatives: int, with_kept: bool = False) -> TokenScores:
    """Scores of no token yet."""
    zeros, tops = jnp.zeros(shape, jnp.float32), (*shape, num_alternatives)
    alternatives = jnp.zeros(tops, jnp.int32), jnp.zeros(tops, jnp.float32)
    return TokenScores(zeros, zeros, *alternatives, zeros, zeros if with_kept else None)


def score(
    model: LanguageModel,
    prompt: Prompt,
    scoring: Scoring,
    tokens: Array,
    start: Array | int,
    end: Array | int,
    transform: Transform | None = None,
) -> Scoring:
    """Scores the tokens from ``start`` to ``end``; earlier tokens keep their scores.

    Args:
      model, prompt: those of ``begin``. If ``start`` is not 0, the model must be able to rewind.
      scoring: from ``begin``, or from this function.
      tokens: int32 ``[B, N, L]``.
      start: int32, the first token that is new.
      end: int32, the end of the longest sequence.
      transform: of which the scores have what it kept; ``start`` is then 0.
    """
    cache, first, scores = scoring
    slots = scores.log_prob.shape[2] - 1
    whole = slots // CHUNK * CHUNK  # Where positions end, fewer tokens than a chunk are left.
    tokens = jnp.pad(tokens, ((0, 0), (0, 0), (0, 1 + slots - tokens.shape[2])))
    num_alternatives = scores.top_tokens.shape[-1]
    logits = jnp.broadcast_to(first, (*tokens.shape[:2], 1, first.shape[-1]))
    states = None if transform is None else carried.begin(transform, prompt, tokens.shape[1])

    def scored(logits: Array, place: Array | int, states: Any) -> tuple[TokenScores, Any]:
        """The scores of the tokens from a place on, and the transform's states at the last one."""
        size = logits.shape[2]
        chosen = lax.dynamic_slice_in_dim(tokens, place, size, 2)
        found = _scored(logits, chosen, num_alternatives)
        if transform is None:
            return found, None
        length = jnp.asarray(place, jnp.int32) + jnp.arange(size, dtype=jnp.int32)
        length = jnp.broadcast_to(length[None, None], chosen.shape)
        of_paths = jnp.broadcast_to(tokens[:, :, None], (*chosen.shape, tokens.shape[2]))
        path = Prefix(*prompt, of_paths, length)
        path = carried.advance(transform, path, states, rest=size)
        allowed = clean(model_calls.transformed(transform, clean(logits), path)) > -jnp.inf
        kept = jnp.where(allowed, jnp.exp(log_softmax(logits)), 0).sum(-1)
        states = jax.tree.map(lambda x: x[:, :, -1:], path.carried)
        return found._replace(kept=kept), states

    found, states = scored(logits, 0, states)
    scores = _placed(scores, found, 0)

    def read(slot: Array | int, count: int, carry: tuple[Cache, TokenScores, Any]) -> Any:
        cache, scores, states = carry
        fed = lax.dynamic_slice_in_dim(tokens, slot, count, 2)
        output, cache = model_calls.extend(model, cache, fed, slot)
        found, states = scored(output.logits, slot + 1, states)
        return cache, _placed(scores, found, slot + 1), states

    # The token after a chunk is scored by it too.
    begins = jnp.maximum(jnp.asarray(start, jnp.int32) - 1, 0) // CHUNK
    ends = jnp.minimum((jnp.asarray(end, jnp.int32) - 2) // CHUNK + 1, whole // CHUNK)
    step: Any = lambda i, carry: read(i * CHUNK, CHUNK, carry)  # noqa: E731
    carry = (cache, scores, states)
    if whole:
        carry = lax.fori_loop(begins, ends, step, carry)
    if slots > whole:
        rest = functools.partial(read, whole, slots - whole)
        carry = lax.cond(jnp.asarray(end) - 2 >= whole, rest, lambda carry: carry, carry)
    return Scoring(carry[0], first, carry[1])


def _scored(logits: Array, tokens: Array, num_alternatives: int) -> TokenScores:
    """The scores of tokens ``[B, N, T]`` under logits ``[B, N, T, V]``.

    Where a logit is NaN, so are a token's log-probability, entropy and certainty; its alternatives
    are -inf.
    """
    log_probs = log_softmax(logits)
    prob = jnp.exp(log_probs)
    if num_alternatives:
        top_log_probs, top_tokens = top_k(clean(log_probs), num_alternatives)
    else:
        top_log_probs = jnp.zeros((*tokens.shape, 0), jnp.float32)
        top_tokens = jnp.zeros((*tokens.shape, 0), jnp.int32)
    return TokenScores(
        log_prob=jnp.take_along_axis(log_probs, tokens[..., None], 3, mode="clip")[..., 0],
        entropy=-jnp.where(prob == 0, 0.0, prob * log_probs).sum(-1),
        top_tokens=top_tokens,
        top_log_probs=top_log_probs,
        self_certainty=-log_probs.mean(-1) - math.log(logits.shape[-1]),
    )


def _placed(scores: TokenScores, new: TokenScores, index: Array | int) -> TokenScores:
    def update(old: Array, value: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(old, value, index, 2)

    return jax.tree.map(update, scores, new)


compiled_scores = jit(scores_by_chunks, ("num_alternatives",))
"""``scores_by_chunks``, compiled."""

_OF_TEXTS: Any = jit(scores_of_texts, ("num_alternatives",))

_BEGIN = jit(begin, ("lanes", "length", "num_alternatives"))
_SCORE = jit(score, (), donated=("scoring",))


class GrowingScores:
    """The scores of growing sequences, in which only changed tokens are scored again.

    Args:
      model: a language model. One that cannot rewind (``rewinds`` is False) reads everything anew.
      prompt: B prompts.
      num_alternatives: as for ``token_scores``.
    """

    def __init__(self, model: LanguageModel, prompt: Prompt, num_alternatives: int):
        self._model, self._prompt, self._num_alternatives = model, prompt, num_alternatives
        self._rewinds = getattr(model, "rewinds", True)
        self._scoring: Any = None
        self._tokens: np.ndarray = np.zeros(0, np.int32)
        self._length: np.ndarray = np.zeros(0, np.int32)

    def __call__(self, tokens: Array, length: Array) -> TokenScores:
        """Returns the scores of all tokens so far, as NumPy arrays.

        Args:
          tokens: int32 ``[B, N, L]``, of the same shape in every call.
          length: int32 ``[B, N]``.
        """
        now, ends = np.asarray(tokens), np.asarray(length)
        size = now.shape[2]
        if self._scoring is None:
            self._tokens, self._length = now, np.zeros_like(ends)
        index = np.arange(size)
        new = (index >= self._length[..., None]) | (now != self._tokens)
        new = (new & (index < ends[..., None])).any((0, 1))
        start, end = (int(new.argmax()), int(ends.max())) if new.any() else (size, 0)
        if self._scoring is None or (start < end and not self._rewinds):
            start = 0
            self._scoring = _BEGIN(
                self._model,
                self._prompt,
                lanes=now.shape[1],
                length=size,
                num_alternatives=self._num_alternatives,
            )
        if start < end:
            self._scoring = _SCORE(
                self._model,
                self._prompt,
                tokens=jnp.asarray(now),
                start=jnp.int32(start),
                end=jnp.int32(end),
                scoring=self._scoring,
            )
        self._tokens, self._length = now, ends
        # These are copies, since the next call donates the buffers of these scores.
        return jax.tree.map(lambda x: np.array(x)[:, :, :size], to_host(self._scoring.scores))
