"""Four ways to compute a mixture of experts: by blocks, a ragged product, all, or copied kernels.

A random layer, for so many tokens: ``here`` is ``models.experts``, which orders tokens by expert,
and on a CPU multiplies blocks of them; ``ragged`` is ``lax.ragged_dot``, which it has elsewhere;
``all`` computes every expert for every token, and sums those that are chosen; ``copied`` copies the
kernels of each token's experts. In turns, in one process; medians with the ends of the middle half.

    python -m experiments.benchmarks.run --out runs/benchmarks --only experts
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.models import LlamaConfig
from decoding_jax.models import experts as layer
from experiments.benchmarks.timing import interleaved, quartiles
from experiments.papers.results import table
from experiments.results import write_json

MOST_COPIED = 2**27
"""The number of weights that are copied at most."""
COLUMNS = {
    "here": "ordered, in blocks",
    "ragged": "ordered, `lax.ragged_dot`",
    "all": "all experts",
    "copied": "copied kernels",
}
"""The words of a page for each way."""


def chosen(params: Any, x: jax.Array, config: LlamaConfig) -> tuple[jax.Array, jax.Array]:
    """The weights and the numbers of each token's experts, ``[M, k]``."""
    scores = jax.nn.softmax(x @ params["router"]["kernel"])
    weight, expert = lax.top_k(scores, config.experts_per_token)
    return weight / weight.sum(-1, keepdims=True), expert


def ragged(params: Any, x: jax.Array, config: LlamaConfig) -> jax.Array:
    """The layer with ``lax.ragged_dot``."""
    with mock.patch.object(layer, "in_blocks", layer.ragged):
        found: Any = layer.Experts(config).apply({"params": params}, x)
    return found


def every(params: Any, x: jax.Array, config: LlamaConfig) -> jax.Array:
    """All experts of every token."""
    weight, expert = chosen(params, x, config)
    gate, up, down = (params[f"{name}_experts"]["kernel"] for name in ("gate", "up", "down"))
    y = jax.nn.silu(jnp.einsum("md,edf->emf", x, gate)) * jnp.einsum("md,edf->emf", x, up)
    of_each = jax.nn.one_hot(expert, gate.shape[0]) * weight[..., None]
    return jnp.einsum("emf,efd,mke->md", y, down, of_each)


def copied(params: Any, x: jax.Array, config: LlamaConfig) -> jax.Array:
    """The experts of each token, whose kernels are copied."""
    weight, expert = chosen(params, x, config)
    kernels = (params[f"{name}_experts"]["kernel"][expert] for name in ("gate", "up", "down"))
    gate, up, down = kernels
    y = jax.nn.silu(jnp.einsum("md,mkdf->mkf", x, gate)) * jnp.einsum("md,mkdf->mkf", x, up)
    return jnp.einsum("mkf,mkfd,mk->md", y, down, weight)


def blocked(way: Callable[..., Any], params: Any, x: jax.Array) -> object:
    """The layer, once its result is there."""
    return jax.block_until_ready(way(params, x))


def measure(
    out: Path,
    repeats: int = 5,
    counts: Sequence[int] = (1, 8, 64, 512),
    width: int = 1024,
    num_experts: int = 32,
) -> None:
    """Measures each number of tokens, and writes ``experts.json``."""
    shape: dict[str, Any] = {
        "vocab_size": 8,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 2,
        "num_layers": 1,
    }
    config = LlamaConfig(
        **shape,
        emb_dim=width,
        mlp_dim=width // 2,
        max_positions=8,
        num_experts=num_experts,
        experts_per_token=4,
    )
    network = layer.Experts(config)
    params = network.init(jax.random.key(0), jnp.zeros((1, width)))["params"]
    ways = {
        "here": lambda params, x: network.apply({"params": params}, x),
        "ragged": lambda params, x: ragged(params, x, config),
        "all": lambda params, x: every(params, x, config),
        "copied": lambda params, x: copied(params, x, config),
    }
    compiled = {name: jax.jit(way) for name, way in ways.items()}
    rows = []
    for count in counts:
        x = jax.random.normal(jax.random.key(count), (count, width))
        few = 4 * count * width * width // 2 <= MOST_COPIED
        names = [name for name in ways if few or name != "copied"]
        want = compiled["here"](params, x)
        for name in names:
            assert jnp.allclose(compiled[name](params, x), want, atol=1e-4), name
        runs: dict[str, Callable[[], object]] = {
            name: functools.partial(blocked, compiled[name], params, x) for name in names
        }
        seconds = interleaved(runs, repeats)
        rows.append({"tokens": count, **{name: quartiles(seconds[name]) for name in names}})
        print(f"{count} tokens: {rows[-1]}", flush=True)
    write_json(
        out / "experts.json",
        {"width": width, "experts": num_experts, "chosen": 4, "rows": rows},
    )


def markdown(found: Any) -> str:
    """The milliseconds of each way as a table, from what ``measure`` wrote."""
    rows = []
    for row in found["rows"]:
        ms = ([1000 * x for x in row[name]] if name in row else [] for name in COLUMNS)
        cells = ["{:,.1f} ({:,.1f} to {:,.1f})".format(*x) if x else "" for x in ms]
        rows.append([row["tokens"], *cells])
    return table(["tokens", *COLUMNS.values()], rows)
