"""How time and memory of a decode grow with rows, prompt, new tokens, samples, words and beams.

A network of random weights decodes by ``greedy``, ``sample`` or ``beam_search``. One size grows and
the others stay. A step's time is the time of a decode less that of one that ends after its first
token, by the number of the other tokens; memory is what the compiled program needs beside weights
and prompt. Beside a step stands what reading its bytes once would take: the weights, and the keys
and values of the tokens that the texts have on average. The bandwidth is that of the smallest case.

    python -m experiments.benchmarks.growth --out docs/measured/growth.json
"""

from __future__ import annotations

import argparse
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
from experiments import drawing
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


def floors(rows: dict[str, Any], axis: str) -> list[tuple[int, dict[str, Any], float]]:
    """Each value of an axis with its row, and the milliseconds of its bytes."""
    base = rows[Setting(axis, AXES[axis][0]).name()]
    rate = base["bytes_of_a_step"] / base["step"][0]
    found = [(value, rows.get(Setting(axis, value).name())) for value in AXES[axis]]
    return [(v, row, 1e3 * row["bytes_of_a_step"] / rate) for v, row in found if row]


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
    return {"growth": "\n".join(lines)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="the JSON")
    args = parser.parse_args(argv)
    ledger = ledger_of(args.out)
    if "machine" not in ledger:
        ledger["machine"] = busyness()
    settings = [Setting(axis, value) for axis in args.axes for value in AXES[axis]]
    add_rows(ledger, settings, partial(measure, repeats=args.repeats), args.out)
    print(tables(ledger)["growth"])


if __name__ == "__main__":
    main()
