"""The ledger as Markdown tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from experiments import results
from experiments.tpu_ledger.rows import HBM_GB, model_name

LARGE = ("Llama 70B", "Llama 8B", "T5 1.1 XXL")
"""The models that one chip of v5e does not hold."""
LEDGER = "measured/tpu_ledger.md"
_HEAD = (
    "| strategy | model | slice | data x model | batch | GB of a chip | over the floor |"
    " over `model` | over `data` | compiled in |"
)


def write(ledger: dict[str, Any], page: Path) -> None:
    """Writes what fits into a page, and the ledger into ``measured`` beside it.

    Args:
      ledger: the file's contents.
      page: a Markdown file with the lines of ``results.marks``.
    """
    made = tables(ledger)
    results.write_tables(page.parent / LEDGER, {"the ledger": made.pop("the ledger")})
    results.write_tables(page, made)


def tables(ledger: dict[str, Any]) -> dict[str, str]:
    """The tables of both pages by their names."""
    return {"what fits": what_fits(ledger), "the ledger": table(ledger)}


def what_fits(ledger: dict[str, Any]) -> str:
    """The memory that greedy decoding with the large models takes, from few chips to many."""
    lines = [
        "| model | rows | prompt and new tokens | chips | slice and mesh | GB of a chip |",
        "| --- " * 6 + "|",
    ]
    rows = [row for row in ledger["rows"].values() if row["setting"]["model"] in LARGE]
    for row in sorted(rows, key=lambda row: (_chips(row), _order(row))):
        s = row["setting"]
        if s["strategy"] == "greedy":
            length = f"{s['prompt_length']:,} and {s['max_new_tokens']:,}"
            place = f"{s['topology']}, {s['mesh'][0]}x{s['mesh'][1]}"
            cells = [_model(row), str(s["batch"]), length, str(_chips(row)), place, _memory(row)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _chips(row: dict[str, Any]) -> int:
    return math.prod(row["setting"]["mesh"])


def table(ledger: dict[str, Any]) -> str:
    """The rows as a table."""
    lines = [_HEAD, "| --- " * 10 + "|"]
    for row in sorted(ledger["rows"].values(), key=_order):
        s = row["setting"]
        mesh = "x".join(map(str, s["mesh"]))
        place = [s["strategy"], _model(row), s["topology"], mesh, str(s["batch"])]
        lines.append("| " + " | ".join([*place, *_figures(row)]) + " |")
    return "\n".join(lines)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    s = row["setting"]
    return _model(row), s["topology"], s["mesh"], s["batch"], s["strategy"]


def _model(row: dict[str, Any]) -> str:
    return model_name(row["setting"]["model"], row["setting"].get("weights"))


def memory_gb(row: dict[str, Any]) -> float:
    """What a program takes of a chip's memory, in 2**30 bytes."""
    memory = row["memory"]
    used = memory["argument"] + memory["temp"] + memory["output"] - memory["alias"]
    return (used + memory["generated_code"]) / 2**30


def ratio(row: dict[str, Any]) -> float | None:
    """The HBM bytes of a step over the parameters and the cache."""
    return row["step_bytes"] / row["floor_bytes"] if row.get("floor_bytes") else None


def _memory(row: dict[str, Any]) -> str:
    size = HBM_GB[row["setting"]["topology"].split(":")[0]]
    return f"more than {size}" if "error" in row else f"{memory_gb(row):.1f} of {size}"


def _figures(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [_memory(row), "", "", "", ""]
    over = ratio(row)
    axes = [_collectives(row, axis) for axis in ("model", "data")]
    floor = "" if over is None else f"{over:.2f}"
    return [_memory(row), floor, *axes, f"{row['compile_cpu_s']:.0f} s"]


def _collectives(row: dict[str, Any], axis: str) -> str:
    parts = []
    for name, found in row["collectives"].items():
        kind, over = name.split(" over ")
        if over == axis:
            parts.append(f"{found['count']} {kind}, {_bytes(found['bytes'])}")
    return "; ".join(parts)


def _bytes(number: int) -> str:
    for unit, size in (("MB", 2**20), ("KB", 2**10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
