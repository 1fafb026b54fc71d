"""Times decoding, side by side with what else there is; prints ratios, writes JSON and plots.

    python experiments/benchmarks/run.py --out runs/benchmarks

The sampling step alone, beside a softmax, an argmax and ``jax.random.categorical``; best-k search
beside a beam search of the same budget; speculative decoding beside plain decoding and theory; and,
where ``transformers`` is installed, whole decodes of the embedded model beside it on the same
weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.benchmarks import best_k, sampling_step, speculative, whole_decode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON and plots")
    args = parser.parse_args()
    sampling_step.measure(args.out)
    best_k.measure(args.out)
    speculative.measure(args.out)
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        whole_decode.measure(args.out)
    else:
        print("whole decodes: left out, transformers and torch are not installed")


if __name__ == "__main__":
    main()
