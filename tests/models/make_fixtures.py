"""Writes ``fixtures``: a tiny network of every family, and what transformers answers.

    python tests/models/make_fixtures.py [FAMILY ...]

The fixtures hold the line where transformers is not installed. They are random and carry no
licence. One is in two shards, with an index; one is in float32, the others in bfloat16.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import exam
import safetensors.numpy
import torch
from examples import FAMILIES
from families import FIXTURES, torch_model
from test_parity import torch_reference

# With seed 0, a Gemma 4 magnifies rounding at one position: float32 and float64 differ by 5e-5 in
# transformers too, and compilers by more than the test allows.
SEEDS = {"gemma4": 3}


def main(families: list[str]) -> None:
    for family in families or FAMILIES:
        shutil.rmtree(FIXTURES / family, ignore_errors=True)
        model = torch_model(family, seed=SEEDS.get(family, 0))
        asked = exam.questions(family, seed=SEEDS.get(family, 0))
        answers = exam.expected(asked, torch_reference(model, asked))
        if family != "gpt2":
            model = model.to(torch.bfloat16)
        model.save_pretrained(
            FIXTURES / family, max_shard_size="8KB" if family == "llama3" else "1GB"
        )
        (FIXTURES / family / "generation_config.json").unlink(missing_ok=True)
        safetensors.numpy.save_file(asked | answers, FIXTURES / family / "expected.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:])
