"""Prints what random networks of families give beside transformers, as a table in Markdown.

    python tests/models/compare.py [FAMILY ...]

Each network has ragged prompts. Its logits are compared in a prefill, in blocks, in a tree and
after moves, and its tokens in greedy decoding and in beam search, with those of ``transformers``
for one row at a time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import exam
import numpy as np
import torch
import transformers
from examples import DATA
from families import torch_model
from test_parity import torch_reference

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.models.checkpoint import load_model

STEPS, BEAMS = 8, 3


def differences(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> float:
    """The largest difference of logits."""
    return max(float(np.abs(got[part] - want[part]).max()) for part in exam.PARTS)


def tokens_of(reference: Any, asked: dict[str, np.ndarray], beams: int) -> np.ndarray:
    """The tokens ``[B, STEPS]`` that transformers gives, one row at a time."""
    reference.generation_config.eos_token_id = None
    rows = []
    for row, length in zip(asked["prompt"], asked["length"], strict=True):
        text = torch.tensor(row[None, :length])
        settings = {"num_beams": beams, "max_new_tokens": STEPS, "do_sample": False}
        with torch.no_grad():
            rows.append(reference.generate(text, pad_token_id=0, **settings)[0, length:].numpy())
    return np.stack(rows)


def row_of(family: str) -> str:
    """The row of a family."""
    reference = torch_model(family, seed=1)
    asked = exam.questions(family, seed=2)
    want = exam.expected(asked, torch_reference(reference, asked))
    with tempfile.TemporaryDirectory() as directory:
        reference.save_pretrained(directory)
        model = load_model(directory)
    largest = differences(exam.answers(model, asked, step=3), want)
    prompt = Prompt(asked["prompt"], asked["length"])
    greedy = decoding_jax.greedy(model, prompt, max_new_tokens=STEPS).tokens[:, 0]
    best = decoding_jax.beam_search(model, prompt, beam_size=BEAMS, max_new_tokens=STEPS)
    other = [
        int((np.asarray(found) != tokens_of(reference, asked, beams)).sum())
        for found, beams in ((greedy, 1), (best.tokens[:, 0], BEAMS))
    ]
    name, size = type(reference).__name__, float(np.std(want["chain"]))
    return f"| `{family}` | `{name}` | {size:.2f} | {largest:.1e} | {other[0]} | {other[1]} |"


def main(families: list[str]) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print("| family | beside | logits, spread | largest difference | greedy | beams |")
    print("| --- | --- | --- | --- | --- | --- |")
    for family in families or DATA:
        print(row_of(family), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
