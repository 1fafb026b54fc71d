"""A row of the ledger: a strategy of a model, compiled for a mesh of a topology, and measured."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from typing import Any

import jax
from jax.sharding import Mesh

from decoding_jax import sharding
from decoding_jax.models import quantize
from decoding_jax.models.caches import LAYER_AXIS, Cache
from experiments.tpu_ledger import program, rewrites, topology, traffic
from experiments.tpu_ledger.cases import Case, placed
from experiments.tpu_ledger.models import is_read_at_a_step, model_of, share_of_experts

HBM_GB = {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32}
"""The memory of a chip, in 2**30 bytes."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a row is compiled for.

    Attributes:
      strategy: a name of ``cases.SETTINGS``.
      model: a name of ``models.MODELS``.
      topology: such as ``v5e:2x4``.
      mesh: the sizes of the axes ``data`` and ``model``.
      batch: the number of rows on the whole mesh.
      prompt_length: the length of prompts, or of a T5's inputs.
      max_new_tokens: the number of tokens that are decoded.
      weights: None for bfloat16, or the ``weights`` of ``load``.
    """

    strategy: str
    model: str
    topology: str
    mesh: tuple[int, int]
    batch: int
    prompt_length: int = 512
    max_new_tokens: int = 512
    weights: str | None = None

    def name(self) -> str:
        """One line that tells settings apart."""
        data, model = self.mesh
        length = f"{self.prompt_length}+{self.max_new_tokens}"
        return (
            f"{self.strategy} | {model_name(self.model, self.weights)} | {self.topology}"
            f" | {data}x{model}"
            f" | batch {self.batch} | {length}"
        )


def model_name(model: str, weights: str | None) -> str:
    """A model's name, with its weights where they are not of bfloat16."""
    return model if weights is None else f"{model}, {weights}"


def measure(setting: Setting) -> dict[str, Any]:
    """Compiles a setting, and returns what the compiler says of it, as JSON takes it.

    A program that does not fit the memory of a chip has an ``error`` and no figures.
    """
    model, weights = model_of(setting.model), setting.weights
    if weights is not None:
        model = jax.eval_shape(lambda m: quantize(m, weights), model)
    mesh = topology.mesh(setting.topology, setting.mesh)
    model = jax.eval_shape(lambda m: sharding.fit_model_axis(m, mesh), model)
    case = Case(
        setting.strategy, model, _draft(model), batch=setting.batch,
        prompt_length=setting.prompt_length, max_new_tokens=setting.max_new_tokens,
    )  # fmt: skip
    row: dict[str, Any] = {"setting": dataclasses.asdict(setting)}
    start = time.perf_counter(), time.process_time()
    try:
        compiled = topology.compile_for(case.lower(mesh), {})
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {**row, "error": str(error).split("\n", 1)[0][:300]}
    row["compile_s"] = round(time.perf_counter() - start[0], 1)
    row["compile_cpu_s"] = round(time.process_time() - start[1], 1)
    memory = compiled.memory_analysis()
    row["memory"] = {
        name: getattr(memory, f"{name}_size_in_bytes")
        for name in ("argument", "temp", "output", "alias", "generated_code")
    }
    parsed = program.parse(compiled.as_text() or "")
    return row | _step(parsed, case, mesh)


def _draft(model: Any) -> Any:
    """The first quarter of a model's layers."""
    config = model.config
    layers = getattr(config, "num_layers", None) or config.num_decoder_layers
    return jax.eval_shape(lambda m: m.early_exit(max(layers // 4, 1)), model)


def _step(parsed: program.Program, case: Case, mesh: Mesh) -> dict[str, Any]:
    of_chip = (getattr(case.model.config, "num_experts", None) or 0) / mesh.shape[sharding.MODEL]
    accesses = traffic.step(parsed, of_chip * _share_of_experts(case, mesh))
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for access in accesses:
        kind = access.instruction.opcode.removesuffix("-start")
        if kind in program.COLLECTIVES:
            axis = program.axis_of(access.instruction, mesh.shape)
            counts[f"{kind} over {axis}"] += access.times
            sizes[f"{kind} over {axis}"] += access.times * program.num_bytes(
                access.instruction.result
            )
    copies = {id(i) for i in rewrites.rewrites(parsed, _cache_shapes(case, mesh))}
    copied = [a for a in accesses if id(a.instruction) in copies and a.total]
    return {
        "step_bytes": sum(a.total for a in accesses),
        "floor_bytes": floor(case, mesh),
        "collectives": {k: {"count": n, "bytes": sizes[k]} for k, n in sorted(counts.items())},
        "cache_copies": sum(traffic.in_hbm(a.instruction.result) > 0 for a in copied),
        "largest": [
            [a.instruction.name, a.times, a.bytes, a.instruction.source()] for a in accesses[:12]
        ],
    }


def _share_of_experts(case: Case, mesh: Mesh) -> float:
    """The share of its experts that a chip reads at a step."""
    settings = case.keywords()
    lanes = settings.get("num_samples", settings.get("beam_size", 1))
    tokens = case.batch // mesh.shape[sharding.DATA] * lanes
    return share_of_experts(case.model.config, tokens) or 1.0


def _cache_shapes(case: Case, mesh: Mesh) -> set[rewrites.Shape]:
    """The shapes on a chip of all keys and values, of every layer and of all layers."""
    shapes = set()
    for cache in case.caches():
        for x in _keys_and_values(cache):
            local = list(x.shape)
            local[0] //= mesh.shape[sharding.DATA]
            local[-3] //= mesh.shape[sharding.MODEL]
            shapes.add(rewrites.shape_of("bf16", local))
            stacked = len(local) - 4 if len(local) > 4 else LAYER_AXIS
            shapes.add(rewrites.shape_of("bf16", local[:stacked] + local[stacked + 1 :]))
    return shapes


def _keys_and_values(cache: Cache) -> list[Any]:
    return [x for x in jax.tree.leaves(cache) if len(x.shape) >= 4]


def floor(case: Case, mesh: Mesh) -> int | None:
    """The bytes of the parameters that a step needs and of the whole cache, on one chip.

    Of experts, the share that is chosen counts.

    None for speculation, whose steps call two models a number of times that depends on the draft.
    """
    if case.entry.drafts:
        return None
    tied = case.model.config.logits_via_embedding
    total = 0
    for path, x in jax.tree_util.tree_leaves_with_path(placed(case.model, mesh)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if is_read_at_a_step(name, tied=tied):
            bits = jax.dtypes.itemsize_bits(x.dtype)
            of_it = _share_of_experts(case, mesh) if "_experts/" in name else 1
            total += round(of_it * math.prod(x.sharding.shard_shape(x.shape)) * bits / 8)
    chips = mesh.shape[sharding.DATA] * mesh.shape[sharding.MODEL]
    for cache in case.caches():
        total += (
            sum(math.prod(x.shape) * x.dtype.itemsize for x in _keys_and_values(cache)) // chips
        )
    return total
