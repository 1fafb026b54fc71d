"""Networks with weights of 8 and 4 bits compute what those weights stand for, in every form."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiers
from families import FIXTURES
from machine import need_devices
from networks import drawn

import decoding_jax
from decoding_jax import sharding
from decoding_jax.models import (
    Llama,
    LlamaConfig,
    QuantizedArray,
    layers,
    load_model,
    quantize,
    save_model,
    with_shared_prefix,
)
from decoding_jax.models.quantized import Rounding, quantize_array, scheme_of
from decoding_jax.models.stack import with_scanned_layers, with_separate_layers

FAMILIES = sorted(p.name for p in FIXTURES.iterdir() if (p / "config.json").exists())
TOKENS = np.array([[1, 2, 3], [4, 0, 0]], np.int32)
LENGTH = np.array([3, 1], np.int32)


@jax.jit
def run(model):
    """The logits of a prefill and of two tokens of two lanes after it."""
    if hasattr(model, "bind"):
        model = model.bind(TOKENS, LENGTH)
    first, cache = model.prefill(TOKENS, LENGTH, lanes=2, slots=2)
    tokens = jnp.array([[[5, 6], [7, 8]], [[9, 1], [2, 3]]], jnp.int32)
    return first.logits, model.extend(cache, tokens, 0)[0].logits


def is_quantized(x):
    return isinstance(x, QuantizedArray)


@functools.partial(jax.jit, static_argnums=1)
def floats(tree, dtype="float32"):
    """The tree with the floats that its integers stand for.

    Jitted, since each operation outside ``jit`` compiles a program of its own.
    """
    return jax.tree.map(
        lambda x: x.to_float(dtype) if is_quantized(x) else x, tree, is_leaf=is_quantized
    )


def widened(model):
    """The model of the floats that the weights of another one stand for."""
    return dataclasses.replace(model, params=floats(model.params))


matmul = jax.jit(layers.matmul, static_argnums=2)


def assert_same_arrays(model, other):
    assert jax.tree.structure(model) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(*(np.asarray(a).astype(np.float32) for a in (x, y)))


def llama(**changes):
    config = LlamaConfig(
        vocab_size=24, emb_dim=16, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=32,
        num_layers=2, max_positions=32, **changes,
    )  # fmt: skip
    return drawn(Llama, config)


DEFAULT = ("llama3", "gpt2", "t5")
# These have layers of their own; the others have those of a relative.
OWN = ("bart", "gemma3", "gemma4", "gpt_neox", "longt5", "switch", "t5gemma")


@pytest.mark.release
@pytest.mark.parametrize(
    ("family", "weights"),
    tiers.combinations(
        itertools.product(FAMILIES, ("int8", "int4-8")),
        default=[(f, "int8") for f in DEFAULT],
        covers=lambda case: {case[1], *{case[0]}.intersection(OWN)},
    ),
)
def test_a_family_computes_with_the_numbers_that_its_weights_stand_for(family, weights):
    model = load_model(FIXTURES / family, weights=weights)
    assert any(map(is_quantized, jax.tree.leaves(model, is_leaf=is_quantized)))
    for logits, expected in zip(run(model), run(widened(model)), strict=True):
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "dtype"),
    tiers.combinations(
        [("int8", "float32"), ("int4-8", "bfloat16"), ("int8", "bfloat16"), ("int4-8", "float32")]
    ),
)
def test_weights_are_rounded_alike_wherever_they_are_read(weights, dtype):
    directory = FIXTURES / "llama3"
    model = load_model(directory, dtype=dtype, weights=weights)
    assert_same_arrays(model, quantize(load_model(directory, dtype=dtype), weights))
    scanned = load_model(directory, dtype=dtype, weights=weights, scan_layers=True)
    assert_same_arrays(model, with_separate_layers(scanned))
    assert_same_arrays(scanned, with_scanned_layers(model))
    wide = load_model(directory, dtype=dtype, scan_layers=True)
    assert_same_arrays(scanned, quantize(wide, weights))


@pytest.mark.parametrize("family", tiers.values("t5", exhaustive=OWN))
def test_a_model_is_rounded_as_its_directory_is_read(family):
    directory = FIXTURES / family
    assert_same_arrays(
        quantize(load_model(directory), "int8"), load_model(directory, weights="int8")
    )


@pytest.mark.parametrize(
    ("weights", "scan_layers"),
    tiers.combinations([("int8", False), ("int4-2", True), ("int8", True), ("int4-2", False)]),
)
def test_on_a_mesh_each_device_has_its_piece(weights, scan_layers):
    need_devices(8)
    settings = {"weights": weights, "scan_layers": scan_layers}
    mesh = {"data": 2, "model": 4}
    on_mesh = load_model(FIXTURES / "llama3", mesh=mesh, **settings)
    alone = load_model(FIXTURES / "llama3", **settings)
    fitted = alone.for_model_axis(4)
    assert fitted.config == on_mesh.config
    assert_same_arrays(on_mesh, fitted)
    assert_same_arrays(on_mesh, sharding.shard(alone, sharding.as_mesh(mesh)))
    flat = jax.tree_util.tree_leaves_with_path(on_mesh.params)
    specs = {jax.tree_util.keystr(p, simple=True, separator="/"): x.sharding.spec for p, x in flat}
    layer = "layers" if scan_layers else "layers_0"
    more = (None,) if scan_layers else ()
    rows, columns = (*more, "model", None), (*more, None, "model")
    whole = (*more, None, None)
    assert tuple(specs[f"{layer}/mlp/down/kernel/values"]) == rows
    assert tuple(specs[f"{layer}/mlp/down/kernel/scale"]) == (whole if weights == "int8" else rows)
    assert tuple(specs[f"{layer}/mlp/up/kernel/scale"]) == columns
    assert tuple(specs["token_embedder/embedding/scale"]) == ("model", None)
    for logits, expected in zip(run(on_mesh), run(alone), strict=True):
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-5)


def test_a_mesh_that_divides_a_group_is_refused():
    need_devices(4)
    with pytest.raises(ValueError, match=r"mesh: expected a divisor of \d, .*/scale, got model=4"):
        load_model(FIXTURES / "llama3", mesh={"model": 4}, weights="int4-16")


@pytest.mark.parametrize("shape", [(24, 5), (24, 3, 5)])
@pytest.mark.parametrize(
    ("bits", "group", "steps"), [(8, None, 127), (8, 8, 127), (4, None, 8), (4, 16, 8)]
)
def test_rounding_is_to_the_nearest_of_its_steps(shape, bits, group, steps):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[:, 0] = 0.0
    q = quantize_array(x, Rounding(bits, group, 0), "float32")
    assert q.values.dtype == (np.int8 if bits == 8 else ml_dtypes.int4)
    groups = {None: 1, 8: 3, 16: 2}[group]  # 12 is the largest divisor of 24 up to 16
    assert q.scale.shape == (groups, *shape[1:])
    error = np.abs(np.asarray(floats(q)) - x)
    by_group = np.abs(x.reshape(groups, -1, *shape[1:])).max(1, keepdims=True)
    # With 4 bits, the largest on the other side of 0 may be cut by one step.
    bound = by_group / steps * (0.5001 if bits == 8 else 1.0001)
    assert (error.reshape(groups, -1, *shape[1:]) <= bound).all()
    assert (error[:, 0] == 0).all()
    assert_same_arrays(q, quantize_array(jnp.asarray(x), Rounding(bits, group, 0), "float32"))


def test_nan_stays_in_its_column():
    x = np.ones((4, 3), np.float32)
    x[2, 1] = np.nan
    q = quantize_array(x, Rounding(8, None, 0), "float32")
    y = matmul(np.ones((1, 4), np.float32), q, "float32")
    np.testing.assert_array_equal(np.isnan(y), [[False, True, False]])


@pytest.mark.parametrize("tokens", [1, 4], ids=["sums are scaled", "the kernel is scaled"])
def test_asymmetric_integers(tokens):
    q = QuantizedArray(
        np.array([[7, -8], [1, 2], [3, 4], [0, -1]], ml_dtypes.int4),
        np.array([[0.5, 2.0], [1.0, -1.0]], np.float32),
        np.array([[7, -8], [3, 0]], np.int8),
    )
    wide = np.array([[0, 0], [-3, 20], [0, -4], [-3, 1]], np.float32)
    np.testing.assert_array_equal(np.asarray(floats(q, "bfloat16")).astype(np.float32), wide)
    x = np.arange(4 * tokens, dtype=np.float32).reshape(1, tokens, 4)
    np.testing.assert_array_equal(matmul(x, q, "float32"), x @ wide)


@pytest.mark.exhaustive
def test_a_model_and_what_is_made_of_it():
    model = quantize(llama(), "int8")
    early = model.early_exit(1)
    assert len(run(early)) == 2
    assert_same_arrays(early, quantize(llama().early_exit(1), "int8"))
    shared = with_shared_prefix(model, [1, 2])
    prompt, length = np.array([[1, 2, 3]], np.int32), np.array([3], np.int32)
    logits = shared.prefill(prompt, length, lanes=1, slots=1)[0].logits
    expected = model.prefill(prompt, length, lanes=1, slots=1)[0].logits
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_refusals(tmp_path):
    model = quantize(llama(), "int8")
    with pytest.raises(ValueError, match="model: expected one with float weights, got one with"):
        save_model(model, tmp_path)
    with pytest.raises(ValueError, match="model: expected one with float weights, got one with"):
        quantize(model, "int4")
    with pytest.raises(ValueError, match="before it gets a shared prefix, got a SharedPrefixModel"):
        quantize(with_shared_prefix(llama(), [1]), "int8")
    for name in ("int2", "int4-0", "int8-64", 8, "INT8"):
        with pytest.raises(ValueError, match="weights: expected None, 'int8', 'int4'"):
            load_model(FIXTURES / "llama3", weights=name)


def test_scheme_of():
    assert scheme_of("int4").rounding("layers_0/mlp/up/kernel") == Rounding(4, 128, 0)
    assert scheme_of("int4").rounding("logits_dense/kernel") == Rounding(8, None, 0)
    assert scheme_of("int8").rounding("encoder/token_embedder/embedding") == Rounding(8, None, 1)
    for path in ("position_embedder/embedding", "final_norm/scale", "layers_0/mlp/up/bias"):
        assert scheme_of("int8").rounding(path) is None


@pytest.mark.exhaustive
def test_generate():
    model, tokenizer = decoding_jax.load("translation-en-fr-draft", weights="int8")
    expected, _ = decoding_jax.load("translation-en-fr-draft")
    texts = ["Good morning!", "Where is the station?"]
    rows = decoding_jax.generate(model, tokenizer, texts, strategy="greedy", max_new_tokens=8)
    assert len(rows) == 2
    assert all(rows)
    # The integers and their scales are a quarter of float32.
    size, wide = (sum(x.nbytes for x in jax.tree.leaves(m)) for m in (model, expected))
    assert size < 0.3 * wide
