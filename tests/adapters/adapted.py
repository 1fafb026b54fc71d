"""Tables behind the adapters, and every strategy on a model."""

import examples
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Constraints, Prompt, Stop, adapters, transforms
from decoding_jax.testing import TableLM

VOCAB, LENGTH = 5, 5
TABLE = TableLM.random(jax.random.key(0), VOCAB)
DRAFT = TableLM.random(jax.random.key(1), VOCAB)
PROMPT = Prompt(np.array([[1, 2, 3, 2], [4, 0, 0, 0]], np.int32), np.array([4, 1], np.int32))
STOP = Stop(eos_ids=(4,), sequences=((2, 2), (0, 3)), min_new_tokens=2, max_new_tokens=[5, 4])
TRANSFORM = transforms.chain(transforms.temperature(0.8), transforms.repetition_penalty(1.2))


def next_token(table, tokens, length):
    """The logits ``[B, V]`` after each row."""
    output, _ = table.prefill(tokens, length, lanes=1, slots=0)
    return output.logits[:, 0, 0]


def every_token(table, tokens, length):
    """The logits ``[B, P, V]`` after every token."""
    ends = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.int32)
    after = lambda end: next_token(table, tokens, jnp.full_like(length, end))  # noqa: E731
    return jnp.moveaxis(jax.vmap(after)(ends), 0, 1)


def with_states(table, tokens, length):
    """The logits ``[B, V]`` after each row, and the hidden states ``[B, P, D]`` of its tokens."""
    output, _ = table.prefill(tokens, length, lanes=1, slots=0, with_hidden=True)
    return output.logits[:, 0, 0], output.hidden[:, 0]


def init(size):
    """An empty cache: the tokens themselves, and how many there are."""
    return {"tokens": jnp.zeros((1, size), jnp.int32), "count": jnp.int32(0)}


def append(table, cache, tokens):
    """Appends one token where the cache says that it ends."""
    held = jax.lax.dynamic_update_slice(cache["tokens"], tokens, (0, cache["count"]))
    count = cache["count"] + 1
    logits = next_token(table, held, count[None])
    return logits[:, None], {"tokens": held, "count": count}


def place(table, cache, tokens, position):
    """Writes tokens at their positions."""
    held = jax.lax.dynamic_update_slice(cache["tokens"], tokens, (0, position[0, 0]))
    logits = every_token(table, held, jnp.zeros(1, jnp.int32))
    return jnp.take_along_axis(logits, position[..., None], 1), {**cache, "tokens": held}


def from_logits(function, table=TABLE, **settings):
    return adapters.from_logits(function, VOCAB, parameters=table, **settings)


def from_cache(step, table=TABLE, **settings):
    return adapters.from_cache(init, step, VOCAB, parameters=table, **settings)


SAMPLERS = ("greedy", "sample", "arithmetic_sample")
BEAMS = (
    "beam_search",
    "beam_sample",
    "constrained_beam_search",
    "diverse_beam_search",
    "stochastic_beam_search",
)
CHAINS = ("speculative_sample", "speculative_sample, block", "speculative_sample, greedy")
TREES = ("best_first_search", "best_k_search", "speculative_sample, two drafts")


def group_and_function(case):
    """The group of a strategy, and the model's function: what ``.ci/run`` takes at least once."""
    name, function = case
    return [next(g for g in (SAMPLERS, BEAMS, CHAINS, TREES) if name in g), function]


def run(name, model, draft, **changes):
    """The output of a strategy on ``PROMPT``, on the host."""
    key = jax.random.key(7)
    options = {
        "sample": {"num_samples": 3},
        "arithmetic_sample": {"num_samples": 3},
        "beam_search": {"beam_size": 3, "length_penalty": 0.6},
        "beam_sample": {"beam_size": 2},
        "constrained_beam_search": {"constraints": Constraints(((2, 0),)), "beam_size": 3},
        "diverse_beam_search": {"beam_size": 4, "num_groups": 2},
        "stochastic_beam_search": {"beam_size": 3},
        "best_first_search": {"budget": 9},
        "best_k_search": {"k": 2, "budget": 12},
        "contrastive_search": {"penalty_alpha": 0.6, "top_k": 3},
        "speculative_sample": {"num_draft_tokens": 3, "num_samples": 2},
        "speculative_sample, block": {"num_draft_tokens": 7, "verifier": "block"},
        "speculative_sample, greedy": {"num_draft_tokens": 2, "verifier": "greedy"},
        "speculative_sample, two drafts": {"num_draft_tokens": 2, "num_drafts": 2},
    }.get(name) or examples.STRATEGIES[name.split(",")[0]]
    strategy = decoding_jax.registry.STRATEGIES[name.split(",")[0]]
    args = [*([draft] if strategy.drafts else []), PROMPT, *([key] if strategy.draws else [])]
    settings = {"max_new_tokens": LENGTH, "stop": STOP, "transform": TRANSFORM, **options}
    return jax.device_get(strategy.function(model, *args, **settings, **changes))


def assert_same(got, want):
    """Two outputs have the same tokens to the bit, and log-probabilities to rounding."""
    for field in ("tokens", "length", "finished"):
        np.testing.assert_array_equal(getattr(got, field), getattr(want, field), field)
    for field in ("log_prob", "score"):
        np.testing.assert_allclose(getattr(got, field), getattr(want, field), 2e-6, err_msg=field)


def assert_one_line(make, message):
    """Asserts that a call raises one line with this message."""
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
