"""Speculative decoding of the embedded pair: K from 1 to 8, beside plain decoding and theory.

The target translates held-out sentences by sampling, with its draft and without; rows go on to the
same number of tokens, so that a batch loses nothing to rows that are done. Theory is R / (K c + v):
R tokens a row and iteration as they were, and for one row (1 - a^(K + 1)) / (1 - a), a the
acceptance rate; c the time of a token of plain decoding by the draft over one by the target; v the
time of K + 1 tokens in one call of the target over that of one. All in one process, interleaved;
medians, and medians of the ratios of neighbouring runs.

    python -m experiments.benchmarks.speculative --out runs/benchmarks
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import decoding_jax
from decoding_jax.strategies.speculative import emitted_tokens, speed_up
from decoding_jax.text import encode_batch
from experiments import drawing, held_out
from experiments.benchmarks.beside import transformers_t5
from experiments.benchmarks.timing import interleaved, median_ratio, quartiles_of_ratios
from experiments.results import write_json

TARGET, DRAFT = "translation-en-fr", "translation-en-fr-draft"
BATCHES = (1, 4, 16)
SIZES = range(1, 9)
WIDTH = 16


def inputs(batch: int) -> list[list[int]]:
    """Held-out sentences of about the same length."""
    _, tokenizer = decoding_jax.load(TARGET)
    ids = (tokenizer.encode(s.english) for s in held_out.read())
    return [x for x in ids if 10 <= len(x) <= WIDTH][:batch]


def call(
    model: Any, cache: Any, batch: int, tokens: int, new_tokens: int, lanes: int = 1
) -> Callable[[], object]:
    """As many calls as a text has tokens, of ``tokens`` tokens each, without choosing any."""

    @jax.jit
    def run(model: Any, cache: Any) -> Any:
        def step(i: Any, carry: Any) -> Any:
            cache, fed = carry
            output, cache = model.extend(cache, fed, jnp.full((batch, lanes), i, jnp.int32))
            return cache, jnp.where(output.logits.max(-1) > 1e9, 1, fed)

        fed = jnp.ones((batch, lanes, tokens), jnp.int32)
        return jax.lax.fori_loop(0, new_tokens, step, (cache, fed))[1]

    return lambda: jax.block_until_ready(run(model, cache))


def measure_batch(
    batch: int, new_tokens: int, repeats: int, sizes: Sequence[int], target_name: str
) -> list[dict]:
    """One row of the table for each K."""
    ids = inputs(batch)
    target, prompt = encode_batch(decoding_jax.load(target_name)[0], ids, WIDTH)
    draft, _ = encode_batch(decoding_jax.load(DRAFT)[0], ids, WIDTH)
    key, infos = jax.random.key(0), {}

    def plain(model: Any) -> Callable[[], object]:
        return lambda: jax.block_until_ready(
            decoding_jax.sample(model, prompt, key, max_new_tokens=new_tokens)
        )

    def speculative(size: int) -> Callable[[], object]:
        def run() -> None:
            output = decoding_jax.speculative_sample(
                target, draft, prompt, key, num_draft_tokens=size, max_new_tokens=new_tokens
            )
            infos[size] = jax.block_until_ready(output).info

        return run

    _, cache = jax.jit(lambda m: m.prefill(*prompt, lanes=1, slots=new_tokens + max(sizes)))(target)
    runs: dict[str, Callable[[], object]] = {"target": plain(target), "draft": plain(draft)}
    runs["1 token"] = call(target, cache, batch, 1, new_tokens)
    for size in sizes:
        runs[f"{size + 1} tokens"] = call(target, cache, batch, size + 1, new_tokens)
        runs[f"K = {size}"] = speculative(size)
    seconds = interleaved(runs, repeats)

    rows = []
    for size in sizes:
        info, name = infos[size], f"K = {size}"
        c = median_ratio(seconds, "draft", "target")
        v = median_ratio(seconds, f"{size + 1} tokens", "1 token")
        iterations = int(info.target_calls)
        emitted = info.tokens_per_iteration
        if batch == 1:
            emitted = emitted_tokens(info.acceptance_rate, size)
        theory = float(speed_up(emitted, size, c, v))
        measured = median_ratio(seconds, "target", name)
        rows.append(
            {
                "batch": batch,
                "K": size,
                "new_tokens": new_tokens,
                "plain_ms": 1e3 * statistics.median(seconds["target"]),
                "ms": 1e3 * statistics.median(seconds[name]),
                "loop_ms": 1e3 * statistics.median(seconds[name]) / iterations,
                "accepted": float(info.acceptance_rate),
                "accepted_over_K": float(info.accepted.sum() / info.proposed.sum()),
                "accepted_by_depth": [round(float(x), 3) for x in info.acceptance_by_depth],
                "R": float(info.tokens_per_iteration),
                "c": c,
                "v": v,
                "speed_up": measured,
                "theory": theory,
                "measured/theory": measured / theory,
                "quartiles": {
                    "v": quartiles_of_ratios(seconds, f"{size + 1} tokens", "1 token"),
                    "time over plain": quartiles_of_ratios(seconds, name, "target"),
                    "measured over theory": [
                        ratio / theory for ratio in quartiles_of_ratios(seconds, "target", name)
                    ],
                },
            }
        )
    return rows


def assisted(new_tokens: int, repeats: int, size: int = 4) -> dict | None:
    """Greedy, batch 1, beside assisted generation by ``transformers`` on the same weights."""
    if not (importlib.util.find_spec("transformers") and importlib.util.find_spec("torch")):
        return None
    import torch

    ids = np.asarray(inputs(1), np.int32)
    theirs, helper = transformers_t5(TARGET), transformers_t5(DRAFT)
    config = helper.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = size, "constant"
    config.assistant_confidence_threshold = 0.0
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    theirs.decoder.register_forward_hook(count)
    tokens = torch.from_numpy(ids.astype(np.int64))
    length = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}

    def run_theirs() -> None:
        nonlocal calls
        calls = 0
        with torch.inference_mode():
            theirs.generate(tokens, assistant_model=helper, do_sample=False, **length)

    target, prompt = encode_batch(decoding_jax.load(TARGET)[0], ids.tolist(), ids.shape[1])
    draft, _ = encode_batch(decoding_jax.load(DRAFT)[0], ids.tolist(), ids.shape[1])
    stop = decoding_jax.Stop(eos_ids=(1,), min_new_tokens=new_tokens)
    ours: list[int] = []

    def run_ours() -> None:
        output = decoding_jax.speculative_sample(
            target,
            draft,
            prompt,
            verifier="greedy",
            num_draft_tokens=size,
            max_new_tokens=new_tokens,
            stop=stop,
        )
        ours[:] = [int(jax.block_until_ready(output).info.target_calls) + 1]

    seconds = interleaved({"decoding_jax": run_ours, "transformers": run_theirs}, repeats)
    return {
        "K": size,
        "new_tokens": new_tokens,
        "ms": {name: 1e3 * statistics.median(x) for name, x in seconds.items()},
        "target_calls": {"decoding_jax": ours[0], "transformers": calls},
        "speed_up": median_ratio(seconds, "transformers", "decoding_jax"),
    }


def plot(table: dict[str, Any], path: Path) -> None:
    """Over K: times, beside theory, accepted tokens, and the time of an iteration."""
    rows = table["sweep"]
    figure, axes = drawing.panels(2, 2, 6.6)
    batches = sorted({r["batch"] for r in rows})
    for i, (batch, shift) in enumerate(
        zip(batches, drawing.shifts(len(batches), 0.12), strict=True)
    ):
        mine = [r for r in rows if r["batch"] == batch]
        sizes = [r["K"] + shift for r in mine]
        line = drawing.LINES[i]
        for ax, name in ((axes[0], "time over plain"), (axes[1], "measured over theory")):
            drawing.intervals(
                ax, sizes, [r["quartiles"][name] for r in mine], i, line, label=f"batch {batch}"
            )
        for ax, name, over in ((axes[2], "accepted_over_K", 1), (axes[3], "loop_ms", None)):
            values = [r[name] / (over or mine[0][name]) for r in mine]
            ax.plot(sizes, values, line, **drawing.look(i))
    for ax in axes[:2]:
        ax.axhline(1, color=drawing.GREY, linewidth=0.9)
    words = (
        "time / plain decoding",
        "speed-up / that in theory",
        "accepted tokens / K",
        "time of an iteration / K = 1",
    )
    for ax, label in zip(axes, words, strict=True):
        ax.set_xlabel("drafted tokens, K")
        ax.set_ylabel(label)
        ax.set_ylim(0)
        ax.set_xticks(sorted({r["K"] for r in rows}))
    axes[1].legend(loc="lower center")
    drawing.save(figure, path)


def measure(
    out: Path,
    repeats: int = 15,
    new_tokens: int = 65,
    batches: Sequence[int] = BATCHES,
    sizes: Sequence[int] = SIZES,
    target_name: str = TARGET,
    beside_transformers: bool = True,
) -> None:
    """Times all sizes, prints a table, and writes ``speculative.json`` and ``.png``."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for batch in tqdm(batches)
        for row in measure_batch(batch, new_tokens, repeats, sizes, target_name)
    ]
    print("batch  K   plain ms        ms   accepted     R     c     v   speed-up  theory   ratio")
    for r in rows:
        print(
            f"{r['batch']:5d}  {r['K']}  {r['plain_ms']:9.1f} {r['ms']:9.1f}   {r['accepted']:8.2f}"
            f"  {r['R']:4.2f}  {r['c']:4.2f}  {r['v']:4.2f}   {r['speed_up']:8.2f}"
            f"  {r['theory']:6.2f}  {r['measured/theory']:6.2f}"
        )
    beside = assisted(new_tokens, repeats) if beside_transformers else None
    if beside is not None:
        print(f"greedy, batch 1, K = {beside['K']}, beside transformers: {json.dumps(beside)}")
    table = {"sweep": rows, "assisted": beside}
    write_json(out / "speculative.json", table)
    plot(table, out / "speculative.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON and the plot")
    parser.add_argument("--repeats", type=int, default=15, help="runs of each contestant")
    args = parser.parse_args()
    measure(args.out, args.repeats)


if __name__ == "__main__":
    main()
