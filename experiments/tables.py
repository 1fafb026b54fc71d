"""Writes the tables of the pages again from the committed results, without measuring again.

    python -m experiments.tables

Like the figures (``python -m experiments.figures``), each table has a file of results in ``docs/``,
which the command named on its page wrote. ``docs/papers`` is written by the commands of
``experiments.papers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments import (
    conditional,
    confident_votes,
    pass_at_k,
    quantization,
    rollouts,
    rollouts_training,
)
from experiments.benchmarks import cpu_translation, evaluation, experts, growth, large_models
from experiments.benchmarks.accelerator import report
from experiments.papers.results import shown, table
from experiments.results import read_json, write_tables
from experiments.tpu_ledger.report import memory_gb

DOCS = Path(__file__).parents[1] / "docs"


def read(name: str) -> Any:
    """The results of that name, such as ``measured/beam_search``."""
    return read_json(DOCS / f"{name}.json")


def steps() -> str:
    """How many times as long one step takes as a softmax."""
    rows = read("measured/sampling_step")
    names = {
        "sample": "`sample`",
        "arithmetic": "`arithmetic_sample`",
        "categorical": "`jax.random.categorical`",
        "argmax": "`jnp.argmax`",
    }
    header = ["vocabulary, rows", *(f"{r['vocab_size']:,}, {r['rows']}" for r in rows)]
    return table(
        header,
        [[words, *(f"{r[f'{k}/softmax']:.1f}" for r in rows)] for k, words in names.items()],
    )


def whole_decodes() -> str:
    """Milliseconds of whole decodes, and those of ``transformers``."""
    rows = [
        [r["strategy"], r["batch"], *(f"{1000 * r[k]:.0f}" for k in KINDS), f"{r['speedup']:.1f}"]
        for r in read("measured/whole_decode")
    ]
    return table(["strategy", "rows", "ms", "ms of `transformers`", "times as fast"], rows)


KINDS = ("decoding_jax", "transformers")


def beam_search() -> str:
    """How many times longer beam search takes otherwise than on a tree."""
    rows = [
        [
            f"{r['batch']}, {r['width']}, {r['new_tokens']}",
            *(f"{r[f'{k}/tree']:.2f}" for k in ("transformers", "select")),
        ]
        for r in read("measured/beam_search")
    ]
    return table(["batch, width, length", "`transformers`", "`select`"], rows)


def best_k() -> str:
    """How many times longer best-k search takes than beam search."""
    rows = [
        [f"{r['batch']}, {r['width']}, {r['new_tokens']}"]
        + [f"{r[f'best-k {kappa} over beam']:.2f}" for kappa in ("0.0", "0.2")]
        for r in read("measured/best_k")
    ]
    return table(["batch, k, steps", "kappa 0", "kappa 0.2"], rows)


def quality() -> str:
    """Quality and diversity of all strategies at one budget."""
    columns = ("unique", "distinct-2", "BLEU", "BLEU oracle")
    rows = [
        [name, *(shown(row[c], 2 if c == "distinct-2" else 1) for c in columns)]
        for name, row in read("measured/quality_diversity")["results"].items()
    ]
    words = ["different texts", "distinct-2", "mean BLEU of eight", "BLEU of the best"]
    return table(["strategy", *words], rows)


def speculation() -> str:
    """Measured and predicted speed of the embedded pair."""
    columns = ("accepted", "R", "c", "v", "speed_up", "theory", "measured/theory")
    rows = [
        [r["batch"], r["K"], *(f"{r[c]:.2f}" for c in columns)]
        for r in read("measured/speculative")["sweep"]
    ]
    words = ["accepted", "R", "c", "v", "speed-up", "theory", "measured / theory"]
    return table(["batch", "K", *words], rows)


def assisted() -> str:
    """Greedy speculation beside assisted generation."""
    found = read("measured/speculative")["assisted"]
    rows = [[f"`{k}`", f"{found['ms'][k]:.0f}", found["target_calls"][k]] for k in KINDS]
    return table(["", "ms", "calls of the target"], rows)


def heads() -> str:
    """A head for translation beside the draft model."""
    rows = [
        [
            r["drafter"],
            *(shown(r[k]["tokens"], 2) for k in ("greedy", "drawn")),
            ", ".join(f"{x:.2f}" for x in r["drawn"]["accepted_by_depth"]),
        ]
        for r in read("measured/heads")["rows"]
    ]
    words = ["tokens a call, greedy", "at temperature 1", "accepted at depth 1 to 4"]
    return table(["drafter", *words], rows)


def equal_bits() -> str:
    """Texts in all ways, of reproducible models and of models as usual, and how many differ."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for name, ways in read("measured/reproducible")["rows"].items():
        _, dtype, strategy, setting = name.split(", ")
        sums = found.setdefault((setting, strategy, dtype), [0, 0, 0])
        for i, column in enumerate(("texts", "other_texts", "other_log_probs")):
            sums[i] += sum(way[column] for way in ways.values())
    rows = [[*names, *(f"{n:,}" for n in sums)] for names, sums in sorted(found.items())]
    return table(
        ["model", "strategy", "dtype", "texts", "other texts", "other log-probabilities"], rows
    )


def suites() -> str:
    """How many schemas of each suite compile, and what they accept."""
    names = {
        "maskbench": "MaskBench",
        "draft2020-12": "JSON-Schema-Test-Suite, 2020-12",
        "draft7": "JSON-Schema-Test-Suite, draft 7",
    }
    header = ["suite", "schemas", "compiled", "valid instances", "accepted", "invalid accepted"]
    columns = ["schemas", "compiled", "valid", "valid accepted", "invalid accepted"]
    found = read("measured/schemas")
    rows = []
    for key, name in names.items():
        counts = found[key]["counts"]
        share = f"{counts['passed'] / counts['schemas']:.1%}"
        rows.append([name, *(f"{counts[one]:,}" for one in columns), share])
    return table([*header, "passed"], rows)


def seconds() -> str:
    """How long the schemas of MaskBench take to compile."""
    names = {
        "seconds over bytes": "over bytes",
        "seconds in all, over tokens": "over tokens, in all",
    }
    columns = ["median", "95%", "largest"]
    found = read("measured/schemas")["maskbench"]
    rows = [[name, *(f"{found[key][one]:.2f}" for one in columns)] for key, name in names.items()]
    return table(["", *columns], rows)


def constrained_steps() -> str:
    """How many times as long a step with a constraint takes as a free one."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for row in read("measured/constraints")["steps"]:
        found.setdefault((row["schema"], row["rows"]), {})[row["tokens"]] = row["ratio"]
    lengths = sorted({length for ratios in found.values() for length in ratios})
    rows = [[*case, *(f"{found[case][n]:.2f}" for n in lengths)] for case in sorted(found)]
    return table(["schema", "rows", *(f"after {n} tokens" for n in lengths)], rows)


def masks() -> str:
    """The time of the masks of a token, beside that of other projects."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in read("measured/masks")["masks"]:
        found.setdefault((row["schema"], row["rows"]), {})[row["by"]] = row["ms"]
    names = list(next(iter(found.values())))
    rows = [[*case, *(f"{ms[name]:.2g}" for name in names)] for case, ms in found.items()]
    return table(["schema", "rows", *names], rows)


def forced_tokens() -> str:
    """The tokens of texts, and the calls of the model for them."""
    rows = []
    for one in read("measured/forced"):
        tokens, calls = sum(one["tokens"]), sum(one["calls"])
        rows.append([one["schema"], len(one["tokens"]), tokens, calls, f"{tokens / calls:.2f}"])
    return table(["schema", "texts", "tokens", "calls", "tokens a call"], rows)


def wide_tries() -> str:
    """The time and the bytes of the mask of a wide trie, for texts of each length."""
    rows = [
        [r["kind"], r["tokens"], f"{r['cpu_ms']:.2f}", f"{r['tpu_kb'] / 1e3:.1f}"]
        for r in read("measured/wide_tries")["steps"]
    ]
    return table(["", "tokens", "CPU ms", "MB in HBM on a v5e"], rows)


def size_of_a_wide_trie() -> list[str]:
    """What the trie of the page has, and what it takes."""
    found = read("measured/wide_tries")
    size = f"{found['megabytes']:.0f} MB in {found['seconds']:.0f} s"
    nodes = f"{found['nodes'] / 1e6:.1f} million nodes, {found['nodes with bits']:,} of them"
    return [f"{found['sequences']:,} random sequences", nodes, size]


def price() -> str:
    """How many times as long a reproducible model takes."""
    rows = [
        [*name.rsplit(", ", 1), x] for name, x in read("measured/reproducible")["price"].items()
    ]
    return table(["model", "batch", "times as long"], rows)


def families(found: Mapping[str, Any]) -> str:
    """All families beside ``transformers``, from the rows of ``tests/models/compare.py``."""
    rows = [
        [f"`{name}`", f"`{r['network']}`", f"`{r['beside']}`", f"{r['logits']:.1e}"]
        + [f"{r[way]} of {r['tokens']}" for way in ("greedy", "beams")]
        for name, r in sorted(found.items())
    ]
    words = ["largest difference of logits", "other tokens, greedy", "other tokens, beams"]
    return table(["network", "class", "class of `transformers`", *words], rows)


def printed(name: str) -> Callable[[], str]:
    """A table of drafters or verifiers, whose rows are as a command printed them."""

    def made() -> str:
        found = read("measured/verifiers")[name]
        return table(found["columns"], found["rows"])

    return made


def fewer(rows: str) -> Callable[[], str]:
    """The table of pass@k or of votes, as the command prints it."""
    return lambda: pass_at_k.markdown(read("measured/pass_at_k")[rows])


COMPARED = (
    "same token",
    "even spread",
    "accepted of the optimum",
    "several drafts",
    "dynamic trees",
    "copied drafts",
    "a head of EAGLE-3",
    "equal sequences",
)


def ledger_table(
    results: str, tables: Callable[[Any], dict[str, str]], name: str
) -> Callable[[], str]:
    """The table of that name, of those that the command prints."""
    return lambda: tables(read(results))[name]


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "measured.md": {
        "steps": steps,
        "whole decodes": whole_decodes,
        "beam search": beam_search,
        "best-k search": best_k,
        "assisted generation": assisted,
    },
    "measured/quality_diversity.md": {"quality": quality},
    "measured/pass_at_k.md": {"pass@k": fewer("rows"), "votes": fewer("votes")},
    "measured/rollouts.md": {
        "gradients": lambda: rollouts.markdown(read("measured/rollouts")["rows"]),
    },
    "measured/rollouts_training.md": {
        "training": lambda: rollouts_training.markdown(read("measured/rollouts_training")["rows"]),
    },
    "conditional.md": {
        conditional.TABLE: lambda: conditional.table(read("measured/conditional")),
    },
    "quantization.md": {
        "quality": lambda: quantization.quality_table(read("measured/quantization")),
        "drafts": lambda: quantization.drafts_table(read("measured/quantization")),
    },
    "measured/evaluation.md": {
        "times": lambda: evaluation.markdown(read("measured/evaluation")["rows"])
    },
    "measured/confident_votes.md": {
        "votes by confidence": lambda: confident_votes.markdown(
            read("measured/confident_votes")["rows"]
        ),
    },
    "speculative.md": {"several drafts": printed("several drafts")},
    "measured/verifiers.md": {name: printed(name) for name in COMPARED},
    "measured/speculative.md": {"speculation": speculation},
    "measured/heads.md": {"heads": heads},
    "measured/models.md": {"families": lambda: families(read("measured/models")["rows"])},
    "measured/constraints.md": {
        "suites": suites,
        "seconds": seconds,
        "steps of constraints": constrained_steps,
        "masks": masks,
        "forced tokens": forced_tokens,
        "wide tries": wide_tries,
    },
    "measured/reproducible.md": {"equal bits": equal_bits, "the price": price},
    "measured/large_models.md": {
        **{
            name: ledger_table("measured/large_models", large_models.tables, name)
            for name in large_models.TASKS
        },
        "experts": lambda: experts.markdown(read("measured/experts")),
        "peers": lambda: cpu_translation.markdown(read("measured/cpu_translation")),
    },
    "measured/growth.md": {
        name: ledger_table("measured/growth", growth.tables, name) for name in ("growth", "jobs")
    },
}
"""The tables of each page of ``docs``, by their marks."""


def narrow_weights() -> list[str]:
    """What a step of Llama 8B reads with narrow weights, and what it takes of a chip."""
    rows = read("tpu_ledger")["rows"]
    of_8b = "greedy | Llama 8B, {} | v5e:2x4 | 1x1 | batch 8 | 512+512"
    int8, int4 = (rows[of_8b.format(weights)] for weights in ("int8", "int4"))
    read_by = [f"{row['step_bytes'] / 2**30:.1f} GB" for row in (int8, int4)]
    taken = [f"{memory_gb(row):.1f}" for row in (int8, int4)]
    return [
        f"reads {read_by[0]} with int8 and {read_by[1]} with int4",
        f"with {taken[0]} and {taken[1]} GB of 16",
    ]


def narrow_quality() -> list[str]:
    """What narrow weights cost in quality, on how much, and what a narrow draft reads."""
    found = read("measured/quantization")
    for row in found["quality"]:
        for name in ("bleu", "bits") if row["weights"] == "int8" else ("bleu",):
            _, low, high = row[f"{name}_above"] or (0.0, 0.0, 0.0)
            assert low <= 0 <= high
    [int4, int4_32] = [
        shown(row["bits_above"], 4)
        for row in found["quality"]
        if row["dtype"] == "float32" and row["weights"].startswith("int4")
    ]
    count, size, files = (found[name] for name in ("draft_tokens", "characters", "files"))
    drafted = {"int8": 1 + count / 2, "int4": 1 + 0.26 * count}
    each = {
        weights: bytes_read / row["tokens"]
        for weights, bytes_read in drafted.items()
        for row in found["drafts"]
        if (row["model"], row["weights"], row["verifier"]) == ("python-code", weights, "greedy")
    }
    return [
        f"greedily, on {found['sentences']:,} held-out sentences",
        f"on the first {size:,} characters of each of {files} held-out files",
        f"rise by {int4} in groups of 128 and by {int4_32} in groups of 32",
        f"{found['inputs']} inputs, {count} drafted tokens at a time",
        f"K = {count} then reads {each['int8']:.2f} and {each['int4']:.2f}",
    ]


def narrow_steps() -> list[str]:
    """What a step took on a GPU with narrow weights."""
    rows = read("measured/accelerator")["rows"]
    of_1b = "decoding_jax | 1B {} | greedy | 8 x 1 | 128+256"
    names = ("int8", "int4", "bfloat16")
    ms = {name: f"{1000 * rows[of_1b.format(name)]['step_s']:.2f} ms" for name in names}
    return [f"{ms['int8']} with int8, {ms['int4']} with int4 and {ms['bfloat16']} in bfloat16"]


def few_texts() -> list[str]:
    """How biased an estimate is that rests on few accepted texts."""
    found = read("measured/conditional")
    [last] = [e for e in found["entries"] if e["name"] == "conditional_sample"]
    return [f"by a factor of {last['estimate'] / found['language']:.2f} for four"]


def shares_of_bandwidth() -> list[str]:
    """How near steps of greedy decoding came to what a GPU's memory can do."""
    found = read("measured/accelerator")
    of = "decoding_jax | {} bfloat16 | greedy | {} x 1 | 128+256"
    names = [of.format(model, rows) for model in ("1B", "8B") for rows in (1, 8)]
    shares = [report.share(found["rows"][name], found["device"]) or 0.0 for name in names]
    words = "of the memory's bandwidth for one row and for eight of greedy decoding in bfloat16"
    return [f"at {min(shares):.2f} to {max(shares):.2f} {words}"]


def beside_predictions() -> list[str]:
    """How many times as long a step took on a GPU as was predicted."""
    measured, predicted = read("measured/accelerator")["rows"], read("gpu_ledger")["rows"]
    times = []
    for row in predicted.values():
        made = row["setting"]
        lanes = 4 if made["strategy"] == "beam_search" else 1
        name = (
            f"decoding_jax | {made['model']} {made['weights']} | {made['strategy']} | "
            f"{made['rows']} x {lanes} | {made['prompt_length']}+256"
        )
        if name in measured:
            times.append(measured[name]["step_s"] / row["predicted_seconds"])
    return [f"takes {min(times):.2f} to {max(times):.2f} times as long, for greedy decoding and"]


def drafts_beside_the_optimum() -> list[str]:
    """How much ``block`` accepts of several drafts, and how many texts are equal on networks."""
    found = read("measured/verifiers")
    columns, rows = (found["accepted of the optimum"][part] for part in ("columns", "rows"))
    numbers = [dict(zip(columns, map(float, row), strict=True)) for row in rows]
    assert all(row["block"] > row["token"] for row in numbers)
    share = min(row["block"] / row["optimum"] for row in numbers)
    more = sum(row["block"] > max(row["traversal"], row["ordered"]) for row in numbers)
    equal = [row[3] for row in found["equal sequences"]["rows"] if row[0].startswith("`code`")]
    return [
        f"accepts at least {math.floor(100 * share)}% of it and more tokens than `token` in every",
        f"since `block` accepts more in {more} of the {len(rows)} rows",
        f"with `code` {equal[0]} at temperature 1 and {equal[1]} at 0.5",
    ]


def gradients_of_groups() -> list[str]:
    """What spread groups gain, where the first token decides and where the whole text does."""
    rows = read("measured/rollouts")["rows"]
    names = ("sampler", "sharpness", "reward", "G", "advantage")
    of = {tuple(row[name] for name in names): row for row in rows}
    errors = {key: row["ratio"][0] for key, row in of.items()}
    first, whole = (
        [f"{errors['lattice', 1.0, reward, count, 'group']:.2f}" for count in (4, 16)]
        for reward in ("first", "whole")
    )
    divided, other = 0.0, 0.0
    for (sampler, *setting, advantage), error in errors.items():
        if sampler == "lattice" and advantage == "normalised":
            divided = max(divided, abs(error - errors["lattice", *setting, "group"]))
        if not sampler.startswith("QuasiMoTTo"):
            other = max(other, abs(error - errors["lattice", *setting, advantage]))
    few = of["lattice", 1.0, "first", 4, "group"]
    equal = [f"{100 * share:.0f}%" for share in (few["equal"][0], few["equal_independent"])]
    return [
        f"is {first[0]} of that of independent samples with groups of 4 and {first[1]} with 16; "
        f"where the whole text does, {whole[0]} and {whole[1]}.",
        f"with 4 samples {equal[0]} in the place of {equal[1]} where the first token decides",
        f"changes these ratios by at most {math.ceil(100 * divided) / 100:.2f}",
        f"no ratio is further than {math.ceil(100 * other) / 100:.2f} from that",
    ]


def last_certificate() -> list[str]:
    """What the last full run of the certificate found."""
    found = read("certificate")
    return [
        f"a run of {found['date']} on two cores, with jax {found['versions']['jax']}: "
        f"{found['cases']} cases, none of which failed; at most {found['statistical_tests']:,} "
        f"statistical tests, the smallest p-value {found['smallest_p']:.1e}; "
        f"{found['cpu_seconds']:,} seconds of processor time, in "
        f"{found['wall_seconds'] / 60:.0f} minutes"
    ]


SENTENCES: dict[str, tuple[Callable[[], list[str]], ...]] = {
    "../README.md": (shares_of_bandwidth,),
    "certificate.md": (last_certificate,),
    "conditional.md": (few_texts,),
    "gpu.md": (beside_predictions,),
    "measured/constraints.md": (size_of_a_wide_trie,),
    "quantization.md": (narrow_weights, narrow_quality, narrow_steps),
    "rollouts.md": (gradients_of_groups,),
    "speculative.md": (drafts_beside_the_optimum,),
}
"""Words of pages whose numbers are those of results."""


def write(docs: Path) -> None:
    """Writes all tables between their marks.

    Args:
      docs: the folder of the pages, in which those of ``PAGES`` are.
    """
    for page, tables in PAGES.items():
        write_tables(docs / page, {name: made().strip() for name, made in tables.items()})


if __name__ == "__main__":
    write(DOCS)
