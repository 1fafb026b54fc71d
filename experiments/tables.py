"""Writes the tables of the pages again from the committed results, without measuring again.

    python -m experiments.tables

Like the figures (``python -m experiments.figures``), each table has a file of results in ``docs/``,
which the command named on its page wrote. ``docs/papers`` is written by the commands of
``experiments.papers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import conditional, pass_at_k, rollouts, rollouts_training
from experiments.papers.results import table
from experiments.results import read_json, write_tables
from experiments.tpu_ledger.report import memory_gb

DOCS = Path(__file__).parents[1] / "docs"


def read(name: str) -> Any:
    """The results of that name, such as ``measured/beam_search``."""
    return read_json(DOCS / f"{name}.json")


def interval(value: Sequence[float], digits: int) -> str:
    """An estimate and its 95% interval.

    Example:
      >>> interval([0.5, 0.25, 0.75], 2)
      '0.50 (0.25 to 0.75)'
    """
    middle, low, high = (f"{x:.{digits}f}" for x in value)
    return f"{middle} ({low} to {high})"


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
        [name, *(interval(row[c], 2 if c == "distinct-2" else 1) for c in columns)]
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
            *(interval(r[k]["tokens"], 2) for k in ("greedy", "drawn")),
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


def price() -> str:
    """How many times as long a reproducible model takes."""
    rows = [
        [*name.rsplit(", ", 1), x] for name, x in read("measured/reproducible")["price"].items()
    ]
    return table(["model", "batch", "times as long"], rows)


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
    "speculative.md": {"several drafts": printed("several drafts")},
    "measured/verifiers.md": {name: printed(name) for name in COMPARED},
    "measured/speculative.md": {"speculation": speculation},
    "measured/heads.md": {"heads": heads},
    "measured/reproducible.md": {"equal bits": equal_bits, "the price": price},
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


def few_texts() -> list[str]:
    """How biased an estimate is that rests on few accepted texts."""
    found = read("measured/conditional")
    [last] = [e for e in found["entries"] if e["name"] == "conditional_sample"]
    return [f"by a factor of {last['estimate'] / found['language']:.2f} for four"]


SENTENCES: dict[str, tuple[Callable[[], list[str]], ...]] = {
    "quantization.md": (narrow_weights,),
    "conditional.md": (few_texts,),
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
