"""What crosses the chips of a TPU at every step, read from the programs of the TPU compiler.

libtpu compiles for a slice of eight chips that is only described. The networks are tiny: counts do
not depend on widths, and every kind of layer is there twice. The counts of each strategy are in
``tpu_programs.json``; run this file as a program to write them anew.
"""

import collections
import dataclasses
import functools
import json
import sys
from pathlib import Path

import jax
import pytest

from decoding_jax import registry
from decoding_jax.models import T5, Llama
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.t5 import T5Config
from experiments.tpu_ledger import program, topology
from experiments.tpu_ledger.cases import SETTINGS, Case, abstract
from experiments.tpu_ledger.rewrites import rewrites, shape_of

SHAPE = (2, 4)
OTHER_SHAPES = ((8, 1), (1, 8))
LAYERS = 2
COUNTS = Path(__file__).with_name("tpu_programs.json")
# Strategies that share the loop and the caches of one of the others.
RELEASE = (
    *("sample, top-k and top-p", "beam_sample", "diverse_beam_search", "constrained_beam_search"),
    *("arithmetic_sample", "stochastic_beam_search", "best_k_search", "best_first_search"),
    *("conditional_sample", "metropolis_sample", "power_sample", "smc_sample"),
    *("T5 greedy", "T5 beam_search"),
)


def llama(**settings):
    return Llama.init(
        LlamaConfig(
            vocab_size=256, emb_dim=192, num_heads=8, num_kv_heads=8, head_dim=32, mlp_dim=512,
            num_layers=LAYERS, max_positions=512, dtype="bfloat16", **settings,
        ),
        jax.random.key(0),
    )  # fmt: skip


def mixture():
    return llama(num_experts=8, experts_per_token=2)


def t5():
    return T5.init(
        T5Config(
            vocab_size=256, emb_dim=192, num_heads=8, head_dim=32, mlp_dim=512,
            num_encoder_layers=1, num_decoder_layers=LAYERS, mlp_activations=("gelu", "linear"),
            dtype="bfloat16",
        ),
        jax.random.key(0),
    )  # fmt: skip


@dataclasses.dataclass
class Network:
    """A network, and its all-reduces.

    Attributes:
      make: makes the network.
      per_layer: the outputs of attention and of the feed-forward part of a layer.
    """

    make: object
    per_layer: int

    def draft(self):
        return self.make().early_exit(1)


LLAMA, T_5 = Network(llama, 2), Network(t5, 3)
CASES = (
    {name: (name, LLAMA) for name in SETTINGS}
    | {f"T5 {name}": (name, T_5) for name in ("greedy", "beam_search")}
    | {"mixture greedy": ("greedy", Network(mixture, 2))}
)


@functools.cache
def case_of(name):
    strategy, network = CASES[name]
    # Sizes are such that weights and caches have shapes that no other array has.
    return Case(
        strategy, abstract(network.make), abstract(network.draft), batch=24, prompt_length=8,
        max_new_tokens=257, settings={"budget": 256} if "best" in strategy else {},
    )  # fmt: skip


@functools.cache
def compiled(name, shape=SHAPE):
    mesh = topology.mesh("v5e:2x4", shape)
    lowered = case_of(name).lower(mesh)
    return program.parse(topology.compile_for(lowered, topology.CHEAP).as_text())


def found(name, shape=SHAPE):
    return program.collectives(compiled(name, shape), {"data": shape[0], "model": shape[1]})


def counts(name):
    """The numbers of collectives by kind and axis, and of whole rewrites of keys or values.

    Where lanes of unscanned layers write at slots of their own, and attention reads slots in
    chunks, all slots of a layer are written anew (see ``models.caches``).
    """
    total = collections.Counter()
    for collective, number in found(name).items():
        total[f"{collective.kind} over {collective.axis}"] += number
    if copies := len(rewrites(compiled(name), cache_parts(name))):
        total["whole rewrites of keys or values"] = copies
    return dict(sorted(total.items()))


def tier(name, shape):
    if shape != SHAPE or name in RELEASE:
        return pytest.mark.release
    return () if name == "greedy" else pytest.mark.exhaustive


PAIRS = [
    pytest.param(name, shape, marks=tier(name, shape))
    for shape in (SHAPE, *OTHER_SHAPES)
    for name in CASES
]


@pytest.mark.release
def test_the_programs_of_every_strategy_are_counted():
    names = {name.split(",")[0] for name in SETTINGS}
    assert names == set(registry.STRATEGIES)
    assert {name.split(",")[0] for name in json.loads(COUNTS.read_text())} >= names


@pytest.mark.exhaustive
@pytest.mark.skipif(not topology.is_installed(), reason="libtpu is not installed (extra tpu)")
@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_what_travels_at_a_step(name, shape):
    """One test for each program, because compiling it takes nearly all of the time."""
    network = CASES[name][1]
    drafts = case_of(name).entry.drafts

    # The counts are those that are committed, or fewer.
    if shape == SHAPE:
        expected = json.loads(COUNTS.read_text())[name]
        assert {k: n for k, n in counts(name).items() if n > expected.get(k, 0)} == {}

    # Nothing but scalars crosses the axis of rows; the compiler may send several at once.
    assert [c for c in found(name, shape) if c.axis != "model" and c.largest > 4] == []

    # A call of a network takes its layers' all-reduces, one for the embedding and one all-gather
    # of the logits. A block of speculation calls the draft, of one layer, in two places.
    calls = [LAYERS, 1, 1] if drafts else [LAYERS]
    over_model = [(c, n) for c, n in found(name, shape).items() if c.axis == "model"]
    reduces = sum(n for c, n in over_model if "reduce" in c.kind)
    others = sum(n for c, n in over_model if "reduce" not in c.kind)
    assert reduces <= sum(network.per_layer * layers + 1 for layers in calls)
    assert others <= len(calls)

    # No weight is gathered, copied or converted whole, on all chips or on one.
    assert rewrites(compiled(name, shape), weights(name, shape)) == []


def split(array, axis, shape):
    return [n // shape[1] if i == axis else n for i, n in enumerate(array)]


def weights(name, shape):
    """The shapes of weights, whole and on one chip."""
    arrays = [x.shape for x in jax.tree.leaves(case_of(name).model) if len(x.shape) > 1]
    arrays += [split(a, axis, shape) for a in arrays for axis in range(len(a))]
    return {shape_of("bf16", a) for a in arrays}


def cache_parts(name):
    """The shapes of the caches' slots ``[B, W, H, S, d]`` on one chip."""
    slots = [x.shape for c in case_of(name).caches() for x in jax.tree.leaves(c.slots)]
    assert slots
    return {shape_of("bf16", (b // SHAPE[0], w, h // SHAPE[1], s, d)) for b, w, h, s, d in slots}


if __name__ == "__main__":
    names = sys.argv[1:] or list(CASES)
    old = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    new = {name: counts(name) for name in names}
    COUNTS.write_text(json.dumps({**old, **new}, indent=2) + "\n")
