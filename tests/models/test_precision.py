"""The precision of the networks' matrix products, as their programs ask a GPU's compiler for it."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from families import FIXTURES

from decoding_jax.models import layers
from decoding_jax.models.checkpoint import load_model

TOKENS, LENGTH = np.ones((2, 3), np.int32), np.array([3, 2], np.int32)
FAMILIES = tiers.values(
    *("t5_1_1", "llama3", "gpt2"), exhaustive=["marian", "t5gemma", "gpt_neox", "gemma2"]
)


@functools.cache
def model_of(family: str, dtype: str) -> Any:
    return load_model(FIXTURES / family, dtype=dtype)


def logits(model: Any) -> Any:
    """The sum of the logits of a prefill and of a step."""
    model = model.bind(TOKENS, LENGTH) if hasattr(model, "bind") else model
    first, cache = model.prefill(TOKENS, LENGTH, lanes=1, slots=4)
    step, _ = model.extend(cache, TOKENS[:, None, :1], jnp.int32(0))
    return first.logits.sum() + step.logits.sum()


def precisions(model: Any, program: Any = logits) -> set[str]:
    """The precisions of all products in the program for a GPU."""
    lowered = jax.jit(program).trace(model).lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r"dot_general.* precision = \[(\w+), (\w+)\]", lowered)
    assert len(found) == lowered.count("stablehlo.dot_general") > 0
    return {precision for pair in found for precision in pair}


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_is_multiplied_in_all_its_bits(family: str) -> None:
    model = model_of(family, "float32")
    assert precisions(model) == {"HIGHEST"}
    assert precisions(model, jax.grad(logits, allow_int=True)) == {"HIGHEST"}


def test_the_setting_of_jax_decides_where_there_is_one() -> None:
    model = model_of("llama3", "float32")
    with jax.default_matmul_precision("tensorfloat32"):
        assert precisions(model) == {"HIGH"}
    with jax.default_matmul_precision("default"):
        assert precisions(model) == {"DEFAULT"}


@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_bfloat16_is_multiplied_as_before(stored: str) -> None:
    model = model_of("llama3", "bfloat16")
    weights = jax.tree.map(lambda x: x.astype(stored), model)
    assert precisions(weights) == {"DEFAULT"}


def test_one_row_is_multiplied_as_eight():
    """What GPUs do with a single row changes it by rounding alone."""
    x = jax.random.normal(jax.random.key(0), (1, 1, 1, 32)).astype(jnp.bfloat16)
    kernel = jax.random.normal(jax.random.key(1), (32, 3, 5)).astype(jnp.bfloat16)
    multiply = functools.partial(layers.matmul, dtype="bfloat16")
    got, want = layers.as_several_rows(multiply, x, kernel), multiply(x, kernel)
    assert got.shape == (1, 1, 1, 3, 5)
    np.testing.assert_allclose(got, want, atol=1e-5)
