"""Scores of every token of decoded sequences, by one more pass of the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax.base import Array, Cache, LanguageModel, Prompt
from decoding_jax.loop import model_calls
from decoding_jax.ops.jit import jit
from decoding_jax.ops.logits import clean, log_softmax
from decoding_jax.ops.top_k import top_k
from decoding_jax.sharding.meshes import to_host

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
    """

    log_prob: Array
    entropy: Array
    top_tokens: Array
    top_log_probs: Array


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

    The model reads each prompt, and the sequences at most sixteen tokens a call.

    Args:
      model: a language model.
      prompt: B prompts.
      tokens: int32 ``[B, N, L]``: N sequences of new tokens for each prompt. Tokens after the end
        of a sequence may be any of the vocabulary, and are scored like the others.
      end: int32, the number of tokens of the longest sequence, after which nothing is computed; L
        by default.
      num_alternatives: n, the number of the most probable tokens, 0 to V.

    Example:
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> scores = token_scores(model, prompt, jnp.array([[[3, 0, 4]]]), num_alternatives=2)
      >>> scores.log_prob.shape, scores.top_tokens.shape
      ((1, 1, 3), (1, 1, 3, 2))
    """
    _, lanes, length = tokens.shape
    scoring = begin(model, prompt, lanes=lanes, length=length, num_alternatives=num_alternatives)
    end = length if end is None else end
    scores = score(model, prompt, scoring, tokens, 0, end).scores
    return jax.tree.map(lambda x: x[:, :, :length], scores)


def begin(
    model: LanguageModel, prompt: Prompt, *, lanes: int, length: int, num_alternatives: int
) -> Scoring:
    """Reads the prompts; nothing is scored yet.

    Args:
      model, prompt, num_alternatives: as for ``token_scores``.
      lanes: N.
      length: L.
    """
    chunk = _chunk(model, prompt, length)
    slots = max(-(-(length - 1) // chunk), 1) * chunk
    logits, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=slots)
    shape = (prompt.tokens.shape[0], lanes, 1 + slots)
    zeros, tops = jnp.zeros(shape, jnp.float32), (*shape, num_alternatives)
    scores = TokenScores(zeros, zeros, jnp.zeros(tops, jnp.int32), jnp.zeros(tops, jnp.float32))
    return Scoring(cache, logits, scores)


def score(
    model: LanguageModel,
    prompt: Prompt,
    scoring: Scoring,
    tokens: Array,
    start: Array | int,
    end: Array | int,
) -> Scoring:
    """Scores the tokens from ``start`` to ``end``; earlier tokens keep their scores.

    Args:
      model, prompt: those of ``begin``. If ``start`` is not 0, the model must be able to rewind.
      scoring: from ``begin``, or from this function.
      tokens: int32 ``[B, N, L]``.
      start: int32, the first token that is new.
      end: int32, the end of the longest sequence.
    """
    cache, first, scores = scoring
    chunk, slots = _chunk(model, prompt, tokens.shape[2]), scores.log_prob.shape[2] - 1
    tokens = jnp.pad(tokens, ((0, 0), (0, 0), (0, 1 + slots - tokens.shape[2])))
    num_alternatives = scores.top_tokens.shape[-1]
    logits = jnp.broadcast_to(first, (*tokens.shape[:2], 1, first.shape[-1]))
    scores = _placed(scores, _scored(logits, tokens[:, :, :1], num_alternatives), 0)

    def step(i: Array, carry: tuple[Cache, TokenScores]) -> tuple[Cache, TokenScores]:
        cache, scores = carry
        slot = i * chunk
        fed = lax.dynamic_slice_in_dim(tokens, slot, chunk, 2)
        output, cache = model_calls.extend(model, cache, fed, slot)
        chosen = lax.dynamic_slice_in_dim(tokens, slot + 1, chunk, 2)
        return cache, _placed(scores, _scored(output.logits, chosen, num_alternatives), slot + 1)

    # The token after a chunk is scored by it too.
    begins = jnp.maximum(jnp.asarray(start, jnp.int32) - 1, 0) // chunk
    ends = (jnp.asarray(end, jnp.int32) - 2) // chunk + 1
    cache, scores = lax.fori_loop(begins, ends, step, (cache, scores))
    return Scoring(cache, first, scores)


def _chunk(model: LanguageModel, prompt: Prompt, length: int) -> int:
    """The tokens of a call: fewer than ``CHUNK`` where the slots would pass the last position."""
    if model.max_positions is None:
        return CHUNK
    room = model.max_positions - prompt.tokens.shape[1]
    fitting = (n for n in range(CHUNK, 1, -1) if -(-(length - 1) // n) * n <= room)
    return next(fitting, 1)


def _scored(logits: Array, tokens: Array, num_alternatives: int) -> TokenScores:
    """The scores of tokens ``[B, N, T]`` under logits ``[B, N, T, V]``.

    Where a logit is NaN, so are a token's log-probability and entropy; its alternatives are -inf.
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
    )


def _placed(scores: TokenScores, new: TokenScores, index: Array | int) -> TokenScores:
    def update(old: Array, value: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(old, value, index, 2)

    return jax.tree.map(update, scores, new)


compiled_scores = jit(token_scores, ("num_alternatives",))
"""``token_scores``, compiled."""

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
