"""The log probs of best-k search on the three networks are those of the sequences as chains."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from test_networks import SOURCE, SOURCE_LENGTH, bound, network

import decoding_jax
from decoding_jax import Prompt, Stop, transforms

SEARCH = {"k": 3, "budget": 16, "num_return": 4, "max_new_tokens": 5, "gamma": 0.0, "branching": 4}


@jax.jit
def chain_log_probs(model, prompt, tokens, length):
    """The log probs, float32 ``[B, W]``, of sequences ``[B, W, L]``, each decoded as a chain."""
    first, cache = model.prefill(*prompt, lanes=tokens.shape[1], slots=tokens.shape[2])
    after, _ = model.extend(cache, tokens, 0)
    first = jnp.broadcast_to(first.logits, (*tokens.shape[:2], 1, first.logits.shape[-1]))
    logits = jnp.concatenate([first, after.logits[:, :, :-1]], axis=2)
    each = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]
    place = jnp.arange(tokens.shape[2])[None, None]
    return jnp.where(place < length[..., None], each, 0).sum(-1)


@pytest.mark.parametrize("name", tiers.values(exhaustive=["t5"], release=["gpt2", "llama"]))
def test_log_probabilities_are_those_of_a_chain(name: str) -> None:
    model = bound(network(name))
    if name == "t5":
        prompt = model.start_prompt()
    else:
        prompt = Prompt(jnp.asarray(SOURCE), jnp.asarray(SOURCE_LENGTH))
    output = decoding_jax.best_k_search(
        model,
        prompt,
        stop=Stop(eos_ids=(7, 9), min_new_tokens=2),
        decay=0.1,
        transform=transforms.presence_penalty(2.0),
        **SEARCH,
    )
    want = chain_log_probs(model, prompt, output.tokens, output.length)
    np.testing.assert_allclose(output.log_prob, want, rtol=1e-4)
    assert (output.info.expanded == 16).all()
    assert (output.info.slots_used == output.info.slots_held).all()
    assert len({tuple(t) for t in output.tokens.reshape(-1, 5).tolist()}) > 6
