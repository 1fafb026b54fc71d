"""Times decoding, side by side with what else there is; prints ratios, writes JSON and plots.

    python -m experiments.benchmarks.run --out runs/benchmarks
    python -m experiments.benchmarks.run --out runs/benchmarks --only beam_search
    python -m experiments.benchmarks.run --out runs/quick --quick

The sampling step alone, beside a softmax, an argmax and ``jax.random.categorical``; best-k search
beside a beam search of the same budget; contrastive search beside greedy decoding; speculative
decoding beside plain decoding and theory; the batch job, refilled, beside buckets; a shared prefix
beside whole prompts; a mixture of experts in four ways; whole translations on a CPU beside
CTranslate2; and, where ``transformers`` is installed, whole decodes and beam searches of the
embedded model beside it on the same weights.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import quick
from experiments.benchmarks import (
    batch_job,
    beam_search,
    best_k,
    contrastive,
    cpu_translation,
    experts,
    sampling_step,
    shared_prefix,
    speculative,
    whole_decode,
)

BENCHMARKS: dict[str, Callable[..., None]] = {
    "sampling_step": sampling_step.measure,
    "whole_decode": whole_decode.measure,
    "beam_search": beam_search.measure,
    "best_k": best_k.measure,
    "contrastive": contrastive.measure,
    "speculative": speculative.measure,
    "batch_job": batch_job.measure,
    "shared_prefix": shared_prefix.measure,
    "cpu_translation": cpu_translation.measure,
    "experts": experts.measure,
}
QUICK: dict[str, dict[str, Any]] = {
    "sampling_step": {"repeats": 1, "vocabularies": (64,), "row_counts": (8,)},
    "whole_decode": {"repeats": 1, "new_tokens": 4, "cases": [(1, 0)]},
    "beam_search": {"repeats": 1, "points": [(1, 2, 6)]},
    "best_k": {"repeats": 1, "points": [(1, 2, 4)]},
    "contrastive": {"repeats": 1, "points": [(1, 2, 4)]},
    "speculative": {
        "repeats": 1,
        "new_tokens": 5,
        "batches": (1,),
        "sizes": (1,),
        "target_name": quick.MODEL,
        "beside_transformers": False,
    },
    "batch_job": {
        "repeats": 1,
        "batch_sizes": (1,),
        "count": 1,
        "times": 2,
        "strategies": ("greedy",),
        "name": quick.MODEL,
    },
    "shared_prefix": {"repeats": 1, "sizes": (1,), "shared": 64},
    "cpu_translation": {
        "repeats": 1,
        "count": 2,
        "rows": 1,
        "searches": ("greedy",),
        "name": quick.MODEL,
    },
    "experts": {"repeats": 1, "counts": (1, 2), "width": 32, "num_experts": 8},
}
"""The settings of the quick form of each."""
BESIDE_TRANSFORMERS = {"whole_decode", "beam_search"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON and plots")
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="some of them"
    )
    args = quick.parse(parser, argv, {})
    installed = all(importlib.util.find_spec(name) for name in ("transformers", "torch"))
    for name in args.only:
        if name in BESIDE_TRANSFORMERS and not installed:
            print(f"{name}: left out, transformers and torch are not installed")
        else:
            BENCHMARKS[name](args.out, **(QUICK[name] if args.quick else {}))


if __name__ == "__main__":
    main()
