"""Contrastive search beside the same search in plain Python, on tables and networks."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from contrastive_reference import search
from networks import drawn

import decoding_jax
from decoding_jax import Prompt, Stop, adapters, transforms
from decoding_jax.models.checkpoint import load_model
from decoding_jax.models.gpt2 import GPT2, GPT2Config
from decoding_jax.models.llama import Llama, LlamaConfig
from decoding_jax.models.t5 import T5, T5Config
from decoding_jax.testing import TableLM

VOCAB, LENGTH = 7, 6
TABLE = TableLM.random(jax.random.key(0), VOCAB)
PROMPT = Prompt(np.array([[1, 2, 3, 2], [4, 0, 0, 0], [5, 6, 0, 0]], np.int32), np.array([4, 1, 2]))


def run(model=TABLE, prompt=PROMPT, **settings):
    settings = {"penalty_alpha": 0.6, "top_k": 3, "max_new_tokens": LENGTH, **settings}
    return jax.device_get(decoding_jax.contrastive_search(model, prompt, **settings))


@jax.jit
def whole(model, tokens, length):
    """Hidden states and logits after every token of a row alone."""
    output, _ = model.prefill(tokens, length, lanes=1, slots=1, with_hidden=True)
    return output.logits[0, 0, 0], output.hidden[0, 0]


def functions(model):
    """The functions of ``search``: each path is a prompt of its own."""

    def of(path):
        tokens = np.zeros((1, 4 + LENGTH), np.int32)
        tokens[0, : len(path)] = path
        return jax.device_get(whole(model, tokens, np.array([len(path)], np.int32)))

    return lambda path: of(path)[0], lambda path: of(path)[1][len(path) - 1]


@pytest.mark.parametrize(
    ("alpha", "top_k"),
    [
        (0.6, 3),
        pytest.param(0.3, 7, marks=pytest.mark.exhaustive),
        pytest.param(1.0, 2, marks=pytest.mark.exhaustive),
        (0.6, 20),  # more than there are tokens
    ],
)
def test_a_table_is_searched_as_the_paper_says(alpha, top_k):
    output = run(penalty_alpha=alpha, top_k=top_k, stop=Stop(eos_ids=(2,)))
    for row, length in enumerate(PROMPT.length):
        prompt = PROMPT.tokens[row, :length].tolist()
        want, gaps = search(
            *functions(TABLE), prompt, alpha=alpha, top_k=top_k, length=LENGTH, ends=(2,)
        )
        assert min(gaps) > 1e-5, "the case is a near-tie"
        assert output.tokens[row, 0, : output.length[row, 0]].tolist() == want
        assert output.finished[row, 0] == (want[-1] == 2)


def networks():
    gpt2 = GPT2Config(VOCAB, 8, num_heads=2, mlp_dim=8, num_layers=2, max_positions=32)
    yield GPT2, gpt2
    yield (
        Llama,
        LlamaConfig(
            VOCAB,
            8,
            num_heads=2,
            num_kv_heads=1,
            head_dim=4,
            mlp_dim=8,
            num_layers=2,
            max_positions=64,
        ),
    )
    yield T5, T5Config(VOCAB, 8, 2, 4, 8, 1, 1, ("gelu", "linear"), dtype="float32")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        pytest.param(
            *network,
            id=network[0].__name__,
            marks=() if network[0] is GPT2 else (pytest.mark.exhaustive,),
        )
        for network in networks()
    ],
)
def test_a_network_is_searched_as_the_paper_says(kind, config):
    model = drawn(kind, config, seed=1, spread=0.7)
    encoder = kind is T5
    bound = model.bind(*PROMPT) if encoder else model
    prompt = jax.device_get(bound.start_prompt()) if encoder else PROMPT
    output = run(bound, Prompt(*prompt))
    for row in range(3):
        inputs = PROMPT.tokens[row : row + 1], PROMPT.length[row : row + 1]
        single = model.bind(*inputs) if encoder else model
        path = prompt[0][row, : prompt[1][row]].tolist()
        want, gaps = search(*functions(single), path, alpha=0.6, top_k=3, length=LENGTH)
        near = [i for i, gap in enumerate(gaps) if gap < 1e-4]
        count = near[0] if near else LENGTH
        assert count >= 1
        assert output.tokens[row, 0, :count].tolist() == want[:count]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings", tiers.values({"penalty_alpha": 0.0}, exhaustive=[{"top_k": 1}])
)
def test_without_penalty_or_choice_it_is_greedy(settings):
    stop = Stop(eos_ids=(2,), min_new_tokens=2, max_new_tokens=[6, 5, 0])
    want = jax.device_get(decoding_jax.greedy(TABLE, PROMPT, max_new_tokens=LENGTH, stop=stop))
    got = run(stop=stop, **settings)
    for field in ("tokens", "length", "finished"):
        np.testing.assert_array_equal(getattr(got, field), getattr(want, field), field)
    np.testing.assert_allclose(got.log_prob, want.log_prob, 2e-6)


def test_a_transform_changes_the_candidates():
    transform = transforms.chain(transforms.temperature(0.5), transforms.repetition_penalty(1.5))
    output = run(transform=transform)

    def change(logits, path):
        logits = logits / 0.5
        seen = np.isin(np.arange(VOCAB), path)
        return np.where(seen, np.where(logits > 0, logits / 1.5, logits * 1.5), logits)

    for row, length in enumerate(PROMPT.length):
        prompt = PROMPT.tokens[row, :length].tolist()
        want, gaps = search(
            *functions(TABLE), prompt, alpha=0.6, top_k=3, length=LENGTH, change=change
        )
        assert min(gaps) > 1e-5, "the case is a near-tie"
        assert output.tokens[row, 0].tolist() == want


@pytest.mark.exhaustive
def test_banned_candidates_are_never_chosen_and_a_dead_end_ends():
    only = run(transform=transforms.allowed_tokens((3,)), top_k=5)
    assert (only.tokens == 3).all()
    none = run(transform=transforms.chain(transforms.allowed_tokens((3,)), ban_all), top_k=5)
    assert (none.length == 0).all()
    assert not none.finished.any()


def ban_all(logits, prefix):
    return jnp.full_like(logits, -jnp.inf)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: run(TABLE.lockstep()),
            "model: expected one with tree=True and keep, since the candidates of contrastive "
            "search are siblings, got a TableLM with tree=False",
        ),
        (
            lambda: run(adapters.from_logits(lambda t, n: jnp.zeros((t.shape[0], VOCAB)), VOCAB)),
            "model: expected hidden states from prefill, as adapters.from_logits(function, ",
        ),
        (
            lambda: run(dataclasses.replace(TABLE, max_positions=9)),
            "max_new_tokens: expected at most 5 after a prompt of 4, got 6: the model has 9 ",
        ),
    ],
)
def test_a_mistake_is_one_line(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


HERE = Path(__file__).parent
STORED = json.loads((HERE / "contrastive_search.json").read_text())


@functools.cache
def stored_network(family):
    return load_model(HERE.parent / "models" / "fixtures" / family, dtype="float32")


FOUND = {(case["family"], case["alpha"], case["top_k"]): case["tokens"] for case in STORED["cases"]}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "alpha", "top_k"),
    tiers.combinations(FOUND, default=[("gpt2", 0.6, 4)]),
)
def test_tokens_are_those_of_transformers_4(family, alpha, top_k):
    """``make_contrastive_fixture.py`` has stored them."""
    model = stored_network(family)
    prompts = STORED["prompts"]
    tokens = np.array([[*row, *[0] * (5 - len(row))] for row in prompts], np.int32)
    prompt = Prompt(tokens, np.array([len(row) for row in prompts], np.int32))
    if isinstance(model, T5):
        model = model.bind(*prompt)
        prompt = model.start_prompt()
    output = run(
        model,
        prompt,
        penalty_alpha=alpha,
        top_k=top_k,
        max_new_tokens=STORED["length"],
        stop=Stop(eos_ids=(STORED["eos"],)),
    )
    got = [row[0, : n[0]].tolist() for row, n in zip(output.tokens, output.length, strict=True)]
    assert got == FOUND[family, alpha, top_k]
