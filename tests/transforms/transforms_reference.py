"""Logits, prefixes and texts for the tests of transforms, and the equations of ``examples``."""

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Prefix

INF = np.inf
B, W, T, V, P, L = 3, 2, 2, 11, 5, 6


def make_prefix(seed=0, vocab_size=V, alphabet=V):
    """Ragged prompts and paths, padded with random tokens that look like real ones."""
    rng = np.random.default_rng(seed)
    return Prefix(
        jnp.asarray(rng.integers(0, alphabet, (B, P)), jnp.int32),
        jnp.asarray([1, 3, P], jnp.int32),
        jnp.asarray(rng.integers(0, alphabet, (B, W, T, L)), jnp.int32),
        jnp.asarray([[[0, 1], [2, 3]], [[3, 3], [5, L]], [[0, 1], [5, L]]], jnp.int32),
    )


def make_logits(kind="distinct", seed=0, vocab_size=V):
    """Logits [B, W, T, V]: distinct, tied, partly or wholly masked, or with NaN."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(B, W, T, vocab_size)).astype(np.float32) * 2
    if kind in ("ties", "masked"):
        logits = np.round(logits)
    if kind == "masked":
        logits[rng.random(logits.shape) < 0.4] = -INF
        logits[0, 1] = -INF
        logits[2, 0, 1, : vocab_size - 1] = -INF
    if kind == "nan":
        logits[rng.random(logits.shape) < 0.3] = np.nan
        logits[1, 1, 0] = np.nan
    return logits


def text_of(prefix, b, w, t, include_prompt):
    new = np.asarray(prefix.tokens)[b, w, t, : int(prefix.length[b, w, t])]
    if not include_prompt:
        return list(new)
    return list(np.asarray(prefix.prompt)[b, : int(prefix.prompt_length[b])]) + list(new)


def apply(reference, logits, prefix, include_prompt=False, **settings):
    """Applies ``reference`` to every logit vector; array settings have one value for each row."""
    out = np.empty(logits.shape, np.float64)
    for b, w, t in np.ndindex(logits.shape[:3]):
        mine = {k: v[b] if isinstance(v, np.ndarray) else v for k, v in settings.items()}
        l = np.where(np.isnan(logits[b, w, t]), -INF, logits[b, w, t].astype(np.float64))
        out[b, w, t] = reference(l, text_of(prefix, b, w, t, include_prompt), **mine)
    return out
