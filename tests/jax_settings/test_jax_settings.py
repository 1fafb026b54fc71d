"""Every strategy gives the same tokens under all settings of JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import every_strategy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from every_strategy import RULES, TRANSFORM, TRIE, network, strategies, table

from decoding_jax import codes
from decoding_jax.ops import random
from decoding_jax.ops.top_k import gumbel
from decoding_jax.registry import STRATEGIES

NAMES = list(strategies(table(), table(1)))
# With 64 bits enabled, `jnp.take_along_axis` of JAX before 0.10 computes int64 indices itself.
TAKES_WITH_64_BITS = jax.__version_info__ < (0, 10)


def operations(jaxpr: Any) -> Any:
    """All operations of a program, including those of its branches and loops."""
    for equation in jaxpr.eqns:
        yield equation
        if TAKES_WITH_64_BITS and equation.params.get("name") == "take_along_axis":
            continue
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: x is None):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from operations(inner)


def check_types(program: Any, products: bool = False) -> None:
    """Fails for arrays and floats of 64 bits, and for matrix products unless ``products``."""
    for equation in operations(program.jaxpr):
        # On a TPU, a matrix product rounds float32 to bfloat16 by default.
        assert products or equation.primitive.name != "dot_general", equation
        for out in equation.outvars:
            dtype = str(getattr(out.aval, "dtype", ""))
            # A scalar index that JAX makes of a Python integer may have 64 bits.
            assert dtype != "float64", equation
            assert dtype not in ("int64", "uint64") or out.aval.ndim == 0, equation


def test_every_strategy_is_included() -> None:
    assert {name.partition(",")[0] for name in NAMES} == set(STRATEGIES)


VARIANTS = ("speculative_sample, block", "speculative_sample, tree")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    # The variants of a strategy have a comma in their names.
    tiers.values(
        *tiers.KINDS,
        exhaustive=[n for n in NAMES if n not in tiers.KINDS and ("," not in n or n in VARIANTS)],
        release=[name for name in NAMES if "," in name and name not in VARIANTS],
    ),
)
def test_programs_are_of_32_bits_and_have_no_product(name: str) -> None:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        call = strategies(table(), table(1))[name]
        check_types(jax.make_jaxpr(lambda transform: call(transform)[:5])(TRANSFORM))


@pytest.mark.exhaustive
@pytest.mark.parametrize("transform", [RULES, TRIE], ids=["rules", "trie"])
def test_transforms_are_of_32_bits_and_have_no_product(transform: Any) -> None:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        for name in ("greedy", "speculative_sample, tree"):
            call = strategies(table(), table(1))[name]
            check_types(jax.make_jaxpr(lambda t, call=call: call(t)[:5])(transform))


@pytest.mark.release
@pytest.mark.parametrize(
    "name", ["t5", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("gpt2", "llama"))]
)
def test_programs_of_networks_are_of_32_bits(name: str) -> None:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        calls = strategies(network(name), network(name, 1))
        for call in (calls["sample"], calls["best_k_search"], calls["speculative_sample, tree"]):
            check_types(jax.make_jaxpr(lambda call=call: call()[:5])(), products=True)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("sample", "beam_search"), marks=pytest.mark.exhaustive, id="some"),
        pytest.param((), marks=pytest.mark.release, id="all"),
    ],
)
@pytest.mark.release
def test_tokens_are_the_same_with_64_bits_and_strict_promotion(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "results.npz"
    settings = {
        "JAX_ENABLE_X64": "1",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    other = subprocess.Popen(
        [sys.executable, every_strategy.__file__, str(path), *names],
        env={**os.environ, **settings, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
    )
    default = every_strategy.results(names)
    _, errors = other.communicate()
    assert other.returncode == 0, errors
    with np.load(path) as changed:
        assert set(changed) == set(default)
        for name, tokens in default.items():
            assert changed[name].dtype == tokens.dtype, name
            np.testing.assert_array_equal(changed[name], tokens, err_msg=name)


@pytest.mark.parametrize("points", codes.POINTS)
def test_points_are_the_same_under_both_layouts_of_random_bits(points: str) -> None:
    def drawn(partitionable: bool) -> Any:
        with jax.threefry_partitionable(partitionable):
            keys = random.row_keys(jax.random.key(2), 2)
            return codes.points(points, keys, 5), jnp.stack(
                [jax.random.key_data(key) for key in random.split(keys)]
            )

    for one, other in zip(drawn(True), drawn(False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_noise_is_the_same_whatever_the_settings() -> None:
    def noise(partitionable: bool, wide: bool) -> np.ndarray:
        with jax.threefry_partitionable(partitionable), jax.enable_x64(wide):
            return np.asarray(gumbel(jax.random.key(2), (3, 5)))

    want = noise(True, False)
    assert want.dtype == np.float32
    for settings in ((False, False), (True, True)):
        np.testing.assert_array_equal(noise(*settings), want)
