"""The programs that GPUs run, lowered for CUDA on any machine: their size, and their waits.

The network has the sizes of Llama 3.2 1B in two layers. Its arrays are abstract, and nothing runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
import tiers
from jax.extend import core

from decoding_jax import (
    BestKSearch,
    Prompt,
    Sample,
    SpeculativeSample,
    Stop,
    registry,
    transforms,
)
from decoding_jax.loop.strategy import run
from decoding_jax.models import Llama
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.ops import gpu
from decoding_jax.testing import TableLM
from experiments.tpu_ledger.cases import SETTINGS, Case, abstract

CONFIG = LlamaConfig(
    vocab_size=128_256, emb_dim=2048, num_heads=32, num_kv_heads=8, head_dim=64, mlp_dim=8192,
    num_layers=2, max_positions=8192, dtype="bfloat16",
)  # fmt: skip


def llama() -> Any:
    return Llama.init(CONFIG, jax.random.key(0))


@functools.cache
def traced(name: str, transform: Any = None) -> Any:
    """A strategy's program for one row and 64 new tokens, not yet lowered."""
    draft = abstract(lambda: llama().early_exit(1))
    case = Case(name, abstract(llama), draft, batch=1, prompt_length=128, max_new_tokens=64)
    settings = case.keywords() if transform is None else case.keywords() | {"transform": transform}
    return jax.jit(functools.partial(case.entry.function, **settings)).trace(*case.arguments())


def inner(equation: Any) -> list[Any]:
    """The programs within an operation; of those that depend on the platform, the one for CUDA."""
    if platforms := equation.params.get("branches_platforms"):
        [index] = [i for i, names in enumerate(platforms) if names is None or "cuda" in names][:1]
        return [equation.params["branches"][index].jaxpr]
    if equation.primitive.name == "pallas_call":  # one kernel, whatever is in it
        return []
    values = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda x: hasattr(getattr(x, "jaxpr", x), "eqns")
    )
    found = [getattr(value, "jaxpr", value) for value in values]
    return [value for value in found if hasattr(value, "eqns")]


# Operations that end a fusion. So does whatever is not of float32: sums in a fixed order are.
ENDS = (
    *("optimization_barrier", "dot_general", "sort", "top_k", "gather", "scatter", "scatter-add"),
    *("dynamic_slice", "dynamic_update_slice", "cumsum", "argmax", "argmin", "concatenate"),
)
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


@dataclasses.dataclass(eq=False)
class Node:
    """An operation that can be fused with those that it reads; ``part`` is what a slice takes."""

    part: Any
    inputs: list[Node]


def fusions(program: Any, given: Sequence[Any]) -> tuple[list[Any], list[Node]]:
    """The nodes of a program's results, and all nodes that fusions end with, inside it too."""
    known: dict[Any, Any] = dict(zip(program.invars, given, strict=True))
    ends: list[Node] = []
    read = lambda atom: None if isinstance(atom, core.Literal) else known.get(atom)  # noqa: E731
    for equation in program.eqns:
        name, inputs = equation.primitive.name, [read(atom) for atom in equation.invars]
        if name in CALLS:
            results, found = fusions(inner(equation)[0], inputs)
            ends += found
        elif name in ENDS or inner(equation) or equation.outvars[0].aval.dtype != "float32":
            ends += [node for node in inputs if node]
            for part in inner(equation):
                last, found = fusions(part, [None] * len(part.invars))
                ends += [*found, *(node for node in last if node)]
            results = [None] * len(equation.outvars)
        else:
            part = equation.params["start_indices"] if name == "slice" else None
            node = Node(part, [node for node in inputs if node])
            results = [node] * len(equation.outvars)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in program.outvars], ends


def pieces(end: Node) -> int:
    """The number of pieces of arrays in a fusion: an operation counts for each slice of it."""
    seen, waiting = set(), [(end, ())]
    while waiting and len(seen) < 10_000:
        node, cuts = waiting.pop()
        if (node, cuts) not in seen:
            seen.add((node, cuts))
            below = cuts if node.part is None else (*cuts, node.part)
            waiting += [(read, below) for read in node.inputs]
    return len(seen)


NAMES = tiers.values(
    *("greedy", "sample, top-k and top-p", "best_k_search"),
    release=[
        *("arithmetic_sample", "beam_search", "contrastive_search", "constrained_beam_search"),
        *("conditional_sample", "smc_sample", "speculative_sample"),
        *("sample", "beam_sample", "best_first_search", "diverse_beam_search"),
        *("stochastic_beam_search", "metropolis_sample", "power_sample"),
    ],
)
WAITS = {
    # Whether more is in the frontier than may stay there; to drop it takes longer than the wait.
    "best_first_search": ["cond"],
    "best_k_search": ["cond"],
    # The texts that a step rejects, each as long as it was.
    "conditional_sample": ["while"],
    # The model's calls for the tokens of a draft, whose number may differ from block to block.
    "speculative_sample": ["while"],
}
"""The loops of unknown length and the branches in the step of each strategy, on a GPU."""


def test_every_strategy_is_included() -> None:
    assert {name.partition(",")[0] for name in SETTINGS} == set(registry.STRATEGIES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_programs_are_small(name: str) -> None:
    """The compiler's time grows with the number of operations, for most of its passes linearly."""
    lowered = traced(name).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("\n") < 30_000


@pytest.mark.parametrize("name", NAMES)
def test_no_fusion_reads_many_slices(name: str) -> None:
    """The analysis of a fusion's tiles takes the square of its pieces.

    A sum of 2,048 numbers in one fusion, as a tree of slices, has 16**3 pieces of each operand.
    """
    program = traced(name).jaxpr.jaxpr
    last, ends = fusions(program, [None] * len(program.invars))
    assert max(pieces(end) for end in {*ends, *filter(None, last)}) < 1_000


def waits(program: Any) -> list[list[Any]]:
    """A program's loops of unknown length and its branches: for each, those within it."""
    found: list[list[Any]] = []
    for equation in program.eqns:
        below = [wait for part in inner(equation) for wait in waits(part)]
        name = equation.primitive.name
        if name in ("while", "cond") and not equation.params.get("branches_platforms"):
            found.append([name, below])
        else:
            found += below
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_step_does_not_wait_for_the_host(name: str) -> None:
    """The host reads the condition of a branch or a loop, and starts no kernel before."""
    *_, (kind, step) = waits(traced(name).jaxpr.jaxpr)
    assert (kind, [kind for kind, _ in step]) == ("while", WAITS.get(name, []))


@pytest.mark.parametrize(
    "name",
    tiers.values(
        "greedy",
        release=["beam_search", "best_k_search", "contrastive_search", "speculative_sample"],
    ),
)
def test_a_constraint_adds_no_wait(name: str) -> None:
    """Its states are carried, so that no loop runs over the text."""
    made = transforms.Trie.from_sequences([(1, 2, 3), (1, 4)])
    *_, (kind, step) = waits(traced(name, transforms.prefix_allowed_tokens(made)).jaxpr.jaxpr)
    assert (kind, [kind for kind, _ in step]) == ("while", WAITS.get(name, []))


@pytest.mark.release
def test_the_branches_of_gpus_decode_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, key = TableLM.random(jax.random.key(0), 50), jax.random.key(1)
    prompt = Prompt(np.array([[1, 2], [3, 0]], np.int32), np.array([2, 1], np.int32))
    warped = transforms.chain(transforms.top_k(20), transforms.top_p(0.8))
    limits: Any = {"max_new_tokens": 6, "stop": Stop(eos_ids=(4,), min_new_tokens=2)}

    def decoded(model: Any, key: Any) -> Any:
        return (
            run(Sample(num_samples=4, transform=warped, **limits), model, prompt, key),
            run(SpeculativeSample(drafter=model, num_draft_tokens=2, **limits), model, prompt, key),
            run(BestKSearch(k=2, budget=12, **limits), model, prompt, None),
        )

    want = jax.jit(lambda *given: decoded(*given))(model, key)
    monkeypatch.setattr(gpu, "either", lambda on_gpu, elsewhere: on_gpu())
    found = jax.jit(lambda *given: decoded(*given))(model, key)
    jax.tree.map(np.testing.assert_array_equal, found, want)
