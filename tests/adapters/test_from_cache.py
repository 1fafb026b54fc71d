"""A cache of one's own decodes what the model behind it decodes, or refuses in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from adapted import (
    BEAMS,
    CHAINS,
    DRAFT,
    PROMPT,
    SAMPLERS,
    TABLE,
    TREES,
    VOCAB,
    append,
    assert_one_line,
    assert_same,
    from_cache,
    group_and_function,
    init,
    place,
    run,
)

import decoding_jax
from decoding_jax import adapters
from decoding_jax.testing import check_model

STEPS = {
    "appends": (append, {}),
    "positions": (place, {"positions": True}),
    "blocks": (place, {"positions": True, "blocks": True}),
}


def adapted(how, table=TABLE):
    step, settings = STEPS[how]
    return from_cache(step, table, **settings)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "how"),
    tiers.combinations(
        [
            (name, how)
            for how in STEPS
            for name in (*SAMPLERS, *BEAMS, *(() if how == "appends" else CHAINS))
        ],
        default=[("beam_search", "appends"), ("sample", "blocks")],
        covers=group_and_function,
    ),
)
def test_a_strategy_decodes_what_it_does_on_the_table(name, how):
    model, draft = (adapted(how, table) for table in (TABLE, DRAFT))
    assert_same(run(name, model, draft), run(name, TABLE, DRAFT))


@pytest.mark.release
@pytest.mark.parametrize(
    "how",
    [how if how == "blocks" else pytest.param(how, marks=pytest.mark.exhaustive) for how in STEPS],
)
def test_the_model_keeps_the_protocol_to_the_bit(how):
    names = set(check_model(adapted(how)))
    assert {"check_prefill", "check_select"} <= names
    assert not {"check_tree", "check_keep"} & names
    assert ({"check_ragged", "check_rewind"} <= names) == (how != "appends")


@pytest.mark.parametrize(("name", "how"), [(n, "blocks") for n in TREES] + [(CHAINS[0], "appends")])
def test_what_cannot_run_is_refused_in_one_line(name, how):
    with pytest.raises(ValueError, match=r"model: expected one with (ragged|tree)") as error:
        run(name, adapted(how), adapted(how))
    assert "\n" not in str(error.value)


def test_a_recurrent_state_is_a_cache():
    def start(size):
        return jnp.zeros(VOCAB)

    def step(weights, state, tokens):
        state = jnp.tanh(state @ weights + jax.nn.one_hot(tokens[0, 0], VOCAB))
        return state[None, None], state

    weights = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    model = adapters.from_cache(start, step, VOCAB, parameters=weights)
    output = jax.device_get(decoding_jax.greedy(model, PROMPT, max_new_tokens=4))
    for tokens, length, new in zip(*PROMPT, output.tokens[:, 0], strict=True):
        state = np.zeros(VOCAB, np.float32)
        path = [*tokens[:length], *new]
        for i, token in enumerate(path[:-1]):
            state = np.tanh(state @ weights + np.eye(VOCAB, dtype=np.float32)[token])
            if i >= length - 1:
                assert state.argmax() == path[i + 1]


@pytest.mark.release
def test_a_block_longer_than_the_cache_is_decoded_too():
    """Speculation drafts more tokens than there is room for."""
    model = adapted("blocks")
    prompt = decoding_jax.Prompt(PROMPT.tokens[:, :1], np.array([1, 1], np.int32))
    args = (prompt, jax.random.key(0))
    settings = {"num_draft_tokens": 7, "max_new_tokens": 3}
    got = decoding_jax.speculative_sample(model, TABLE, *args, **settings)
    assert_same(got, decoding_jax.speculative_sample(TABLE, TABLE, *args, **settings))


def wrong(step, start=init, **settings):
    model = adapters.from_cache(start, step, VOCAB, **settings)
    return lambda: decoding_jax.greedy(model, PROMPT, max_new_tokens=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adapters.from_cache(init, append, 5), "got one that does not take them"),
        (
            lambda: adapters.from_cache(init, lambda c, t: 0, 5, positions=True),
            "expected a function of (cache, tokens, position)",
        ),
        (
            lambda: adapters.from_cache(init, lambda c, t: 0, 5, blocks=True),
            "blocks: expected False, since the padding",
        ),
        (
            lambda: adapters.from_cache(None, append, 5),
            "init: expected a function of (size), got None",
        ),
        (
            wrong(lambda cache, tokens: jnp.zeros((1, 1, VOCAB))),
            "expected a pair (logits [1, T, V], cache)",
        ),
        (
            wrong(lambda cache, tokens: (jnp.zeros((1, VOCAB)), cache)),
            "step: expected floating logits [1, T, V], which is [1, 1, 5] here, got float32[1, 5]",
        ),
        (
            wrong(lambda cache, tokens: (jnp.zeros((1, 1, VOCAB)), cache["tokens"])),
            "step: expected it to return a cache of the structure, shapes and dtypes that",
        ),
        (
            wrong(lambda c, t: (jnp.zeros((1, 1, VOCAB)), {**c, "count": jnp.zeros(2)})),
            "step: expected it to return a cache of the structure, shapes and dtypes that it was "
            "given, got ['count'] float32[2], which was int32[]",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_argument(make, message):
    assert_one_line(make, message)
