"""The results as lines, as Markdown tables, and as a plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import results
from experiments.benchmarks.accelerator.settings import OURS, TRANSFORMERS, Setting

FIGURE = "accelerator.png"
LEAST_PREFILL = 4096
"""Prefills of fewer tokens are no large products, and are not in the table of prefills."""


def share(row: dict[str, Any], device: dict[str, Any]) -> float | None:
    """The part of a step in which the device could have read all that the step needs."""
    if "floor_bytes" not in row:
        return None
    return row["floor_bytes"] / device["bandwidth"] / row["step_s"]


def prefill_share(row: dict[str, Any], device: dict[str, Any]) -> float:
    """The part of the time of the first token in which the device could have done its products."""
    return row["prefill_operations"] / device["product"] / row["first_s"]


def line(name: str, found: dict[str, Any]) -> str:
    """A row as a line of text."""
    row, device = found["rows"][name], found.get("device", {})
    if "error" in row:
        return f"{name}: {row['error']}"
    parts = [f"step {1e3 * row['step_s']:.3f} ms"]
    if (of_floor := share(row, device)) is not None:
        parts.append(f"{of_floor:.2f} of the floor")
    if "parts_s" in row:
        parts.append(f"{row['step_s'] / row['parts_s']:.2f} times its parts")
        parts.append(f"{row['tokens_a_block']:.2f} tokens")
    parts.append(f"first token {1e3 * row['first_s']:.1f} ms")
    if "prefill_operations" in row:
        parts.append(f"{prefill_share(row, device):.2f} of the peak")
    return f"{name}: {', '.join(parts)}, compiled in {row['compile_s']:.1f} s"


def _place(name: str) -> str:
    return "\n".join(results.marks(name))


PAGE = f"""# Measured on one device

{_place("the device")}

## Steps

{_place("the steps")}

- **of the floor**: the bytes of the weights that a step needs and of the keys and values in use
  half way, each read once, over the measured bandwidth, over the time of a step. What cannot be
  avoided besides, such as reading logits of all beams, is not part of the floor, so 1 is not in
  reach of searches.
- **transformers**: with a static cache and compiled; its beams have a cache that grows. Its figure
  is empty where it was not measured.

## Speculation

{_place("the blocks")}

A block drafts four tokens and verifies them in one call. **over its parts** is its time over that
of four calls of the draft and one of the model with five tokens, in loops that choose no tokens.
The small draft is the first two layers of the model, the own draft is the model itself, and the
int8 draft is the model in 8 bits. **tokens** are those of a row and block; weights are random, so
they say nothing about real drafts.

## Prefills

{_place("the prefills")}

**of the peak**: the multiplications and additions of the products, with causal attention counted
half, over those that the large product reaches in the time of the first token.
"""
"""A page without results, for a report into a new file."""


def write(found: dict[str, Any], page: Path) -> None:
    """Writes the tables into a page, which is made if it is missing, and the plot beside it."""
    if not page.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE, "utf-8")
    results.write_tables(page, tables(found))
    plot(found, page.parent / "figures" / FIGURE)


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The tables of a page by their names."""
    return {
        "the device": device(found["device"]),
        "the steps": _table(
            "model, strategy, rows, lanes, prompt, step, of the floor, tokens a second,"
            " transformers, compiled in",
            steps(found),
        ),
        "the blocks": _table(
            "model, draft, rows, block, over its parts, of the floor, tokens, compiled in",
            blocks(found),
        ),
        "the prefills": _table(
            "model, rows, prompt, first token, of the peak, transformers", prefills(found)
        ),
    }


def _table(head: str, rows: Iterator[list[str]]) -> str:
    names = head.split(", ")
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (names, ["---"] * len(names), *rows)
    )


def device(device: dict[str, Any]) -> str:
    """A sentence about the device."""
    return (
        f"{device['kind']}, JAX {device['jax']}, Python {device['python']}, {device['date']}."
        f" A copy moves {device['bandwidth'] / 1e12:.2f} TB/s, counting bytes read and written, and"
        f" a product of 8,192 x 8,192 bfloat16 matrices runs at {device['product'] / 1e12:.0f}"
        " TFLOP/s."
    )


def _rows(found: dict[str, Any]) -> Iterator[tuple[Setting, dict[str, Any], dict[str, Any]]]:
    """This library's settings and rows in order, each with the peer's row, which may be empty."""
    for row in sorted(found["rows"].values(), key=_order):
        setting = Setting(**row["setting"])
        if setting.library == OURS:
            peer = Setting(**{**row["setting"], "library": TRANSFORMERS})
            yield setting, row, found["rows"].get(peer.name(), {})


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    s = Setting(**row["setting"])
    return s.model, s.weights, s.prompt_length, s.strategy != "greedy", s.strategy, s.rows


def _milliseconds(row: dict[str, Any], name: str) -> str:
    return f"{1e3 * row[name]:.{1 if row[name] > 0.1 else 2}f} ms" if name in row else ""


def _model(setting: Setting) -> str:
    return setting.model if setting.weights == "bfloat16" else f"{setting.model} {setting.weights}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def steps(found: dict[str, Any]) -> Iterator[list[str]]:
    """The cells of the steps, beside those of the peer."""
    for s, row, peer in _rows(found):
        if "parts_s" in row:
            continue
        cells = [_model(s), s.strategy, str(s.rows), str(s.lanes), f"{s.prompt_length:,}"]
        if "error" in row:
            yield [*cells, row["error"], "", "", _milliseconds(peer, "step_s"), ""]
            continue
        yield [
            *cells,
            _milliseconds(row, "step_s"),
            _ratio(share(row, found["device"])),
            f"{s.sequences / row['step_s']:,.0f}",
            _milliseconds(peer, "step_s"),
            f"{row['compile_s']:.0f} s",
        ]


def blocks(found: dict[str, Any]) -> Iterator[list[str]]:
    """The cells of the blocks of speculation."""
    for s, row, _ in _rows(found):
        if "parts_s" in row:
            yield [
                _model(s),
                s.strategy.partition(", ")[2],
                str(s.rows),
                _milliseconds(row, "step_s"),
                _ratio(row["step_s"] / row["parts_s"]),
                _ratio(share(row, found["device"])),
                _ratio(row["tokens_a_block"]),
                f"{row['compile_s']:.0f} s",
            ]


def prefills(found: dict[str, Any]) -> Iterator[list[str]]:
    """The cells of the prefills of greedy decoding."""
    for s, row, peer in _rows(found):
        tokens = s.rows * s.prompt_length
        if s.strategy == "greedy" and tokens >= LEAST_PREFILL and "first_s" in row:
            yield [
                _model(s),
                str(s.rows),
                f"{s.prompt_length:,}",
                _milliseconds(row, "first_s"),
                _ratio(prefill_share(row, found["device"])),
                _milliseconds(peer, "first_s"),
            ]


def plot(found: dict[str, Any], path: Path) -> None:
    """The shares of the floor, and those of the peer."""
    from experiments import drawing

    rows = [(s, row, peer) for s, row, peer in _rows(found) if "step_s" in row]
    figure, [axes] = drawing.panels(1, 1, 0.25 * len(rows) + 0.9)
    shares = [share(row, found["device"]) for _, row, _ in rows]
    axes.barh(range(len(rows)), shares, label="decoding_jax", **drawing.bar(0))
    beside = [
        (y, ours * row["step_s"] / peer["step_s"])
        for y, (ours, (_, row, peer)) in enumerate(zip(shares, rows, strict=True))
        if ours is not None and "step_s" in peer
    ]
    if beside:
        places, values = zip(*beside, strict=True)
        style = {**drawing.look(1), "markersize": 8, "markeredgecolor": "white"}
        axes.plot(values, places, linestyle="none", label="transformers", **style)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    axes.set_yticks(range(len(rows)), [_label(s) for s, _, _ in rows], fontsize=9)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, 1.05)
    axes.invert_yaxis()
    axes.margins(y=0.02)
    axes.set_xlabel("share of the floor")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.save(figure, path)


def _label(s: Setting) -> str:
    rows = "1 row" if s.rows == 1 else f"{s.rows} rows"
    lanes = f" of {s.lanes}" if s.lanes > 1 else ""
    prompt = f", prompt {s.prompt_length:,}" if s.prompt_length > 128 else ""
    weights = f", {s.weights}" if s.weights != "bfloat16" else ""
    return f"{s.model}, {s.strategy}, {rows}{lanes}{prompt}{weights}"
