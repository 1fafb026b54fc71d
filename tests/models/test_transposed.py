"""Kernels that are stored with their inputs last compute, convert and are written as plain ones."""

import jax
import numpy as np
import pytest
import tiers
from families import FIXTURES
from machine import need_devices
from test_quantized import DEFAULT, OWN, assert_same_arrays, llama, run

import decoding_jax
from decoding_jax import sharding
from decoding_jax.models import load_model, quantize, save_model, transposed
from decoding_jax.models.stack import with_scanned_layers
from decoding_jax.models.transposed import TransposedKernel, plain


def turned(model):
    """The model with all of its kernels transposed."""
    return transposed.transposed(model, smallest=1)


def count(model):
    leaves = jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, TransposedKernel))
    return sum(isinstance(x, TransposedKernel) for x in leaves)


@pytest.mark.parametrize("family", tiers.values(*DEFAULT, exhaustive=OWN))
def test_a_family_computes_and_is_written_as_before(family, tmp_path):
    model = load_model(FIXTURES / family, dtype="float32")
    other = turned(model)
    assert count(other) > 2
    assert count(model) == 0
    np.testing.assert_allclose(run(other)[0], run(model)[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(run(other)[1], run(model)[1], rtol=2e-5, atol=2e-5)
    assert_same_arrays(plain(other), model)
    assert_same_arrays(quantize(other, "int8"), quantize(model, "int8"))
    save_model(model, tmp_path / "plain")
    save_model(other, tmp_path / "turned")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "plain" / file).read_bytes() == (tmp_path / "turned" / file).read_bytes()


def test_only_large_float32_kernels_on_no_mesh_are_transposed():
    model = llama()
    assert count(transposed.transposed(model)) == 0
    sizes = sorted(x.size for x in jax.tree.leaves(model.params) if x.ndim == 2)
    assert 0 < count(transposed.transposed(model, smallest=sizes[-1])) < count(turned(model))
    assert count(turned(llama(dtype="bfloat16"))) == 0
    assert count(turned(llama(scan_layers=True))) == 0
    assert_same_arrays(with_scanned_layers(turned(model)), with_scanned_layers(model))


def test_a_directory_is_read_so(tmp_path, monkeypatch):
    monkeypatch.setattr(transposed.transposed, "__defaults__", (1,))
    save_model(llama(), tmp_path)
    model = load_model(tmp_path)
    assert count(model) > 2
    prompt = decoding_jax.Prompt(np.array([[1, 2, 3]], np.int32), np.array([3], np.int32))
    ours, theirs = (decoding_jax.greedy(m, prompt, max_new_tokens=6) for m in (model, llama()))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)


@pytest.mark.exhaustive
@pytest.mark.parametrize("devices", [2, 4])
def test_on_a_mesh(devices):
    need_devices(devices)
    model, mesh = llama(), sharding.as_mesh({"model": devices})
    other = sharding.shard(turned(model), mesh)
    # Four devices repeat the two key-value heads, for which kernels become plain.
    assert (count(other) > 2) == (devices == 2)
    for logits, expected in zip(run(other), run(model), strict=True):
        np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)
