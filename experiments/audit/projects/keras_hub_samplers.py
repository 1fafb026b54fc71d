"""KerasHub: its samplers, on the JAX backend, with a table for the ``next`` callable."""

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp
import keras_hub
import numpy as np
from harness import Case, draft_table, main, settings, table

NAMES = {"temperature": "temperature", "top_k": "k", "top_p": "p"}


def follows(rows: np.ndarray) -> Callable[..., tuple]:
    """A ``next`` that looks the logits up by the token before ``index``."""
    logits = jnp.asarray(rows)

    def step(prompt: Any, cache: Any, index: Any) -> tuple:
        return logits[prompt[:, index - 1]], None, cache

    return step


def run(sampler: Any, case: Case, samples: int, **options: Any) -> np.ndarray:
    """Decodes as many equal prompts as there are samples, or twice as many for a pair."""
    rows = 2 * samples if case["kind"] == "pair" else samples
    length = 3 if case["kind"] == "sequence" else 2
    prompt = jnp.zeros((rows, length), jnp.int32)
    known = jnp.arange(length)[None] < jnp.ones((rows, 1), jnp.int32)
    tokens = sampler(follows(table(case)), prompt, index=1, mask=known, **options)
    return np.asarray(tokens)[:, 1:].reshape(samples, -1)


def single(name: str) -> Callable[[Case, int], np.ndarray]:
    def sample(case: Case, samples: int) -> np.ndarray:
        given = {NAMES[key]: value for key, value in settings(case).items()}
        return run(getattr(keras_hub.samplers, name)(seed=case["seed"], **given), case, samples)

    return sample


def base_sampler(case: Case) -> Any:
    given = {NAMES[key]: value for key, value in settings(case).items()}
    if "k" in given:
        return keras_hub.samplers.TopKSampler(**given)
    return keras_hub.samplers.RandomSampler(**given)


def speculative(case: Case, samples: int) -> np.ndarray:
    """One prompt a call, because a batch advances by its smallest number of accepted tokens."""
    import jax
    import keras

    sampler = keras_hub.samplers.SpeculativeSampler(
        num_speculative_tokens=1, base_sampler=base_sampler(case), seed=case["seed"]
    )
    draft = follows(draft_table(case))
    length = 3 if case["kind"] == "sequence" else 2
    known = jnp.arange(length)[None] < 1

    def call(state: jax.Array) -> jax.Array:
        with keras.StatelessScope([(sampler.seed_generator.state, state)]):
            return sampler(
                follows(table(case)),
                jnp.zeros((1, length), jnp.int32),
                index=1,
                mask=known,
                draft_next=draft,
            )[0, 1:]

    seeds = np.random.default_rng(case["seed"]).integers(2**32, size=(samples, 2), dtype=np.uint32)
    return np.asarray(jax.jit(jax.vmap(call))(seeds))


SAMPLERS = {name: single(name) for name in ("RandomSampler", "TopKSampler", "TopPSampler")}
main({**SAMPLERS, "SpeculativeSampler": speculative})
