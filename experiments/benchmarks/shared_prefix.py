"""A shared prefix beside whole prompts: time to the first token, of a step, and bytes of the cache.

A random Llama decodes greedily after 4,000 tokens that all rows share and 64 of each row's own.
With ``whole`` prompts, every row runs and stores all of them; ``shared`` rows run and store their
own. ``begin`` runs the shared tokens, once for all batches that follow. The first token takes a
call for one token; steps are measured from a cache on. All in one process, interleaved; medians,
and medians of the ratios of neighbouring runs.

    python -m experiments.benchmarks.shared_prefix --out runs/benchmarks
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.models import Llama, LlamaConfig, with_shared_prefix
from experiments.benchmarks.timing import interleaved, median_ratio
from experiments.results import write_json

OWN, STEPS = 64, 32
CONFIG = LlamaConfig(
    vocab_size=8192,
    emb_dim=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_dim=384,
    num_layers=2,
    max_positions=2**17,
)


def cache_bytes(model: Any, prompt: Prompt, slots: int) -> int:
    """The bytes of the cache of a call, and of the shared tokens' keys and values."""
    prefill = functools.partial(model.prefill, lanes=1, slots=slots)
    cache = jax.eval_shape(prefill, *prompt)[1]
    held = jax.tree.leaves((cache, getattr(model, "layers", ())))
    return sum(x.size * x.dtype.itemsize for x in held)


@jax.jit
def begin(model: Any, prompt: Prompt) -> tuple[Any, Any]:
    """The first tokens int32 ``[B, 1, 1]``, and the cache."""
    output, cache = model.prefill(*prompt, lanes=1, slots=STEPS)
    return output.logits.argmax(-1).astype(jnp.int32), cache


@jax.jit
def steps(model: Any, token: Any, cache: Any) -> Any:
    """The tokens int32 ``[B, STEPS]`` of ``STEPS`` greedy steps."""

    def step(state: tuple[Any, Any], start: Any) -> tuple[tuple[Any, Any], Any]:
        output, cache = model.extend(state[1], state[0], start)
        token = output.logits.argmax(-1).astype(jnp.int32)
        return (token, cache), token[:, 0, 0]

    return jax.lax.scan(step, (token, cache), jnp.arange(STEPS, dtype=jnp.int32))[1].T


def blocked(run: Callable[[], Any]) -> Callable[[], Any]:
    """The run, which then returns once its result is there."""
    return lambda: jax.block_until_ready(run())


def measure_rows(model: Any, rows: int, shared: int, repeats: int) -> dict[str, Any]:
    """The figures of batches of so many rows."""
    draw = np.random.default_rng(0)
    prefix = draw.integers(1, CONFIG.vocab_size, shared, np.int32)
    own = draw.integers(1, CONFIG.vocab_size, (rows, OWN), np.int32)
    tokens = np.concatenate([np.tile(prefix, (rows, 1)), own], 1)
    prompt = Prompt(jnp.asarray(tokens), jnp.full(rows, shared + OWN, jnp.int32))
    models = {"whole": model, "shared": with_shared_prefix(model, jnp.asarray(prefix))}
    begun = {name: begin(m, prompt) for name, m in models.items()}
    runs: dict[str, Callable[[], object]] = {
        "begin": lambda: jax.block_until_ready(with_shared_prefix(model, jnp.asarray(prefix)))
    }
    for name, m in models.items():
        first = functools.partial(decoding_jax.greedy, m, prompt, max_new_tokens=1)
        runs[f"{name} first"] = blocked(first)
        runs[f"{name} steps"] = blocked(functools.partial(steps, m, *begun[name]))
    seconds = interleaved(runs, repeats)
    for name in models:
        seconds[f"{name} step"] = [x / STEPS for x in seconds.pop(f"{name} steps")]
    seconds["first call"] = [
        x + y for x, y in zip(seconds["begin"], seconds["shared first"], strict=True)
    ]
    sizes = {name: cache_bytes(m, prompt, STEPS) for name, m in models.items()}
    equal = np.array_equal(*(steps(m, *begun[name]) for name, m in models.items()))
    return {
        "rows": rows,
        "shared": shared,
        "own": OWN,
        "repeats": repeats,
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "first token": median_ratio(seconds, "whole first", "shared first"),
        "first token, with begin": median_ratio(seconds, "whole first", "first call"),
        "step": median_ratio(seconds, "whole step", "shared step"),
        "bytes": sizes,
        "same tokens": bool(equal),
    }


def measure(
    out: Path, repeats: int = 5, sizes: tuple[int, ...] = (1, 4, 16), shared: int = 4000
) -> None:
    """Measures batches of all sizes, prints a table, and writes ``shared_prefix.json``."""
    out.mkdir(parents=True, exist_ok=True)
    params = jax.jit(lambda key: Llama.init(CONFIG, key).params)(jax.random.key(0))
    model = Llama(params, CONFIG)
    found = [measure_rows(model, rows, shared, repeats) for rows in tqdm(sizes)]
    print("rows   first token: whole, shared, times (with begin)   step: times   cache: MB, times")
    for r in found:
        seconds, held = r["seconds"], r["bytes"]
        print(
            f"{r['rows']:4d}   {seconds['whole first']:6.2f} s  {seconds['shared first']:6.3f} s"
            f"  {r['first token']:6.1f} ({r['first token, with begin']:.1f})"
            f"   {seconds['whole step'] * 1e3:6.1f} ms  {seconds['shared step'] * 1e3:6.1f} ms"
            f"  {r['step']:5.2f}   {held['whole'] / 1e6:6.1f}  {held['shared'] / 1e6:6.1f}"
            f"  {held['whole'] / held['shared']:5.1f}   {'same' if r['same tokens'] else 'other'}"
            " tokens"
        )
    write_json(out / "shared_prefix.json", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--shared", type=int, default=4000, help="the number of shared tokens")
    args = parser.parse_args()
    measure(args.out, args.repeats, tuple(args.sizes), args.shared)


if __name__ == "__main__":
    main()
