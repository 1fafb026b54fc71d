"""How time and memory of a decode grow with rows, prompt, new tokens, samples, words and beams.

A network of random weights decodes by ``greedy``, ``sample`` or ``beam_search``. One size grows and
the others stay. A step's time is the time of a decode less that of one that ends after its first
token, by the number of the other tokens; memory is what the compiled program needs beside weights
and prompt. Beside a step stands what reading its bytes once would take: the weights, and the keys
and values of the tokens that the texts have on average. The bandwidth is that of the smallest
measured case of each axis. Jobs translate held-out sentences, again and again, with the embedded
model, each in a process of its own.

    python -m experiments.benchmarks.growth --out docs/measured/growth.json
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding_jax
from decoding_jax import Stop
from decoding_jax.models import Llama, LlamaConfig
from decoding_jax.text import encode_batch
from experiments import drawing, held_out
from experiments.benchmarks.large_models import busyness
from experiments.benchmarks.timing import interleaved, quartiles
from experiments.results import add_rows, ledger_of

BASE = {"rows": 1, "prompt": 64, "new tokens": 32, "samples": 1, "vocabulary": 2048, "beams": 1}
AXES: dict[str, tuple[int, ...]] = {
    "rows": (1, 4, 16, 64, 256),
    "prompt": (64, 256, 1024, 4096, 8192),
    "new tokens": (32, 128, 512, 2048),
    "samples": (1, 4, 16, 64, 256),
    "vocabulary": (2048, 8192, 32768, 131072, 262144),
    "beams": (1, 4, 16, 64, 256),
}
LAYERS, HEADS, HEAD_DIM, MLP = 6, 8, 64, 1408
JOBS = (10, 1000, 100_000)


class Setting(NamedTuple):
    """One size that differs from ``BASE``, and its value."""

    axis: str
    value: int

    def name(self) -> str:
        return f"{self.axis} {self.value}"


def network(vocab_size: int) -> Llama:
    """A Llama of 19 million random weights beside the table of tokens."""
    return Llama.init(
        LlamaConfig(
            vocab_size=vocab_size,
            emb_dim=HEADS * HEAD_DIM,
            num_layers=LAYERS,
            num_heads=HEADS,
            num_kv_heads=HEADS,
            head_dim=HEAD_DIM,
            mlp_dim=MLP,
            max_positions=16384,
            logits_via_embedding=True,
        ),
        jax.random.key(0),
    )


def decode(model: Any, prompt: Any, stop: Stop, size: dict[str, int]) -> Any:
    """The texts of a setting."""
    length = {"max_new_tokens": size["new tokens"], "stop": stop}
    if size["beams"] > 1:
        options = {"beam_size": size["beams"], "num_return": 1, **length}
        return decoding_jax.beam_search(model, prompt, **options)
    key, samples = jax.random.key(0), size["samples"]
    return decoding_jax.sample(model, prompt, key, num_samples=samples, **length)


def bytes_of_a_step(model: Any, size: dict[str, int]) -> int:
    """The bytes of the weights, and of all keys and values that the texts have half way."""
    weights = sum(x.nbytes for x in jax.tree.leaves(model))
    own = size["samples"] * size["beams"] * size["new tokens"] // 2
    tokens = size["rows"] * (size["prompt"] + own)
    return weights + tokens * LAYERS * 2 * HEADS * HEAD_DIM * 4


def measure(setting: Setting, repeats: int) -> dict[str, Any]:
    """Seconds of the first token and of a step, and bytes, at one setting."""
    size = BASE | {setting.axis: setting.value}
    draw = np.random.default_rng(0)
    ids = draw.integers(3, BASE["vocabulary"], (size["rows"], size["prompt"])).tolist()
    model, prompt = encode_batch(network(size["vocabulary"]), ids, size["prompt"])
    many, one = (Stop(max_new_tokens=n) for n in (size["new tokens"], 1))
    program = jax.jit(partial(decode, size=size)).lower(model, prompt, many).compile()

    def run(stop: Stop) -> None:
        jax.block_until_ready(program(model, prompt, stop))

    runs: dict[str, Callable[[], Any]] = {"all": partial(run, many), "one": partial(run, one)}
    seconds = interleaved(runs, repeats)
    pairs = zip(seconds["all"], seconds["one"], strict=True)
    memory: Any = program.memory_analysis()
    return {
        "first_token": quartiles(seconds["one"]),
        "step": quartiles([(a - b) / (size["new tokens"] - 1) for a, b in pairs]),
        "bytes_of_a_step": bytes_of_a_step(model, size),
        "bytes_of_the_program": memory.temp_size_in_bytes + memory.output_size_in_bytes,
    }


def measure_job(num_inputs: int) -> dict[str, Any]:
    """Seconds, CPU seconds and the most memory of a greedy job with this number of inputs."""
    sentences = itertools.cycle(s.english for s in held_out.read())
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder, "inputs.txt")
        inputs.write_text("\n".join(itertools.islice(sentences, num_inputs)) + "\n", "utf-8")
        files = ["models/translation_en_fr.gin", "strategies/greedy.gin", "runs/infer.gin"]
        command = [sys.executable, "-m", "decoding_jax.infer"]
        command += [f"--gin_file={file}" for file in files]
        command += [f'--gin.INPUT="{inputs}"', f'--gin.OUTPUT_DIR="{folder}/out"']
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            raise RuntimeError(f"expected a job that ends with 0, got {status}: {command}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": 1024 * usage.ru_maxrss}


def floors(rows: dict[str, Any], axis: str) -> list[tuple[int, dict[str, Any], float]]:
    """Each measured value of an axis with its row, and the milliseconds of its bytes."""
    named = [(value, Setting(axis, value).name()) for value in AXES[axis]]
    found = [(value, rows[name]) for value, name in named if name in rows]
    if not found:
        return []
    first = found[0][1]
    ms_per_byte = 1e3 * first["step"][0] / first["bytes_of_a_step"]
    return [(value, row, row["bytes_of_a_step"] * ms_per_byte) for value, row in found]


def plot(ledger: dict[str, Any], path: Path) -> None:
    """A step's time over each size, beside that of its bytes."""
    figure, axes = drawing.panels(3, 2, height=7.5)
    for ax, axis in zip(axes, AXES, strict=True):
        found = floors(ledger["rows"], axis)
        values = [value for value, *_ in found]
        times = [[1e3 * s for s in row["step"]] for _, row, _ in found]
        drawing.intervals(ax, values, times, "decoding_jax", "-", label="a step")
        ax.plot(values, [x for *_, x in found], "--", color=drawing.GREY, label="its bytes, once")
        ax.set(xscale="log", yscale="log", xlabel=axis)
        ax.set_ylim(3, 600)
    for ax in axes[::2]:
        ax.set_ylabel("ms")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    drawing.save(figure, path)


def tables(ledger: dict[str, Any]) -> dict[str, str]:
    """The page's table, of the rows of a ledger."""
    lines = ["| what grows | to | first token, ms | a step, ms | over its bytes | memory, MB |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for axis in AXES:
        for value, row, floor in floors(ledger["rows"], axis):
            step = 1e3 * row["step"][0]
            lines += [
                f"| {axis} | {value:,} | {1e3 * row['first_token'][0]:.0f} | {step:.1f} "
                f"| {step / floor:.2f} | {row['bytes_of_the_program'] / 1e6:,.0f} |"
            ]
    jobs = ["| inputs of a job | CPU seconds | inputs a CPU second | most memory, MB |"]
    jobs += ["| --- | --- | --- | --- |"]
    for inputs in JOBS:
        if job := ledger["rows"].get(Setting("inputs", inputs).name()):
            jobs += [
                f"| {inputs:,} | {job['cpu_seconds']:,.0f} | {inputs / job['cpu_seconds']:,.0f} "
                f"| {job['bytes'] / 1e6:,.0f} |"
            ]
    return {"growth": "\n".join(lines), "jobs": "\n".join(jobs)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    axes = AXES | {"inputs": JOBS}
    parser.add_argument("--axes", nargs="+", choices=axes, default=list(axes))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="the JSON")
    args = parser.parse_args(argv)
    ledger = ledger_of(args.out)
    if "machine" not in ledger:
        ledger["machine"] = busyness()
    settings = [Setting(axis, value) for axis in args.axes for value in axes[axis]]

    def row(setting: Setting) -> dict[str, Any]:
        if setting.axis == "inputs":
            return measure_job(setting.value)
        return measure(setting, args.repeats)

    add_rows(ledger, settings, row, args.out)
    for table in tables(ledger).values():
        print(table, end="\n\n")


if __name__ == "__main__":
    main()
