"""Writes the ledger of GPU programs: a step as XLA compiles it for an H100, without a GPU.

    pip install --no-deps --target runs/cuda jax-cuda12-plugin==VERSION jax-cuda12-pjrt==VERSION \\
        nvidia-cuda-nvcc-cu12
    python -m experiments.gpu_ledger --tools runs/cuda --out docs/gpu_ledger.json
    python -m experiments.gpu_ledger --out docs/gpu_ledger.json --report docs/gpu.md

where VERSION is that of ``jaxlib``. Each setting is compiled with two and with four layers; a step
of the whole network follows from the difference. The compiler chooses tiles by its model of the
device, since it cannot time them. The file is written after each setting, and a run that was killed
continues.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from decoding_jax.models import Llama, quantize
from experiments import results
from experiments.benchmarks.accelerator.models import CONFIGS, token_bytes, weight_bytes
from experiments.tpu_ledger import program, traffic
from experiments.tpu_ledger.cases import Case, abstract

H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  device_memory_size: 84929347584 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
}
platform_name: "CUDA"
runtime_version { major: 12 minor: 8 }
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The device, as the compiler is told of it."""

BANDWIDTH = 3.0e12
"""The bytes a second that a copy reaches on it, of those read and those written."""
REACHED = 0.9
"""The share of it that a kernel is taken to reach; products of eight rows reached 0.8 to 0.97."""
LEAST_SECONDS = 1.5e-6
"""The time that the smallest kernel is taken to need; on the device it was 1.3 to 2 us."""
SHALLOW, DEEP = 2, 4
"""The numbers of layers that are compiled."""
NEW_TOKENS = 256
TABLE = "the programs"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a row is compiled for.

    Attributes:
      strategy: a name of ``experiments.tpu_ledger.cases.SETTINGS``.
      model: a name of ``experiments.benchmarks.accelerator.models.CONFIGS``.
      rows: the number of prompts.
      prompt_length: the length of each prompt.
      weights: ``bfloat16``, ``int8`` or ``int4``.
    """

    strategy: str
    model: str
    rows: int
    prompt_length: int = 128
    weights: str = "bfloat16"

    def name(self) -> str:
        """One line that tells settings apart."""
        return (
            f"{self.strategy} | {self.model} {self.weights} | {self.rows} rows"
            f" | {self.prompt_length}+{NEW_TOKENS}"
        )


def grid() -> Iterator[Setting]:
    """All settings, the most telling first."""
    for model in ("1B", "8B"):
        for rows in (8, 1, 64):
            yield Setting("greedy", model, rows)
        yield Setting("greedy", model, 8, prompt_length=4096)
        for weights in ("int8", "int4"):
            yield Setting("greedy", model, 1, weights=weights)
    for strategy in ("sample", "arithmetic_sample", "beam_search"):
        yield Setting(strategy, "1B", 8)


def measure(setting: Setting) -> dict[str, Any]:
    """Compiles a setting, and returns what the compiler says of a step, as JSON takes it."""
    shallow, deep = (_step(setting, layers) for layers in (SHALLOW, DEEP))
    layers = CONFIGS[setting.model].num_layers
    a_layer = {name: (deep[name] - shallow[name]) / (DEEP - SHALLOW) for name in deep}
    whole = {name: shallow[name] + (layers - SHALLOW) * a_layer[name] for name in deep}
    model = _model(setting, layers)
    tokens = setting.rows * (setting.prompt_length + NEW_TOKENS * _lanes(setting))
    floor = weight_bytes(model) + tokens * token_bytes(CONFIGS[setting.model])
    return {
        "setting": dataclasses.asdict(setting),
        "kernels_a_layer": a_layer["kernels"],
        "kernels_besides": shallow["kernels"] - SHALLOW * a_layer["kernels"],
        "step_bytes": whole["bytes"],
        "floor_bytes": floor,
        "predicted_seconds": whole["seconds"],
        "compile_cpu_s": round(deep["compile_cpu_s"], 1),
    }


def _lanes(setting: Setting) -> int:
    lanes = _case(setting, SHALLOW).keywords()
    return int(lanes.get("num_samples", lanes.get("beam_size", 1)))


def _model(setting: Setting, layers: int) -> Any:
    """The network of that many layers, of abstract arrays."""
    config = dataclasses.replace(
        CONFIGS[setting.model], num_layers=layers, max_positions=8192, attention="pallas"
    )
    model = abstract(lambda: Llama.init(config, jax.random.key(0)))
    if setting.weights != "bfloat16":
        model = jax.eval_shape(lambda m: quantize(m, setting.weights), model)
    return model


def _case(setting: Setting, layers: int) -> Case:
    return Case(
        setting.strategy, _model(setting, layers), batch=setting.rows,
        prompt_length=setting.prompt_length, max_new_tokens=NEW_TOKENS,
    )  # fmt: skip


def _step(setting: Setting, layers: int) -> dict[str, float]:
    """The kernels of a step, the bytes that they move, and the time that they are taken to need."""
    case = _case(setting, layers)
    function: Any = case.entry.function
    with _as_on_the_device() as place:
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), case.arguments()
        )
        start = time.process_time()
        compiled = function.lower(*arguments, **case.keywords()).compile()
    seconds = time.process_time() - start
    accesses = [a for a in traffic.step(program.parse(compiled.as_text() or "")) if a.bytes]
    return {
        "kernels": sum(a.times for a in accesses),
        "bytes": sum(a.total for a in accesses),
        "seconds": sum(
            a.times * max(a.bytes / (REACHED * BANDWIDTH), LEAST_SECONDS) for a in accesses
        ),
        "compile_cpu_s": seconds,
    }


@contextlib.contextmanager
def _as_on_the_device() -> Iterator[SingleDeviceSharding]:
    """Lets programs be compiled for the described device, and not be stored."""
    description = topologies.get_topology_desc(
        platform="cuda", target_config=H100, topology="1x1x1"
    )
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    try:
        with mock.patch("jax.default_backend", return_value="gpu"):
            yield SingleDeviceSharding(description.devices[0])
    finally:
        jax.config.update(name, before)


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("jax_plugins.xla_cuda12") is not None
    except ModuleNotFoundError:
        return False


def set_flags() -> None:
    """Tells the compiler, before it is loaded, where its tools are and that it cannot time."""
    found = importlib.util.find_spec("nvidia.cuda_nvcc")
    folders = list(found.submodule_search_locations or []) if found else []
    flags = ("--xla_gpu_autotune_level=0",)
    tools = (f"--xla_gpu_cuda_data_dir={folder}" for folder in folders[:1])
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *flags, *tools)).strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def table(ledger: dict[str, Any]) -> str:
    """The rows as a table."""
    lines = [
        "| strategy | model | rows | prompt | kernels a layer | besides | bytes over the floor"
        " | predicted step | of the floor |",
        "| --- " * 9 + "|",
    ]
    for name in sorted(ledger["rows"], key=[s.name() for s in grid()].index):
        row = ledger["rows"][name]
        s = row["setting"]
        weights = "" if s["weights"] == "bfloat16" else f", {s['weights']}"
        least = row["floor_bytes"] / BANDWIDTH
        cells = (
            s["strategy"], f"{s['model']}{weights}", s["rows"], f"{s['prompt_length']:,}",
            f"{row['kernels_a_layer']:g}", f"{row['kernels_besides']:g}",
            f"{row['step_bytes'] / row['floor_bytes']:.2f}",
            f"{row['predicted_seconds'] * 1e3:.2f} ms", f"{least / row['predicted_seconds']:.2f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/gpu_ledger.json"))
    parser.add_argument("--tools", type=Path, help="the folder with the compiler")
    parser.add_argument("--only", default="", help="a part of the lines of the settings to compile")
    parser.add_argument("--list", action="store_true", help="print the lines, compile nothing")
    parser.add_argument("--report", type=Path, help="the page whose table is written anew")
    args = parser.parse_args(argv)
    settings = [s for s in grid() if args.only in s.name()]
    if args.list:
        print("\n".join(s.name() for s in settings))
        return 0
    ledger = results.ledger_of(args.out)
    if args.report:
        results.write_tables(args.report, {TABLE: table(ledger)})
        return 0
    if args.tools:
        sys.path.append(str(args.tools))
    if not _is_installed():
        print("--tools: expected a folder with jax-cuda12-plugin, got none", file=sys.stderr)
        return 1
    set_flags()
    version = {"jax": metadata.version("jax")}
    results.add_rows(ledger, settings, lambda s: {**measure(s), **version}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
