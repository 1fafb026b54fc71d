"""Calls of decode functions on the small network, as T5X calls them, and scores of texts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from fake_network import FakeNetwork
from scipy.special import log_softmax

EOS = 1
LENGTH = 8
PROMPTS = np.zeros((3, LENGTH), np.int32)
PROMPTS[0, 1:4], PROMPTS[2, 1] = (5, 1, 3), 4


@functools.cache
def prefilled_cache(network):
    """The cache of the prompts, computed once for all tests."""
    return network.prefilled(PROMPTS, (PROMPTS != 0).sum(1))


def arguments(scanned=False, prefilled=False, sharpness=1.5):
    """The arguments with which T5X would call a decode function."""
    network = FakeNetwork(length=LENGTH, scanned=scanned, sharpness=sharpness)
    index = (PROMPTS != 0).sum(1)
    return {
        "inputs": jnp.asarray(PROMPTS),
        "cache": prefilled_cache(network) if prefilled else network.empty(len(PROMPTS)),
        "initial_index": jnp.asarray(index) if prefilled else None,
        "tokens_to_logits": network,
        "cache_offset": network.offset,
        "eos_id": EOS,
    }


def run(fn, given, **settings):
    static = {k: given[k] for k in ("tokens_to_logits", "cache_offset", "eos_id")}
    arrays = {k: v for k, v in given.items() if k not in static}
    fn = functools.partial(fn, **static, **settings)
    decodes, scores = jax.jit(lambda arrays: fn(**arrays))(arrays)
    assert decodes.dtype == jnp.int32
    assert scores.dtype == jnp.float32
    return np.asarray(decodes), np.asarray(scores)


def texts(decodes, row):
    """Yields each new text of a row, up to its end token or the length limit."""
    prompt = int((PROMPTS[row] != 0).sum())
    for decode in decodes[row]:
        assert decode[:prompt].tolist() == PROMPTS[row, 1 : prompt + 1].tolist()
        new = decode[prompt:].tolist()
        size = new.index(EOS) + 1 if EOS in new else len(new)
        assert not any(new[size:])
        yield new[:size]


def log_probs(network, row, text, temperature=1.0):
    """The log-probability of each token of a text after a row's prompt."""
    prompt = PROMPTS[row, : int((PROMPTS[row] != 0).sum()) + 1]
    logits = network.path_logits(np.concatenate([prompt, np.array(text[:-1], int)]))
    distributions = log_softmax(logits[len(prompt) - 1 :] / temperature, axis=-1)
    return distributions[np.arange(len(text)), text]


def beam_score(network, row, text, alpha):
    length = len(text) + (PROMPTS[row] != 0).sum()
    return log_probs(network, row, text).sum() / ((5 + length) / 6) ** alpha
