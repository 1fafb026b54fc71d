"""Speculation, beams, best-k and arithmetic sampling at the cost of large models, on CPUs.

    python -m experiments.widened python-code 355M --out models/code-355M
    python -m experiments.widened python-code-draft-deep 124M --out models/draft-124M
    python -m experiments.benchmarks.large_models models/code-355M \\
        --drafts python-code-draft-deep models/draft-124M --out docs/measured/large_models.json

The target continues held-out functions of Python, one row at a time. A draft is accepted as often
as the trained pair is, because ``experiments.widened`` changes no function, and a step takes as
long as a large model's. Contestants run in turns in one process, after a warm-up; each figure is
the median over prompts with the ends of the middle half, and ratios are of neighbouring runs.

The rows of other targets in the file stay, and a run that was killed continues. Before anything
else the command looks at how busy the machine is, and refuses a crowded one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax
from decoding_jax import Stop
from decoding_jax.models import transposed
from decoding_jax.text import encode_batch
from decoding_jax.transforms import Trie, prefix_allowed_tokens
from experiments import held_out
from experiments.benchmarks.speculative import call
from experiments.benchmarks.timing import interleaved, quartiles, quartiles_of_ratios
from experiments.papers.results import shown
from experiments.results import add_rows, ledger_of

WIDTH, NEW_TOKENS, PROMPTS = 64, 32, 5
SIZES = (2, 4)
ROWS = 4
TOKENS = (1, 2, 4, 6, 9)
BEAMS = (30, 100, 300)
SEQUENCES, IDENTIFIER = 100_000, 8
TASKS = ("speculation", "strategies", "wide beams", "transformers", "kernels")
Runs = dict[str, Callable[[], Any]]


class Setting(NamedTuple):
    """What is measured together.

    Attributes:
      target: the directory's name.
      task: ``speculation at temperature 0``, ``speculation at temperature 1``, or another of
        ``TASKS``.
    """

    target: str
    task: str

    def name(self) -> str:
        return f"{self.target}, {self.task}"


def prompts(tokenizer: Any) -> list[list[int]]:
    """The tokens of the first held-out functions that fit."""
    with open(held_out.FUNCTIONS, encoding="utf-8") as lines:
        ids = [list(tokenizer.encode(json.loads(line)["prompt"])) for line in lines]
    return [x for x in ids if WIDTH // 2 < len(x) <= WIDTH][:PROMPTS]


def plain(model: Any, prompt: Any, temperature: int) -> Any:
    """The target alone."""
    if temperature == 0:
        return decoding_jax.greedy(model, prompt, max_new_tokens=NEW_TOKENS)
    return decoding_jax.sample(model, prompt, jax.random.key(0), max_new_tokens=NEW_TOKENS)


def speculate(model: Any, draft: Any, prompt: Any, temperature: int, size: int) -> Any:
    """The target with a draft of ``size`` tokens."""
    return decoding_jax.speculative_sample(
        model,
        draft,
        prompt,
        jax.random.key(0) if temperature else None,
        num_draft_tokens=size,
        verifier="token" if temperature else "greedy",
        max_new_tokens=NEW_TOKENS,
    )


def speculation(
    target: Any, tokenizer: Any, drafts: dict[str, Any], sizes: Sequence[int], temperature: int
) -> dict:
    """Times of all sizes and drafts over plain decoding, with the tokens of an iteration."""
    seconds: dict[str, list[float]] = {}
    tokens: dict[str, list[float]] = {}
    for i, ids in enumerate(prompts(tokenizer)):
        model, prompt = encode_batch(target, [ids], WIDTH)

        def alone(model: Any = model, prompt: Any = prompt) -> None:
            jax.block_until_ready(plain(model, prompt, temperature))

        def drafted(
            name: str, draft: Any, size: int, model: Any = model, prompt: Any = prompt
        ) -> None:
            output = jax.block_until_ready(speculate(model, draft, prompt, temperature, size))
            tokens.setdefault(name, []).append(float(output.info.tokens_per_iteration))

        runs: Runs = {"plain": alone}
        for draft_name, draft in drafts.items():
            for size in sizes:
                name = f"{draft_name}, K = {size}"
                runs[name] = partial(drafted, name, draft, size)
        # All prompts have one shape, so the first one's warm-up compiles for the others.
        found = interleaved(runs, 1, None if i == 0 else {"plain": lambda: None})
        for name, times in found.items():
            seconds.setdefault(name, []).extend(times)
    return {
        name: {
            "ms_per_token": quartiles([1e3 * s / NEW_TOKENS for s in times]),
            "speed_up": quartiles_of_ratios(seconds, "plain", name),
            "tokens_per_iteration": float(np.mean(tokens[name][-PROMPTS:]))
            if name in tokens
            else 1,
        }
        for name, times in seconds.items()
    }


def strategies(target: Any, tokenizer: Any, repeats: int = 5) -> dict:
    """Times of a step of several strategies over those of the model alone with as many rows."""
    ids = prompts(tokenizer)[0]
    model, prompt = encode_batch(target, [ids], WIDTH)
    four, rows = encode_batch(target, [ids] * ROWS, WIDTH)
    _, cache = jax.jit(lambda m: m.prefill(*rows, lanes=1, slots=NEW_TOKENS))(four)
    key, length = jax.random.key(0), {"max_new_tokens": NEW_TOKENS}

    def search(k: int) -> Any:
        options = {"k": k, "budget": 5 * NEW_TOKENS, **length}
        return decoding_jax.best_k_search(model, prompt, **options)

    functions: Runs = {
        "model": call(four, cache, ROWS, 1, NEW_TOKENS),
        "greedy": lambda: decoding_jax.greedy(four, rows, **length),
        "sample": lambda: decoding_jax.sample(model, prompt, key, num_samples=ROWS, **length),
        "arithmetic": lambda: decoding_jax.arithmetic_sample(
            model, prompt, key, num_samples=ROWS, **length
        ),
        "beams": lambda: decoding_jax.beam_search(model, prompt, beam_size=ROWS, **length),
        "five beams": lambda: decoding_jax.beam_search(model, prompt, beam_size=5, **length),
        "best-k": lambda: search(5),
        "best-first": lambda: search(1),
    }
    runs: Runs = {n: partial(_waited, function) for n, function in functions.items()}
    seconds = interleaved(runs, repeats)
    pairs = {
        "greedy over the model": ("greedy", "model"),
        "sample over the model": ("sample", "model"),
        "arithmetic sampling over sample": ("arithmetic", "sample"),
        "beams of 4 over greedy with 4 rows": ("beams", "greedy"),
        "best-first over best-k, k = 5": ("best-first", "best-k"),
        "best-k over beams, as many expansions": ("best-k", "five beams"),
    }
    return {
        "ms_per_step": _ms_per_step(seconds),
        "ratios": {n: quartiles_of_ratios(seconds, *pair) for n, pair in pairs.items()},
    }


def _ms_per_step(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """The quartiles of each run's milliseconds for one of its new tokens."""
    return {n: quartiles([1e3 * s / NEW_TOKENS for s in x]) for n, x in seconds.items()}


def _waited(function: Callable[[], Any]) -> Any:
    """The result of a function, once it is there."""
    return jax.block_until_ready(function())


def wide_beams(target: Any, tokenizer: Any, repeats: int = 3) -> dict:
    """Times of searches with many beams, with and without a trie, over the model with their lanes.

    The trie has ``SEQUENCES`` random sequences, as identifiers of documents in generative
    retrieval. No end token stops a search before its last step.
    """
    ids = prompts(tokenizer)[0]
    model, prompt = encode_batch(target, [ids], WIDTH)
    draw = np.random.default_rng(0)
    sequences = draw.integers(1, target.config.vocab_size, (SEQUENCES, IDENTIFIER))
    trie = prefix_allowed_tokens(Trie.from_sequences(sequences.astype(np.int32)))
    runs: Runs = {}
    for n in BEAMS:
        _, cache = jax.jit(lambda m, n=n: m.prefill(*prompt, lanes=n, slots=IDENTIFIER))(model)
        runs[f"{n} lanes"] = call(model, cache, 1, 1, IDENTIFIER, lanes=n)
        for name, transform in (("beams", None), ("beams with a trie", trie)):
            options = {"beam_size": n, "max_new_tokens": IDENTIFIER, "transform": transform}
            search = partial(decoding_jax.beam_search, model, prompt, **options)
            runs[f"{n} {name}"] = partial(_waited, search)
            first = partial(search, stop=Stop(max_new_tokens=1))
            runs[f"{n} {name}, first step"] = partial(_waited, first)
    seconds = interleaved(runs, repeats)
    ratios = {}
    for n in BEAMS:
        lanes = [s / IDENTIFIER for s in seconds[f"{n} lanes"]]
        for name in ("beams", "beams with a trie"):
            pairs = zip(seconds[f"{n} {name}"], seconds[f"{n} {name}, first step"], strict=True)
            steps = [(a - b) / (IDENTIFIER - 1) for a, b in pairs]
            found = quartiles([a / b for a, b in zip(steps, lanes, strict=True)])
            ratios[f"{n} {name} over {n} lanes"] = found
    return {"seconds": {n: quartiles(x) for n, x in seconds.items()}, "ratios": ratios}


def beside_transformers(target: Any, tokenizer: Any, directory: str, repeats: int = 5) -> dict:
    """Times of ``transformers`` over ours, on the same weights, without an end token."""
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=target.config.dtype).eval()
    ids = prompts(tokenizer)[0]
    given = torch.tensor([ids])
    length = {"max_new_tokens": NEW_TOKENS}
    model, prompt = encode_batch(target, [ids], len(ids))
    kinds: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "greedy": (lambda: decoding_jax.greedy(model, prompt, **length), {"do_sample": False}),
        "sample": (
            lambda: decoding_jax.sample(model, prompt, jax.random.key(0), **length),
            {"do_sample": True, "top_k": 0},
        ),
        "beams of 4": (
            lambda: decoding_jax.beam_search(model, prompt, beam_size=4, num_return=1, **length),
            {"do_sample": False, "num_beams": 4},
        ),
    }

    def generate(options: dict[str, Any]) -> None:
        with torch.inference_mode():
            ends = {"min_new_tokens": NEW_TOKENS, "eos_token_id": None, "pad_token_id": 0}
            theirs.generate(given, **length, **ends, **options)

    runs: Runs = {}
    for name, (ours, options) in kinds.items():
        runs[f"{name}, ours"] = partial(_waited, ours)
        runs[f"{name}, transformers"] = partial(generate, options)
    seconds = interleaved(runs, repeats)
    return {
        "ms_per_step": _ms_per_step(seconds),
        "ratios": {
            n: quartiles_of_ratios(seconds, f"{n}, transformers", f"{n}, ours") for n in kinds
        },
    }


def kernels(target: Any, tokenizer: Any, repeats: int = 9, steps: int = 4) -> dict:
    """Times of a call with several tokens, over that by plain kernels and over one token's."""
    ids = prompts(tokenizer)[0]
    runs: Runs = {}
    for kind, other in (("stored", target), ("plain", transposed.plain(target))):
        model, prompt = encode_batch(other, [ids], WIDTH)
        _, cache = jax.jit(lambda m, p=prompt: m.prefill(*p, lanes=1, slots=WIDTH))(model)
        for tokens in TOKENS:
            runs[f"{tokens} {kind}"] = call(model, cache, 1, tokens, steps)
    seconds = interleaved(runs, repeats)
    return {
        "ms": {n: quartiles([1e3 * s / steps for s in x]) for n, x in seconds.items()},
        "ratios": {
            str(n): quartiles_of_ratios(seconds, f"{n} stored", f"{n} plain") for n in TOKENS
        },
        "over_one_token": {
            str(n): quartiles_of_ratios(seconds, f"{n} stored", "1 stored") for n in TOKENS
        },
    }


def busyness() -> dict[str, Any]:
    """The machine, and how fast a product of known size is on it now."""
    x, w = jnp.ones((1, 1280)), [jnp.ones((1280, 3392)) * (i + 1) for i in range(16)]
    run = jax.jit(lambda x, w: sum((x @ m).sum() for m in w))
    seconds = interleaved({"x": lambda: jax.block_until_ready(run(x, w))}, 9)["x"]
    return {
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "gigabytes_per_second": 16 * 1280 * 3392 * 4 / quartiles(seconds)[0] / 1e9,
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def tables(ledger: dict[str, Any]) -> dict[str, str]:
    """The page's tables, of the rows of a ledger."""

    speculated = ["| target | T | draft, K | tokens a call | ms a token | speed-up |"]
    speculated += ["| --- | --- | --- | --- | --- | --- |"]
    read = ["| target | tokens | ms | over plain kernels | over one token |"]
    read += ["| --- | --- | --- | --- | --- |"]
    stepped, wide, beside = (
        [f"| target | {what} |", "| --- | --- | --- |"]
        for what in (
            "what over what | ratio",
            "a step over the model's | ratio",
            "strategy | times as fast",
        )
    )
    others = {"strategies": stepped, "wide beams": wide, "transformers": beside}
    for name, row in ledger["rows"].items():
        target, task = name.split(", ", 1)
        if task == "kernels":
            ms, ratios, over = (row[part] for part in ("ms", "ratios", "over_one_token"))
            for n in ratios:
                times = f"{ms[f'{n} stored'][0]:.0f} | {shown(ratios[n], 2)} | {shown(over[n], 2)}"
                read += [f"| {target} | {n} | {times} |"]
            continue
        if task in others:
            others[task] += [
                f"| {target} | {n} | {shown(v, 2)} |" for n, v in row["ratios"].items()
            ]
            continue
        by_draft: dict[str, list[str]] = {}
        for contestant in row["contestants"]:
            by_draft.setdefault(contestant.split(", K")[0], []).append(contestant)
        for contestants in by_draft.values():
            best = max(contestants, key=lambda n: row["contestants"][n]["speed_up"][0])
            found = row["contestants"][best]
            if best == "plain":
                continue
            speculated += [
                f"| {target} | {task[-1]} | {best} | {found['tokens_per_iteration']:.2f}"
                f" | {found['ms_per_token'][0]:.1f} | {shown(found['speed_up'], 2)} |"
            ]
    found = {"speculation": speculated, "kernels": read, **others}
    return {title: "\n".join(lines) for title, lines in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", help="a directory that experiments.widened wrote")
    parser.add_argument("--drafts", nargs="+", default=["python-code-draft-deep"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="drafted tokens")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tasks", nargs="+", choices=TASKS)
    parser.add_argument("--crowded", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--out", type=Path, required=True, help="the JSON")
    args = parser.parse_args(argv)
    machine = busyness()
    if machine["load_average"] > machine["cores"] / 2 and not args.crowded:
        sys.exit(f"load average: expected at most {machine['cores'] / 2}, got {machine}")
    target, tokenizer = decoding_jax.load(args.target, dtype=args.dtype)
    drafts = {Path(d).name: decoding_jax.load(d, dtype=args.dtype)[0] for d in args.drafts}
    name = Path(args.target).name + ("" if args.dtype == "float32" else f" {args.dtype}")
    tasks = [f"speculation at temperature {t}" for t in (0, 1)] + list(TASKS[1:])
    others: dict[str, Callable[[Any, Any], dict]] = {
        "strategies": strategies,
        "wide beams": wide_beams,
        "transformers": partial(beside_transformers, directory=args.target),
        "kernels": kernels,
    }
    chosen = args.tasks or TASKS

    def measure(setting: Setting) -> dict[str, Any]:
        start = time.perf_counter()
        if setting.task in others:
            found = others[setting.task](target, tokenizer)
        else:
            temperature = int(setting.task[-1])
            found = {"contestants": speculation(target, tokenizer, drafts, args.sizes, temperature)}
        return {**found, "seconds": time.perf_counter() - start, "machine": machine}

    ledger = ledger_of(args.out)
    settings = [Setting(name, task) for task in tasks if task.split(" at ")[0] in chosen]
    add_rows(ledger, settings, measure, args.out)
    for title, table in tables(ledger).items():
        print(title, table, sep="\n\n", end="\n\n")


if __name__ == "__main__":
    main()
