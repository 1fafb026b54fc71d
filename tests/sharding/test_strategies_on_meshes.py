"""Every strategy gives the same tokens on a mesh as on one device."""

import functools

import examples
import jax
import numpy as np
import pytest
import tiers
from jax.sharding import AxisType

import decoding_jax as dj
from decoding_jax import Constraints, Prompt, Stop, models, sharding, strategies, transforms
from decoding_jax.models import GPT2, T5, Llama
from decoding_jax.models.gpt2 import GPT2Config
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.t5 import T5Config
from decoding_jax.testing import TableLM
from experiments.tpu_ledger.program import collectives, parse

MESHES = [(2, 4), (8, 1), (4, 2), (1, 8)]
LENGTH = 6
# Four rows of several lengths, which the axis ``data`` of 8 devices does not divide.
PROMPT = Prompt(
    np.array([[5, 6, 7], [8, 0, 0], [9, 10, 0], [11, 3, 4]], np.int32),
    np.array([3, 1, 2, 3], np.int32),
)
WARPED = transforms.chain(transforms.temperature(0.9), transforms.top_k(20), transforms.top_p(0.9))
STOP = Stop(eos_ids=(1, 2), sequences=((3, 4),), max_new_tokens=np.array([6, 5, 6, 4]))

STRATEGIES = {
    **examples.STRATEGIES,
    "greedy": {"transform": transforms.repetition_penalty(1.2)},
    "sample": {"num_samples": 2, "transform": WARPED},
    "arithmetic_sample": {"num_samples": 3},
    "beam_search": {"beam_size": 3},
    "beam_sample": {"beam_size": 2},
    "constrained_beam_search": {"beam_size": 3, "constraints": Constraints(phrases=((7, 8),))},
    "contrastive_search": {"penalty_alpha": 0.6, "top_k": 3},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2, "diversity_penalty": 0.5},
    "stochastic_beam_search": {"beam_size": 3},
    "best_first_search": {"num_return": 2, "budget": 24},
    "best_k_search": {"num_return": 2, "budget": 24, "k": 3},
    "speculative_sample": {"num_samples": 2, "num_draft_tokens": 2},
}


def llama():
    config = LlamaConfig(
        vocab_size=64, emb_dim=16, num_heads=8, num_kv_heads=2, head_dim=4, mlp_dim=32,
        num_layers=2, max_positions=32,
    )  # fmt: skip
    return Llama.init(config, jax.random.key(0))


def gpt2():
    config = GPT2Config(vocab_size=64, emb_dim=32, num_heads=8, mlp_dim=32, num_layers=2)
    return GPT2.init(config, jax.random.key(1))


def t5():
    config = T5Config(
        vocab_size=64, emb_dim=16, num_heads=8, head_dim=4, mlp_dim=32, num_encoder_layers=1,
        num_decoder_layers=2, mlp_activations=("gelu", "linear"),
    )  # fmt: skip
    return T5.init(config, jax.random.key(2))


def table():
    return TableLM.random(jax.random.key(3), 12)


def combined():
    """A product of a guided model and of its first layer, with numbers for each row."""
    guided = models.guided(llama(), [1.5, 0.5, 2.0, 1.0], [[5, 6], [7], [8, 9, 10], [11]])
    return models.product([guided, llama().early_exit(1)], [[0.7, 0.5]] * 3 + [[1.0, 0.0]])


MODELS = {"llama": llama, "gpt2": gpt2, "t5": t5, "table": table, "combined": combined}


def decode(name, model, draft=None):
    """The tokens of a strategy."""
    if isinstance(model, T5):
        model, draft = (m.bind(*PROMPT) if isinstance(m, T5) else m for m in (model, draft))
    takes = dj.registry.STRATEGIES[name]
    arguments = (model, draft) if takes.drafts else (model,)
    keys = (jax.random.key(7),) if takes.draws else ()
    settings = {"stop": STOP, "max_new_tokens": LENGTH, **STRATEGIES[name]}
    output = getattr(dj, name)(*arguments, PROMPT, *keys, **settings)
    return jax.device_get((output.tokens, output.length, output.log_prob))


@functools.cache
def on_one_device(name, model):
    full = MODELS[model]()
    return decode(name, full, _draft(full))


def _draft(model):
    if isinstance(model, TableLM):
        return TableLM.random(jax.random.key(4), 12)
    return model.early_exit(1) if hasattr(model, "early_exit") else None


def check(name, kind, shape):
    mesh = jax.make_mesh(shape, ("data", "model"))
    model = MODELS[kind]()
    rules = {"*": jax.P()} if kind == "table" else None
    model, draft = (sharding.shard(m, mesh, rules) for m in (model, _draft(model)))
    with jax.set_mesh(mesh):
        tokens, length, log_prob = decode(name, model, draft)
    expected = on_one_device(name, kind)
    np.testing.assert_array_equal(tokens, expected[0])
    np.testing.assert_array_equal(length, expected[1])
    np.testing.assert_allclose(log_prob, expected[2], atol=3e-5)


@pytest.mark.exhaustive
def test_a_strategy_on_a_mesh():
    check("beam_search", "llama", (2, 4))


def tier(i, j):
    """The gate takes every second strategy on one mesh, in turn."""
    return pytest.mark.exhaustive if i % 2 and (i // 2) % len(MESHES) == j else pytest.mark.release


PAIRS = [
    pytest.param(name, shape, marks=tier(i, j))
    for i, name in enumerate(STRATEGIES)
    for j, shape in enumerate(MESHES)
]


@pytest.mark.release
@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_every_strategy_on_a_mesh(name, shape):
    check(name, "llama", shape)


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "kind"),
    tiers.combinations(
        [
            ("sample", "gpt2"),
            ("beam_search", "t5"),
            ("speculative_sample", "table"),
            ("speculative_sample", "t5"),
            ("beam_search", "table"),
        ]
    ),
)
def test_every_family_on_a_mesh(name, kind):
    check(name, kind, (2, 4))


@pytest.mark.release
def test_a_model_made_of_models_on_a_mesh():
    check("beam_sample", "combined", (2, 4))


@pytest.mark.exhaustive
def test_a_mesh_with_automatic_axes_and_none_in_context():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    for place in (mesh, jax.make_mesh((2, 4), ("data", "model"))):
        output = dj.greedy(sharding.shard(llama(), place), PROMPT, max_new_tokens=3)
        expected = dj.greedy(llama(), PROMPT, max_new_tokens=3)
        np.testing.assert_array_equal(jax.device_get(output.tokens), expected.tokens)
        assert output.tokens.sharding.mesh == place


@pytest.mark.release
def test_inside_of_a_jit_with_explicit_axes():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    model = sharding.shard(llama(), mesh)

    @jax.jit
    def lengths(model):
        for greedy in (dj.greedy, strategies.greedy):
            output = greedy(model, PROMPT, max_new_tokens=3)
        return output.length + 1

    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.device_get(lengths(model)), np.full((4, 1), 4))


@pytest.mark.release
def test_a_stream_on_a_mesh():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    *_, expected = dj.loop.stream(dj.greedy, llama(), PROMPT, max_new_tokens=3)
    model = sharding.shard(llama(), mesh)
    with jax.set_mesh(mesh):
        *_, output = dj.loop.stream(dj.greedy, model, PROMPT, max_new_tokens=3)
    np.testing.assert_array_equal(jax.device_get(output.tokens), expected.tokens)


@pytest.mark.release
def test_rows_on_a_mesh_are_never_gathered():
    """On a CPU as on a TPU, nothing but scalars crosses the axis of rows."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows = jax.NamedSharding(mesh, jax.P("data"))
    with jax.set_mesh(mesh):
        model = sharding.shard(llama(), mesh)
        prompt = jax.device_put(PROMPT, rows)
        text = (
            dj.beam_search.lower(model, prompt, max_new_tokens=4, beam_size=2).compile().as_text()
        )
    found = collectives(parse(text), {"data": 4, "model": 2})
    logits = 1 * 2 * 64 * 4  # one row of two hypotheses and 64 tokens, in bytes
    gathered = {c.bytes: count for c, count in found.items() if c.kind == "all-gather"}
    assert gathered == {logits: 1}
    assert all(c.axis == "model" or c.bytes <= 4 for c in found)
