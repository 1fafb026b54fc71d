"""Strategies of a few lines, and the mistakes that the certificate has to find in them."""

import dataclasses

import jax
import jax.numpy as jnp

from decoding_jax.base import DecodeOutput, Prefix, Stop
from decoding_jax.testing.certificate.strategies import from_function


def decode(model, prompt, keys, lanes, size, transform, stop, mistake=None):
    """Samples token by token, or takes the likeliest without keys; ``mistake`` names a flaw."""
    tokens, length = prompt
    batch, max_positions = tokens.shape[0], model.max_positions
    too_long = max_positions is not None and tokens.shape[1] + size - 1 > max_positions
    if too_long and mistake != "never refuses":
        raise ValueError("max_new_tokens: too many")
    stop = Stop() if stop is None else stop
    ends = by_row(() if stop.eos_ids is None else stop.eos_ids, batch, 1)
    sequences = by_row(stop.sequences, batch, 2)
    least = by_row(stop.min_new_tokens, batch, 0)
    limit = by_row(size if stop.max_new_tokens is None else stop.max_new_tokens, batch, 0)
    limit = jnp.minimum(limit, size)
    output, cache = model.prefill(tokens, length, lanes=lanes, slots=size)
    shape = (batch, lanes)

    def grow(t, carry):
        cache, logits, new, count, log_prob, finished, done = carry
        raw = jnp.where(jnp.isnan(logits), -jnp.inf, logits)
        vocab = jnp.arange(raw.shape[-1])[None, :, None]
        banned = (vocab == ends[:, None]).any(-1) & (t < least)[:, None]
        if mistake == "eos before minimum":
            banned = jnp.zeros_like(banned)
        allowed = jnp.where(banned[:, None, None], -jnp.inf, raw)
        if transform is not None:
            prefix = Prefix(tokens, length, new[:, :, None], count[..., None])
            allowed = transform(allowed, prefix)
        allowed, raw = allowed[:, :, 0], raw[:, :, 0]
        dead = (allowed == -jnp.inf).all(-1)
        token = choose(keys, t, allowed, mistake)
        gained = jax.nn.log_softmax(allowed if mistake == "transformed log_prob" else raw)
        gained = jnp.take_along_axis(gained, token[..., None], -1)[..., 0]
        alive = ~done & ~dead
        shown = token if mistake == "unpadded" else jnp.where(alive, token, 0)
        new = jnp.where((jnp.arange(size) == t)[None, None], shown[..., None], new)
        enough = (t + 1 >= least)[:, None] | (mistake == "sequence before minimum")
        ended = (token[..., None] == ends[:, None]).any(-1)
        ended |= enough & ends_with(sequences, new, t + 1)
        ended &= mistake != "no end"
        full = (t + 1 >= limit)[:, None]
        finished |= alive & (ended | (full & (mistake == "limit is an end")))
        log_prob += jnp.where(alive, gained, 0.0)
        done |= dead | ended | full
        slot = jnp.maximum(t - 1, 0) if mistake == "overwritten slot" else t
        output, cache = model.extend(cache, token[..., None], slot)
        return cache, output.logits, new, count + alive.astype(jnp.int32), log_prob, finished, done

    carry = (
        cache,
        jnp.broadcast_to(output.logits, (*shape, 1, model.vocab_size)),
        jnp.zeros((*shape, size), jnp.int32),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape),
        jnp.zeros(shape, bool),
        jnp.broadcast_to((limit == 0)[:, None], shape),
    )
    _, _, new, count, log_prob, finished, _ = jax.lax.fori_loop(0, size, grow, carry)
    return DecodeOutput(new, count, log_prob, log_prob, finished)


def by_row(value, batch, rank):
    """A setting that all rows may share, one a row."""
    value = jnp.asarray(value, jnp.int32)
    return jnp.broadcast_to(value, (batch, *value.shape)) if value.ndim == rank else value


def ends_with(sequences, new, count):
    """bool [B, W]: whether the first ``count`` new tokens end with one of the row's sequences."""
    if 0 in sequences.shape:
        return jnp.zeros(new.shape[:2], bool)
    width = sequences.shape[-1]
    padded = jnp.pad(new, ((0, 0), (0, 0), (width, 0)), constant_values=-2)
    tail = jax.lax.dynamic_slice_in_dim(padded, count, width, axis=2)
    table = sequences[:, None]
    same = ((tail[:, :, None] == table) | (table < 0)).all(-1)
    return (same & (table >= 0).any(-1)).any(-1)


def choose(keys, t, logits, mistake):
    """int32 [B, W]: a draw from each lane's logits [B, W, V], or the likeliest without keys."""
    batch, lanes, vocab = logits.shape
    if mistake == "biased":
        logits = logits + jnp.where(jnp.arange(vocab) == 0, 0.4, 0.0)[None, None]
    if keys is None:
        return jnp.argmax(logits, -1).astype(jnp.int32)
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    if not keys.shape:
        keys = fold(keys, jnp.arange(batch))
    if mistake == "key of the batch":
        keys = fold(keys[0], jnp.arange(batch))
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
    keys = jax.vmap(fold, (0, None))(keys, jnp.arange(lanes))
    if mistake == "same lanes":
        keys = jnp.broadcast_to(keys[:, :1], keys.shape)
    uniform = jax.vmap(jax.vmap(jax.random.uniform))(keys)
    distribution = jnp.cumsum(jax.nn.softmax(logits), -1)
    token = (distribution <= uniform[..., None] * distribution[..., -1:]).sum(-1)
    return jnp.minimum(token, vocab - 1).astype(jnp.int32)


def tiny_sampler(mistake=None):
    """A sampler under test; its lanes are independent."""

    def sampler(model, prompt, key, *, num_samples, max_new_tokens, transform=None, stop=None):
        return decode(model, prompt, key, num_samples, max_new_tokens, transform, stop, mistake)

    strategy = dataclasses.replace(from_function(sampler, "tiny"), independent=True)
    if mistake == "retraces":
        anew = lambda *args, **kwargs: from_function(sampler, "").function(*args, **kwargs)  # noqa: E731
        return dataclasses.replace(strategy, function=anew)
    return strategy


def tiny_search(mistake=None):
    """Greedy decoding under test."""

    def search(model, prompt, *, max_new_tokens, transform=None, stop=None):
        return decode(model, prompt, None, 1, max_new_tokens, transform, stop, mistake)

    return from_function(search, "tiny")


def my_sampler(model, prompt, key, *, num_samples, max_new_tokens, transform=None, stop=None):
    """What ``--strategy tiny_strategies:my_sampler`` names."""
    return decode(model, prompt, key, num_samples, max_new_tokens, transform, stop)
