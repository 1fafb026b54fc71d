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
import itertools
import json
import os
import platform
import re
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
from decoding_jax import Stop, transforms
from decoding_jax.strategies.speculative import PromptLookup
from decoding_jax.testing.certificate.records import commit
from decoding_jax.text import embedded, encode_batch
from decoding_jax.transforms import Trie, prefix_allowed_tokens
from experiments import drawing, held_out
from experiments.benchmarks.speculative import call
from experiments.benchmarks.timing import interleaved, quartiles, quartiles_of_ratios
from experiments.papers.results import shown
from experiments.results import add_rows, ledger_of

WIDTH, NEW_TOKENS, PROMPTS = 64, 32, 5
SIZES = (2, 4)  # Drafted tokens, where none are given.
SIZE = 4  # Drafted tokens of several drafts, of a tree and of copied drafts.
TEMPERATURES = (0, 1)
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
      task: one of ``TASKS``.
      temperature: of speculation.
      rows: of speculation, which are decoded together.
    """

    target: str
    task: str
    temperature: float = 0
    rows: int = 1

    def name(self) -> str:
        of_task = f"{self.target}, {self.task}"
        if self.task != "speculation":
            return of_task
        rows = f", {self.rows} rows" if self.rows > 1 else ""
        return f"{of_task} at temperature {self.temperature:g}{rows}"


def setting_of(name: str) -> Setting:
    """The setting of a row's name."""
    target, task = name.split(", ", 1)
    found = re.fullmatch(r"speculation at temperature ([\d.]+)(?:, (\d+) rows)?", task)
    if found is None:
        return Setting(target, task)
    return Setting(target, "speculation", float(found[1]), int(found[2] or 1))


def prompts(tokenizer: Any) -> list[list[int]]:
    """The tokens of the first held-out functions that fit."""
    with open(held_out.FUNCTIONS, encoding="utf-8") as lines:
        ids = [list(tokenizer.encode(json.loads(line)["prompt"])) for line in lines]
    return [x for x in ids if WIDTH // 2 < len(x) <= WIDTH][:PROMPTS]


def of_drawing(temperature: float) -> dict[str, Any]:
    """The arguments of ``sample`` at a temperature above zero."""
    scaled = transforms.temperature(temperature) if temperature != 1 else None
    return {"key": jax.random.key(0), "transform": scaled, "max_new_tokens": NEW_TOKENS}


def plain(model: Any, prompt: Any, temperature: float) -> Any:
    """The target alone."""
    if temperature == 0:
        return decoding_jax.greedy(model, prompt, max_new_tokens=NEW_TOKENS)
    return decoding_jax.sample(model, prompt, **of_drawing(temperature))


def speculate(model: Any, drafter: Any, prompt: Any, temperature: float, **options: Any) -> Any:
    """The target with a drafter."""
    if temperature == 0:
        options |= {"verifier": "greedy", "max_new_tokens": NEW_TOKENS}
    else:
        options |= of_drawing(temperature)
    return decoding_jax.speculative_sample(model, drafter, prompt, **options)


def contestants(
    drafts: dict[str, Any], sizes: Sequence[int], temperature: float
) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Drafters and their settings: each draft and size, and other ways to draft ``SIZE`` tokens."""
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        f"{name}, K = {size}": (draft, {"num_draft_tokens": size})
        for name, draft in drafts.items()
        for size in sizes
    }
    size = {"num_draft_tokens": SIZE}
    name, draft = next(iter(drafts.items()))
    if temperature:
        found[f"{name}, two drafts of {SIZE}"] = draft, {"num_drafts": 2, **size}
    else:
        tree = {"num_drafts": 2, "tree": "dynamic", **size}
        found[f"{name}, dynamic tree of {2 * SIZE}"] = draft, tree
    found[f"`PromptLookup`, K = {SIZE}"] = PromptLookup(), size
    return found


def seconds_of_parts(
    target: Any, prompt: Any, drafts: dict[str, Any], sizes: Sequence[int]
) -> dict[str, float]:
    """The median seconds of the parts of a decode: prefills and single calls, without choices."""
    rows, slots, steps = len(prompt.tokens), NEW_TOKENS + max(sizes) + 1, 4
    runs: Runs = {}
    for name, model in {"target": target, **drafts}.items():
        prefill = jax.jit(lambda m: m.prefill(*prompt, lanes=1, slots=slots))
        _, cache = prefill(model)
        runs[f"{name}, prefill"] = partial(_waited, partial(prefill, model))
        for tokens in [1, *(size + 1 for size in sizes if name == "target")]:
            runs[f"{name}, {tokens}"] = call(model, cache, rows, tokens, steps)
    return {
        name: quartiles(times)[0] / (1 if name.endswith("prefill") else steps)
        for name, times in interleaved(runs, 5).items()
    }


def speculation(
    target: Any,
    tokenizer: Any,
    drafts: dict[str, Any],
    sizes: Sequence[int],
    temperature: float,
    rows: int,
) -> dict:
    """Times of all drafters over plain decoding, their tokens a call, and what theory says.

    A draft model's iteration is beside its parts, which are its calls and one of the target with
    K + 1 tokens; their sum over a token of the target's is what theory divides the tokens by.
    """
    ids = prompts(tokenizer)
    seconds: dict[str, list[float]] = {}
    infos: dict[str, list[Any]] = {}
    entered = contestants(drafts, sizes, temperature)
    model = prompt = None
    for i in range(len(ids)):
        texts = list(itertools.islice(itertools.cycle(ids), i, i + rows))
        model, prompt = encode_batch(target, texts, WIDTH)

        def alone(model: Any = model, prompt: Any = prompt) -> None:
            jax.block_until_ready(plain(model, prompt, temperature))

        def drafted(name: str, model: Any = model, prompt: Any = prompt) -> None:
            drafter, options = entered[name]
            output = speculate(model, drafter, prompt, temperature, **options)
            infos.setdefault(name, []).append(jax.block_until_ready(output).info)

        runs: Runs = {"plain": alone, **{name: partial(drafted, name) for name in entered}}
        # All prompts have one shape, so the first one's warm-up compiles for the others.
        found = interleaved(runs, 1, None if i == 0 else {"plain": lambda: None})
        for name, times in found.items():
            seconds.setdefault(name, []).extend(times)
    parts = seconds_of_parts(model, prompt, drafts, sizes)
    results: dict[str, Any] = {}
    for name, times in seconds.items():
        results[name] = {
            "ms_per_token": quartiles([1e3 * s / NEW_TOKENS for s in times]),
            "speed_up": quartiles_of_ratios(seconds, "plain", name),
            "tokens_per_iteration": 1,
        }
        if name != "plain":
            counted = infos[name][-len(ids) :]
            emitted = float(np.mean([info.tokens_per_iteration for info in counted]))
            results[name]["tokens_per_iteration"] = emitted
            draft, size = name.split(", K = ") if ", K = " in name else ("", "")
            if draft in drafts:
                given = times, counted, emitted, parts, draft
                results[name] |= beside_parts(*given, int(size))
    return {"contestants": results, "ms_of_parts": {n: 1e3 * s for n, s in parts.items()}}


def beside_parts(
    times: list[float],
    infos: list[Any],
    emitted: float,
    parts: dict[str, float],
    draft: str,
    size: int,
) -> dict[str, Any]:
    """An iteration over its parts, and the speed-up without prefills that they allow.

    ``emitted`` tokens are those of an iteration.
    """
    prefills = parts["target, prefill"] + parts[f"{draft}, prefill"]
    over = []
    for s, info in zip(times, infos, strict=True):
        calls = float(np.max(info.target_calls)), float(np.max(info.draft_calls))
        sum_of_parts = calls[0] * parts[f"target, {size + 1}"] + calls[1] * parts[f"{draft}, 1"]
        over.append((s - prefills) / sum_of_parts)
    iteration = parts[f"target, {size + 1}"] + size * parts[f"{draft}, 1"]
    theory = emitted * parts["target, 1"] / iteration
    return {"iteration_over_parts": quartiles(over), "theory": theory}


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


def beside_transformers(
    target: Any, tokenizer: Any, directory: str, draft: tuple[str, Any], repeats: int = 5
) -> dict:
    """Times of ``transformers`` over ours, on the same weights, without an end token.

    The compiled model has a static cache. Assisted decoding is ours with the greedy verifier, both
    with drafts of ``SIZE`` tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM

    read = partial(AutoModelForCausalLM.from_pretrained, dtype=target.config.dtype)
    theirs, compiled = read(directory).eval(), read(directory).eval()
    compiled.forward = torch.compile(compiled.forward)
    helper = read(embedded().get(draft[0], draft[0])).eval()
    of_helper = helper.generation_config
    of_helper.num_assistant_tokens, of_helper.num_assistant_tokens_schedule = SIZE, "constant"
    of_helper.assistant_confidence_threshold = 0.0
    ids = prompts(tokenizer)[0]
    given = torch.tensor([ids])
    length = {"max_new_tokens": NEW_TOKENS}
    model, prompt = encode_batch(target, [ids], len(ids))

    def ours(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Any]:
        return partial(_waited, partial(function, model, *args, **options))

    def generate(network: Any = theirs, **options: Any) -> Callable[[], None]:
        ends = {"min_new_tokens": NEW_TOKENS, "eos_token_id": None, "pad_token_id": 0}

        def run() -> None:
            with torch.inference_mode():
                network.generate(given, **length, **ends, **options)

        return run

    greedy = ours(decoding_jax.greedy, prompt, **length)
    sample = ours(decoding_jax.sample, prompt, jax.random.key(0), **length)
    beams = ours(decoding_jax.beam_search, prompt, beam_size=4, num_return=1, **length)
    assisted = ours(speculate, draft[1], prompt, 0, num_draft_tokens=SIZE)
    static = generate(compiled, do_sample=False, cache_implementation="static")
    kinds = {
        "greedy": (greedy, generate(do_sample=False)),
        "greedy, `torch.compile`": (greedy, static),
        "sample": (sample, generate(do_sample=True, top_k=0)),
        "beams of 4": (beams, generate(do_sample=False, num_beams=4)),
        "assisted": (assisted, generate(do_sample=False, assistant_model=helper)),
    }
    runs: Runs = {}
    for name, pair in kinds.items():
        runs[f"{name}, ours"], runs[f"{name}, transformers"] = pair
    seconds = interleaved(runs, repeats)
    return {
        "ms_per_step": _ms_per_step(seconds),
        "ratios": {
            n: quartiles_of_ratios(seconds, f"{n}, transformers", f"{n}, ours") for n in kinds
        },
    }


def kernels(target: Any, tokenizer: Any, directory: str, repeats: int = 9, steps: int = 4) -> dict:
    """Times of a call with several tokens over that of one token, and with int8 weights over it."""
    ids = prompts(tokenizer)[0]
    runs: Runs = {}
    narrow, _ = decoding_jax.load(directory, dtype=target.config.dtype, weights="int8")
    kinds = {"stored": target, "int8": narrow}
    for kind, other in kinds.items():
        model, prompt = encode_batch(other, [ids], WIDTH)
        _, cache = jax.jit(lambda m, p=prompt: m.prefill(*p, lanes=1, slots=WIDTH))(model)
        for tokens in TOKENS:
            runs[f"{tokens} {kind}"] = call(model, cache, 1, tokens, steps)
    seconds = interleaved(runs, repeats)
    return {
        "ms": {n: quartiles([1e3 * s / steps for s in x]) for n, x in seconds.items()},
        "over_one_token": {
            str(n): quartiles_of_ratios(seconds, f"{n} stored", "1 stored") for n in TOKENS
        },
        "int8": {str(n): quartiles_of_ratios(seconds, f"{n} int8", f"{n} stored") for n in TOKENS},
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

    titles = "rows | T | drafter | tokens a call | ms a token | speed-up | in theory"
    speculated = [f"| target | {titles} | iteration over its parts |"]
    speculated += ["| --- " * 9 + "|"]
    read = ["| target | tokens | ms | over one token | int8 over it |", "| --- " * 5 + "|"]
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
        target, task, temperature, rows = setting_of(name)
        if task == "kernels":
            for n, over in row["over_one_token"].items():
                times = f"{row['ms'][f'{n} stored'][0]:.0f} | {shown(over, 2)}"
                narrow = shown(row["int8"][n], 2) if "int8" in row else ""
                read += [f"| {target} | {n} | {times} | {narrow} |"]
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
            theory = f"{found['theory']:.2f}" if "theory" in found else ""
            over = shown(found["iteration_over_parts"], 2) if theory else ""
            speculated += [
                f"| {target} | {rows} | {temperature:g} | {best}"
                f" | {found['tokens_per_iteration']:.2f} | {found['ms_per_token'][0]:.1f}"
                f" | {shown(found['speed_up'], 2)} | {theory} | {over} |"
            ]
    found = {"speculation": speculated, "kernels": read, **others}
    return {title: "\n".join(lines) for title, lines in found.items()}


def plot(ledger: dict[str, Any], path: Path) -> None:
    """The speed-up by the first draft over K, one row at a time, beside theory."""
    rows = {setting_of(name): row for name, row in ledger["rows"].items()}
    found = {s: row for s, row in rows.items() if s.task == "speculation" and s.rows == 1}
    targets = list(dict.fromkeys(s.target for s in found))
    figure, axes = drawing.panels(1, len(targets), height=2.8)
    for ax, target in zip(axes, targets, strict=True):
        for i, temperature in enumerate((0, 0.8, 1)):
            row = found.get(Setting(target, "speculation", temperature))
            if row is None:
                continue
            by_name = row["contestants"].items()
            first = next(n for n, _ in by_name if ", K = " in n).split(", K = ")[0]
            sizes = {int(n.split("= ")[1]): x for n, x in by_name if n.startswith(f"{first}, K =")}
            speed_ups = [x["speed_up"] for x in sizes.values()]
            label = f"T = {temperature:g}"
            drawing.intervals(ax, list(sizes), speed_ups, i, "-", label=label)
            theory = [(k, x["theory"]) for k, x in sizes.items() if "theory" in x]
            if theory:
                style = {"color": drawing.COLOURS[i], "label": "in theory" if i == 0 else None}
                ax.plot(*zip(*theory, strict=True), ":", **style)
        ax.axhline(1, color=drawing.GREY, linewidth=0.8)
        ax.set(title=target, xlabel="K", xticks=range(1, 9), xlim=(0.5, 8.5), ylim=(0.6, 2.1))
    axes[0].set_ylabel("times as fast")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    drawing.save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", help="a directory that experiments.widened wrote")
    parser.add_argument("--drafts", nargs="+", default=["python-code-draft-deep"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="drafted tokens")
    parser.add_argument("--temperatures", nargs="+", type=float, default=TEMPERATURES)
    parser.add_argument("--rows", type=int, default=1, help="rows of speculation")
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
    others: dict[str, Callable[[Any, Any], dict]] = {
        "strategies": strategies,
        "wide beams": wide_beams,
        "transformers": partial(
            beside_transformers,
            directory=args.target,
            draft=(args.drafts[0], drafts[Path(args.drafts[0]).name]),
        ),
        "kernels": partial(kernels, directory=args.target),
    }
    chosen = args.tasks or TASKS

    def measure(setting: Setting) -> dict[str, Any]:
        start = time.perf_counter()
        if setting.task in others:
            found = others[setting.task](target, tokenizer)
        else:
            given = setting.temperature, setting.rows
            found = speculation(target, tokenizer, drafts, args.sizes, *given)
        seconds = time.perf_counter() - start
        return {**found, "seconds": seconds, "machine": machine, "commit": commit()}

    ledger = ledger_of(args.out)
    settings = [Setting(name, task) for task in chosen if task != "speculation"]
    if "speculation" in chosen:
        settings += [Setting(name, "speculation", t, args.rows) for t in args.temperatures]
    add_rows(ledger, settings, measure, args.out)
    for title, table in tables(ledger).items():
        print(title, table, sep="\n\n", end="\n\n")


if __name__ == "__main__":
    main()
