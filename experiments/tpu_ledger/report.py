"""The ledger as Markdown tables and a plot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from experiments.tpu_ledger.rows import HBM_GB

LARGE = ("Llama 70B", "Llama 8B", "T5 1.1 XXL")
"""The models that one chip of v5e does not hold."""
_HEAD = (
    "| strategy | model | slice | data x model | batch | GB of a chip | over the floor |"
    " over `model` | over `data` | compiled in |"
)


def write(ledger: dict[str, Any], page: Path) -> None:
    """Writes the tables between the marks of a page, and the plot beside it.

    Args:
      ledger: the file's contents.
      page: a Markdown file with the lines of ``marks`` for each name in ``tables``.
    """
    text = page.read_text()
    for name, lines in tables(ledger).items():
        begin, end = marks(name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{lines}\n\n{end}{rest.split(end)[1]}"
    page.write_text(text)
    plot(ledger, page.parent / "figures" / "tpu_ledger.png")


def marks(name: str) -> tuple[str, str]:
    """The lines of a page between which a table is."""
    return f"<!-- {name} begins -->", f"<!-- {name} ends -->"


def tables(ledger: dict[str, Any]) -> dict[str, str]:
    """The tables of the page by their names."""
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
            cells = [s["model"], str(s["batch"]), length, str(_chips(row)), place, _memory(row)]
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
        place = [s["strategy"], s["model"], s["topology"], mesh, str(s["batch"])]
        lines.append("| " + " | ".join([*place, *_figures(row)]) + " |")
    return "\n".join(lines)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    s = row["setting"]
    return s["model"], s["topology"], s["mesh"], s["batch"], s["strategy"]


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


def plot(ledger: dict[str, Any], path: Path) -> None:
    """The bytes of a step over the floor, and the memory of a chip."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in sorted(ledger["rows"].values(), key=_order) if "error" not in r]
    floors = [r for r in rows if ratio(r) is not None and r["setting"]["model"] == "Llama 1B"]
    large = [r for r in rows if r["setting"]["model"] in LARGE]
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    left.barh([_label(r) for r in floors], [ratio(r) for r in floors], color="tab:blue")
    left.axvline(1, color="black", linewidth=1)
    left.set_xlabel("HBM bytes of a step over parameters and cache (bytes, not time)")
    left.set_title("Llama 1B on v5e")
    used = [memory_gb(r) for r in large]
    sizes = [HBM_GB[r["setting"]["topology"].split(":")[0]] for r in large]
    names = [f"{r['setting']['model']}, {_label(r, topology=True)}" for r in large]
    right.barh(names, sizes, color="lightgray", label="memory of a chip")
    right.barh(names, used, color="tab:orange", label="used")
    right.set_xlabel("GB")
    right.set_title("Memory of a chip")
    right.legend(loc="upper right")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _label(row: dict[str, Any], *, topology: bool = False) -> str:
    s = row["setting"]
    place = f"{s['topology']} " if topology else ""
    return f"{s['strategy']}, {place}{s['mesh'][0]}x{s['mesh'][1]}, batch {s['batch']}"
