"""The equation of every transform in float64; each call takes one logit vector and one text."""

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


def softmax(l):
    if l.max() == -INF:
        return np.zeros_like(l)
    e = np.exp(l - l.max())
    return e / e.sum()


def prefix_of_order(l, key, p, target):
    """Keeps tokens in ascending order of ``key``, then id, until their mass reaches the target."""
    out, mass = np.full(l.shape, -INF), 0.0
    for i in sorted((i for i in range(len(l)) if l[i] > -INF), key=lambda i: (key[i], i)):
        out[i] = l[i]
        mass += p[i]
        if mass >= target:
            break
    return out


def temperature(l, text, value):
    if value == 0:
        out = np.full(l.shape, -INF)
        if l.max() > -INF:
            out[np.argmax(l)] = 0
        return out
    return l / value


def top_k(l, text, k):
    return prefix_of_order(l, -l, np.ones(len(l)), k)


def top_p(l, text, p):
    return prefix_of_order(l, -l, softmax(l), p if p < 1 else INF)


def surprise(l):
    p = softmax(l)
    positive = p > 0
    surprises = -np.log(p, where=positive, out=np.full(l.shape, -INF))
    return surprises, -np.sum(p[positive] * np.log(p[positive]))


def typical(l, text, mass):
    s, h = surprise(l)
    return prefix_of_order(l, np.abs(s - h), softmax(l), mass if mass < 1 else INF)


def threshold(l, least):
    """Keeps tokens that reach ``least``, within the relative 4e-6 that the transforms state."""
    p = softmax(l)
    out = np.where(p >= least * (1 - 4e-6), l, -INF)
    out[np.argmax(l)] = l.max()
    return out


def min_p(l, text, p):
    return threshold(l, p * softmax(l).max())


def epsilon(l, text, epsilon):
    return threshold(l, epsilon)


def eta(l, text, epsilon):
    return threshold(l, min(epsilon, np.sqrt(epsilon) * np.exp(-surprise(l)[1])))


def repetition_penalty(l, text, penalty):
    out = l.copy()
    for i in set(text):
        out[i] = l[i] / penalty if l[i] > 0 else l[i] * penalty
    return out


def presence_penalty(l, text, penalty):
    return l - penalty * np.array([i in text for i in range(len(l))])


def frequency_penalty(l, text, penalty):
    return l - penalty * np.array([text.count(i) for i in range(len(l))])


def no_repeat_ngram(l, text, n):
    seen = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    if len(text) < n - 1:
        return l
    ending = tuple(text[len(text) - n + 1 :])
    return np.array([-INF if (*ending, i) in seen else x for i, x in enumerate(l)])


def banned_sequences(l, text, sequences):
    out = l.copy()
    for *beginning, last in sequences:
        start = len(text) - len(beginning)
        if start >= 0 and text[start:] == beginning:
            out[last] = -INF
    return out


def min_length(l, text, min_new_tokens, eos_ids):
    out = l.copy()
    if len(text) < min_new_tokens:
        out[[e for e in np.atleast_1d(eos_ids) if e >= 0]] = -INF
    return out


def only(l, token):
    return np.where(np.arange(len(l)) == token, 0.0, -INF)


def forced_first_token(l, text, token):
    return only(l, token) if not text and token >= 0 else l


def forced_last_token(l, text, token, max_new_tokens):
    return only(l, token) if len(text) == max_new_tokens - 1 and token >= 0 else l


def logit_bias(l, text, bias):
    return l + bias


def allowed_tokens(l, text, tokens):
    return np.array([x if i in tokens else -INF for i, x in enumerate(l)])
