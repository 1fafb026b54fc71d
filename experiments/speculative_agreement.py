"""How often speculation gives, token for token, what the target gives alone.

    python -m experiments.speculative_agreement --out runs/agreement

The embedded pair translates held-out sentences in batches of several sizes: greedily with a draft
model and by prompt lookup, beside ``greedy``; and by code, beside ``arithmetic_sample`` with the
same key. In float32 a product of other shapes rounds otherwise, so a sequence may differ where the
choice was all but undecided. Each first difference is shown with its margin: by how much the choice
would have to be off for both to be right (see ``decoding_jax.testing.near_ties``), of logits or of
probability. Started again with the same settings, it goes on after the last part that was finished.

By code every token of the vocabulary has a boundary at which a choice may turn. In another program
each lies some eps of float32 elsewhere.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from tqdm import tqdm

import decoding_jax
from decoding_jax.strategies.speculative import PromptLookup
from decoding_jax.testing.near_ties import Difference, code_differences, greedy_differences
from decoding_jax.text import bind_drafter, default_stop, encode_batch
from decoding_jax.transforms import Temperature
from experiments import held_out, quick

TARGET, DRAFT = "translation-en-fr", "translation-en-fr-draft"
TEMPERATURES = (1.0, 0.5)
SAMPLES = {1: 16, 4: 8, 16: 4}
"""Of a row, by the number of rows, where decoding is by code."""
QUICK = {
    "batches": [1],
    "calls": 1,
    "verifiers": ["greedy"],
    "target": quick.MODEL,
    "max_new_tokens": 4,
}
MARGINS = {"greedy": 2e-5, "code": 1.6e-4}
"""Logits agree to 1e-5, the probabilities of 32 tokens to half of that for each."""


class Part(NamedTuple):
    """One way of decoding, at one batch size.

    Attributes:
      verifier: ``greedy`` or ``code``.
      drafter: ``draft`` or ``lookup``.
      batch: rows.
      samples: of a row.
      temperature: of both distributions, where decoding is by code.
    """

    verifier: str
    drafter: str
    batch: int
    samples: int
    temperature: float = 0.0

    @property
    def name(self) -> str:
        own = f"-{self.temperature}" if self.temperature else ""
        return f"{self.verifier}-{self.drafter}-{self.batch}x{self.samples}{own}"


def parts_of(batches: list[int]) -> list[Part]:
    """Greedily with both drafters, then by code."""
    parts = []
    for batch in batches:
        parts += [Part("greedy", drafter, batch, 1) for drafter in ("draft", "lookup")]
        parts += [Part("code", "draft", batch, SAMPLES.get(batch, 4), t) for t in TEMPERATURES]
    return parts


def compare(
    part: Part, args: argparse.Namespace, ids: list[list[int]], width: int, key: Any
) -> list[Difference]:
    """The lanes of one batch in which speculation and the target alone differ."""
    (target, tokenizer), (draft, _) = (decoding_jax.load(name) for name in (args.target, DRAFT))
    drafter = bind_drafter(draft if part.drafter == "draft" else PromptLookup(), target, ids, width)
    model, prompt = encode_batch(target, ids, width)
    settings: dict[str, Any] = {"stop": default_stop(tokenizer)}
    settings["max_new_tokens"] = args.max_new_tokens
    if part.verifier == "code":
        settings["num_samples"] = part.samples
        settings["transform"] = Temperature(part.temperature)
    got = decoding_jax.speculative_sample(
        model, drafter, prompt, key, verifier=part.verifier, num_draft_tokens=4, **settings
    )
    if part.verifier == "code":
        want = decoding_jax.arithmetic_sample(model, prompt, key, **settings)
        return code_differences(model, prompt, key, got, want, transform=settings["transform"])
    want = decoding_jax.greedy(model, prompt, **settings)
    return greedy_differences(model, prompt, got, want)


def measure(part: Part, args: argparse.Namespace) -> dict[str, Any]:
    """All batches of a part: how many sequences, and the differences."""
    _, tokenizer = decoding_jax.load(args.target)
    ids = [tokenizer.encode(s.english) for s in held_out.read()]
    width = max(map(len, ids))
    ids = ids[: args.calls * part.batch]
    margins: list[float] = []
    batches = [ids[i : i + part.batch] for i in range(0, len(ids), part.batch)]
    batches = [batch for batch in batches if len(batch) == part.batch]
    for i, batch in enumerate(tqdm(batches, part.name, unit="batch", leave=False)):
        key = jax.random.fold_in(jax.random.key(args.seed), i)
        margins += [d.margin for d in compare(part, args, batch, width, key)]
    sequences = len(batches) * part.batch * part.samples
    return {**part._asdict(), "sequences": sequences, "margins": margins}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=list(SAMPLES))
    parser.add_argument("--calls", type=int, default=64, help="batches of each size")
    parser.add_argument("--verifiers", nargs="+", choices=list(MARGINS), default=list(MARGINS))
    parser.add_argument("--target", default=TARGET, help="a directory, or a name")
    parser.add_argument("--max_new_tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    args.out.mkdir(parents=True, exist_ok=True)

    print("verifier  drafter  rows x samples  sequences  differ  largest margin")
    found: dict[str, list[dict[str, Any]]] = {verifier: [] for verifier in args.verifiers}
    for part in parts_of(args.batches):
        if part.verifier not in found:
            continue
        own = f"{Path(args.target).name}-{args.max_new_tokens}-{args.calls}-{args.seed}"
        path = args.out / f"{part.name}-{own}.json"
        if not path.exists():
            text = json.dumps(measure(part, args))
            path.with_suffix(".tmp").write_text(text + "\n")
            path.with_suffix(".tmp").replace(path)
        row = json.loads(path.read_text())
        found[part.verifier].append(row)
        shape = f"{part.batch} x {part.samples}"
        print(
            f"{part.verifier:8}  {part.drafter:7}  {shape:>14}  {row['sequences']:9d}"
            f"  {len(row['margins']):6d}  {max(row['margins'], default=0.0):14.1e}",
            flush=True,
        )
    failed = False
    for verifier, rows in found.items():
        total = sum(row["sequences"] for row in rows)
        margins = [margin for row in rows for margin in row["margins"]]
        largest, equal = max(margins, default=0.0), 1 - len(margins) / total
        failed |= largest > MARGINS[verifier] or (verifier == "greedy" and equal < 0.999)
        print(f"{verifier}: {total} sequences, {100 * equal:.3f}% equal, margins to {largest:.1e}")
    if failed:
        raise SystemExit(f"FAILED: takes margins below {MARGINS}, and 99.9% equal greedily")


if __name__ == "__main__":
    main()
