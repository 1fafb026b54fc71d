"""All texts of a language that has few of them, with the masses of their beginnings.

The texts are found as by a beam search that keeps every hypothesis of the language: each call of
the model scores the last tokens of all beginnings of one length. Where the beginnings and texts
fit, their probabilities are all known, and so is the conditional distribution given the language.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import (
    Array,
    CarriedStates,
    LanguageModel,
    Prefix,
    Prompt,
    Stop,
    Transform,
)
from decoding_jax.loop import model_calls, shared_cache, stopping
from decoding_jax.loop.sequences import over_axes, write
from decoding_jax.ops import exact
from decoding_jax.ops.gather import gather_items, gather_last
from decoding_jax.ops.logits import log_total
from decoding_jax.ops.top_k import top_k
from decoding_jax.transforms import carried


class ListedTexts(NamedTuple):
    """The texts of a language, K places a row.

    Attributes:
      tokens: int32 ``[B, K, L]``.
      log_mass: float32 ``[B, K, L]``: entry i of a text is the logarithm of the probability of all
        texts that begin with its first i + 1 tokens, up to a constant of the row; -inf where the
        text has no such token, in places without a text, and in rows whose texts are not known.
      log_language_prob: float32 ``[B]``, in nats: the logarithm of the probability of all texts; of
        those that were found, where they are not complete; NaN where the model's logits are NaN.
      complete: bool ``[B]``, whether these are all texts.
      model_calls: int32 ``[B]``, the prefill and every ``extend``.
    """

    tokens: Array
    log_mass: Array
    log_language_prob: Array
    complete: Array
    model_calls: Array

    @property
    def known(self) -> Array:
        """Whether a row has a conditional distribution, and it is known: bool ``[B]``."""
        return self.complete & (self.log_language_prob > -jnp.inf)

    def next_masses(self, prefix: Prefix, vocab_size: int) -> Array:
        """The logarithms of what the language holds after each next token, up to a constant.

        Args:
          prefix: one path for each of N lanes.
          vocab_size: V.

        Returns:
          float32 ``[B, N, V]``; -inf for tokens after which no text goes on.
        """
        # The lengths before the first token are constants, by which XLA would compute at length.
        tokens, length = lax.optimization_barrier((prefix.tokens[:, :, 0], prefix.length[:, :, 0]))
        place = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None, None]
        is_same = self.tokens[:, None] == tokens[:, :, None]
        begins_so = (is_same | (place >= length[..., None, None])).all(-1)
        index = jnp.minimum(length, tokens.shape[-1] - 1)[..., None]
        index = jnp.broadcast_to(index, begins_so.shape)
        shape = (*begins_so.shape, tokens.shape[-1])
        token = gather_last(jnp.broadcast_to(self.tokens[:, None], shape), index)
        mass = gather_last(jnp.broadcast_to(self.log_mass[:, None], shape), index)
        mass = jnp.where(begins_so, mass, -jnp.inf)
        empty = jnp.full((*length.shape, vocab_size), -jnp.inf, jnp.float32)
        # Texts that go on by one token have one mass, so that the order of a sum is no question.
        return jax.vmap(jax.vmap(lambda row, at, new: row.at[at].max(new)))(empty, token, mass)


class _Listing(NamedTuple):
    """Whole texts, and beginnings of as many tokens as were fed.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from ``length`` on.
      length: int32 ``[B, K]``.
      log_prob: float32 ``[B, K]``; -inf in a place without a text.
      lost: float32 ``[B, K]``, the rounding error of that sum.
      finished: bool ``[B, K]``, whole texts.
      complete: bool ``[B]``, whether all had room so far.
      is_nan: bool ``[B]``, whether the logits after a beginning were NaN.
      calls: int32 ``[B]``.
    """

    tokens: Array
    length: Array
    log_prob: Array
    lost: Array
    finished: Array
    complete: Array
    is_nan: Array
    calls: Array

    @property
    def begun(self) -> Array:
        """The beginnings that go on, bool ``[B, K]``."""
        going_on = (self.complete & ~self.is_nan)[:, None]
        return going_on & (self.log_prob > -jnp.inf) & ~self.finished


def list_texts(
    model: LanguageModel,
    prompt: Prompt,
    language: Transform,
    *,
    max_texts: int,
    max_new_tokens: int,
    transform: Transform | None,
    stop: Stop,
) -> ListedTexts:
    """Finds all texts of a language that end by a stop condition, with their probabilities.

    It costs what a beam search of ``max_texts`` beams costs, which ends with the longest text.

    Args:
      model: a model with ``tree`` or ``select``.
      prompt: B prompts.
      language: a transform that bans the tokens which may not follow.
      max_texts: K, the maximum number of beginnings of one length, with the texts that are whole by
        then. The texts of a row with more are not complete.
      max_new_tokens: L.
      transform: applied to the logits before the language; it is a part of the probabilities.
      stop: when a text ends.

    Raises:
      ValueError: for a model with neither ``tree`` nor ``select``.
    """
    batch = prompt.tokens.shape[0]
    first, shared = shared_cache.open_cache(model, prompt, max_texts, max_new_tokens)
    limits = stopping.limits(stop, batch, max_new_tokens)
    shape = (batch, max_texts)
    is_root = (jnp.arange(max_texts, dtype=jnp.int32)[None] == 0) & (limits > 0)[:, None]
    zeros, none = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)
    listing = _Listing(
        tokens=jnp.zeros((*shape, max_new_tokens), jnp.int32),
        length=zeros,
        log_prob=jnp.where(is_root, 0.0, -jnp.inf),
        lost=jnp.zeros(shape, jnp.float32),
        finished=none,
        complete=~none[:, 0],
        is_nan=none[:, 0],
        calls=zeros[:, 0] + 1,
    )

    banning = transform, language

    def expand(
        logits: Array, listing: _Listing, states: CarriedStates | None
    ) -> tuple[_Listing, CarriedStates | None, Array, Array]:
        path = Prefix(*prompt, listing.tokens[:, :, None], listing.length[..., None])
        path = carried.advance(banning, path, states)
        allowed = model_calls.allowed_logits(logits[:, :, None], path.part(0), stop, transform)
        log_probs, in_language = model_calls.in_language(
            allowed[:, :, 0], path.part(1), language, stop, only_finished=True
        )
        log_probs = jnp.where(in_language, log_probs, -jnp.inf)
        listing, token, parent = _expanded(listing, logits, log_probs, stop, limits)
        states = jax.tree.map(lambda x: gather_items(x, parent), path.carried)
        return listing, states, token, parent

    def step(carry: Any) -> Any:
        listing, states, token, shared = carry
        logits, shared = shared_cache.extend_hypotheses(model, prompt, shared, token)
        listing = listing._replace(calls=listing.calls + listing.begun.any(-1).astype(jnp.int32))
        listing, states, token, parent = expand(logits, listing, states)
        return listing, states, token, shared_cache.reorder(model, shared, parent)

    logits = jnp.broadcast_to(first[:, None], (*shape, first.shape[-1]))
    begun = carried.begin(banning, prompt, max_texts)
    listing, states, token, _ = expand(logits, listing, begun)
    listing, *_ = lax.while_loop(
        lambda carry: carry[0].begun.any(), step, (listing, states, token, shared)
    )
    return _with_masses(listing)


def _expanded(
    old: _Listing, logits: Array, log_probs: Array, stop: Stop, limits: Array
) -> tuple[_Listing, Array, Array]:
    """Replaces every beginning by its continuations, in an order that no other row affects.

    Args:
      old: the texts and beginnings so far.
      logits: float32 ``[B, K, V]``, the model's.
      log_probs: float32 ``[B, K, V]``, of the continuations; -inf outside the language.
      stop: when a text ends.
      limits: int32 ``[B]``.

    Returns:
      The listing, the last tokens, and the beginnings that they continue, both int32 ``[B, K]``.
    """
    batch, places, size = log_probs.shape
    begun = old.begun
    is_first = jnp.arange(size, dtype=jnp.int32)[None, None] == 0
    # A whole text is its own continuation.
    kept = jnp.where(is_first & ~begun[..., None], old.log_prob[..., None], -jnp.inf)
    totals = jnp.where(begun[..., None], old.log_prob[..., None] + log_probs, kept)
    best, index = top_k(totals.reshape(batch, -1), places)
    parent, token = index // size, index % size

    was = _Listing(*(gather_items(x, parent) if x.ndim > 1 else x for x in old))
    grows = (best > -jnp.inf) & ~was.finished
    tokens = write(was.tokens, token, jnp.where(grows, was.length, -1))
    length = was.length + grows.astype(jnp.int32)
    finished = was.finished | (grows & stopping.ends(stop, token, tokens, length))
    gained = jnp.take_along_axis(log_probs.reshape(batch, -1), index, axis=1)
    log_prob, lost = exact.add(was.log_prob, was.lost, jnp.where(grows, gained, 0.0))
    exists = (best > -jnp.inf) & (finished | (length < limits[:, None]))
    new = _Listing(
        tokens=jnp.where(exists[..., None], tokens, 0),
        length=jnp.where(exists, length, 0),
        log_prob=jnp.where(exists, log_prob, -jnp.inf),
        lost=jnp.where(exists, lost, 0.0),
        finished=finished & exists,
        complete=old.complete & ((totals > -jnp.inf).sum((1, 2), dtype=jnp.int32) <= places),
        is_nan=old.is_nan | (begun & jnp.isnan(logits).any(-1)).any(-1),
        calls=old.calls,
    )
    is_open = begun.any(-1)
    listing = jax.tree.map(lambda x, y: jnp.where(over_axes(is_open, x.ndim), x, y), new, old)
    return listing, token, parent


def _with_masses(listing: _Listing) -> ListedTexts:
    """Adds the probabilities of the texts that share each beginning."""
    log_prob = jnp.where(listing.finished, listing.log_prob, -jnp.inf)
    most = log_prob.max(-1)
    base = jnp.where(most > -jnp.inf, most, 0.0)
    relative = jnp.where(log_prob > -jnp.inf, (log_prob - base[:, None]) + listing.lost, -jnp.inf)
    known = (listing.complete & ~listing.is_nan)[:, None]

    def level(same: Array, column: tuple[Array, Array]) -> tuple[Array, Array]:
        token, i = column
        same &= token[:, :, None] == token[:, None]
        mass = log_total(jnp.where(same, relative[:, None], -jnp.inf))
        return same, jnp.where(known & (i < listing.length), mass, -jnp.inf)

    batch, places, limit = listing.tokens.shape
    same = jnp.ones((batch, places, places), bool)
    columns = jnp.moveaxis(listing.tokens, 2, 0), jnp.arange(limit, dtype=jnp.int32)
    masses = lax.scan(level, same, columns)[1]
    total = jnp.where(listing.is_nan, jnp.nan, base + log_total(relative))
    return ListedTexts(
        tokens=listing.tokens,
        log_mass=jnp.moveaxis(masses, 0, 2),
        log_language_prob=total,
        complete=listing.complete,
        model_calls=listing.calls,
    )
