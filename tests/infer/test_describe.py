"""Descriptions of different objects differ, and are the same in every process."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Stop, transforms
from decoding_jax.infer.describe import describe, digest
from decoding_jax.transforms import logit_bias


class Plain:
    """An object that is no pytree and no dataclass, and that refers to itself."""

    def __init__(self, value):
        self.value = value
        self.itself = self

    def __call__(self, logits, prefix):
        return logits * self.value


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


jax.tree_util.register_pytree_node(Slots, lambda s: ((s.value,), None), lambda _, x: Slots(*x))


def scaled_by(factor):
    return lambda logits, prefix: factor * logits


def vector(at, value=1.0):
    return np.zeros(5000, np.float32) + value * (np.arange(5000) == at)


PAIRS = [
    (lambda x: logit_bias(vector(x)), 2500, 2501),
    (lambda x: {"bias": jnp.asarray(vector(2500, x))}, 1.0, 1.0 + 2**-20),
    (lambda x: logit_bias({i: float(i == x) for i in range(2000)}), 1000, 1001),
    (lambda x: np.zeros(x), (100, 50), (50, 100)),
    (lambda x: np.zeros(100, x), "float32", "int32"),
    (lambda x: jnp.zeros(100, x), "bfloat16", "float16"),
    (lambda x: Stop(sequences=tuple((i, i % 7 + x) for i in range(2000))), 0, 1),
    (jax.random.key, 0, 1),
    (lambda x: np.array([None, x], object), "a", "b"),
    (Plain, 1, 2),
    (Slots, 1, 2),
    (lambda x: functools.partial(Plain(x).__call__, 0), 1, 2),
    (scaled_by, 1.0, 2.0),
    (lambda x: frozenset([x]), 1, 2),
    (lambda x: transforms.temperature(x), 0.5, 0.6),
    (lambda x: (x,), 1, 1.0),
]


@pytest.mark.parametrize(("make", "one", "other"), PAIRS)
def test_descriptions_differ_where_contents_do(make, one, other):
    for wrap in (lambda v: v, lambda v: functools.partial(decoding_jax.sample, transform=v)):
        assert describe(wrap(make(one))) == describe(wrap(make(one)))
        assert digest(wrap(make(one))) != digest(wrap(make(other)))
        assert "0x" not in describe(wrap(make(one)))
        assert len(describe(wrap(make(one)))) < 3000


def test_functions_without_a_unique_name_are_described_by_their_code():
    first, again, other = (lambda x: x + 1), (lambda x: x + 1), (lambda x: x + 2)
    assert describe(first).partition("(")[2] == describe(again).partition("(")[2]
    assert describe(first) != describe(other)
    assert describe(decoding_jax.greedy) == "decoding_jax.greedy"


def test_a_strategy_is_described_by_its_name_and_settings():
    strategy = functools.partial(decoding_jax.sample, num_samples=2)
    assert describe(strategy) == "decoding_jax.sample(num_samples=2)"


def test_another_model_is_another_job(table):
    model = table[0]
    changed = jax.tree.map(lambda x: x.at[(0,) * x.ndim].add(1e-6), model)
    assert digest(changed) != digest(model)
    assert digest(dataclasses.replace(model, max_positions=10)) != digest(model)
    assert digest(jax.tree.map(jnp.copy, model)) == digest(model)
