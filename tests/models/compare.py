"""Prints what random networks of all families give beside transformers, as a table in Markdown.

    python tests/models/compare.py [FAMILY ...] [--out runs/models.json]

Each network has ragged prompts. Its logits are compared in a prefill and in a block of several
tokens, and its tokens in greedy decoding and in beam search, with those of ``transformers`` for one
row at a time. Results are kept in a file after each family, so that a run that was killed
continues; families that are named are compared again, and no others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
import exam
import jax
import numpy as np
import torch
import transformers
from examples import FAMILIES
from families import torch_model
from test_parity import torch_reference
from tqdm import tqdm

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.models.checkpoint import load_model
from decoding_jax.testing.certificate import devices
from experiments import tables
from experiments.results import read_json, write_json

STEPS, BEAMS = 8, 3

greedy = jax.jit(decoding_jax.greedy, static_argnames="max_new_tokens")
beam_search = jax.jit(decoding_jax.beam_search, static_argnames=("beam_size", "max_new_tokens"))


def difference(model: Any, reference: Any, asked: dict[str, np.ndarray]) -> float:
    """The largest difference of logits after prompts, and after each token of a block."""
    output, cache = exam.prefill(model, asked["prompt"], asked["length"])
    block, _ = exam.extend(model, cache, asked["chain_tokens"], 0)
    answer, largest = torch_reference(reference, asked), 0.0
    for b, w in np.ndindex(exam.ROWS, exam.LANES):
        want = answer(b, asked["chain_tokens"][b, w].tolist())
        found = np.concatenate([output.logits[b, 0], block.logits[b, w]])
        largest = max(largest, float(np.abs(found - want).max()))
    return largest


def tokens_of(reference: Any, asked: dict[str, np.ndarray], beams: int) -> np.ndarray:
    """The tokens ``[B, STEPS]`` that transformers gives, one row at a time."""
    rows = []
    for b, length in enumerate(asked["length"]):
        text = torch.tensor(asked["prompt"][b : b + 1, :length])
        ids = {"input_ids": text}
        if reference.config.is_encoder_decoder:
            source = torch.tensor(asked["source"][b : b + 1, : asked["source_length"][b]])
            ids = {"input_ids": source, "decoder_input_ids": text}
        ids["attention_mask"] = torch.ones_like(ids["input_ids"])
        reference.generation_config = transformers.GenerationConfig(
            num_beams=beams,
            max_new_tokens=STEPS,
            do_sample=False,
            pad_token_id=0,
            decoder_start_token_id=int(text[0, 0]),
        )
        with torch.no_grad():
            rows.append(reference.generate(**ids)[0, length:].numpy())
    return np.stack(rows)


def compared(family: str) -> dict[str, Any]:
    """The row of a family."""
    reference = torch_model(family, seed=1)
    asked = exam.questions(family, seed=2)
    with tempfile.TemporaryDirectory() as directory:
        reference.save_pretrained(directory)
        model = load_model(directory)
    bound = exam.bound(model, asked)
    prompt = Prompt(asked["prompt"], asked["length"])
    found = {
        1: greedy(bound, prompt, max_new_tokens=STEPS).tokens,
        BEAMS: beam_search(bound, prompt, beam_size=BEAMS, max_new_tokens=STEPS).tokens,
    }
    other = {
        beams: int((np.asarray(tokens)[:, 0] != tokens_of(reference, asked, beams)).sum())
        for beams, tokens in found.items()
    }
    return {
        "network": type(model).__name__,
        "beside": type(reference).__name__,
        "logits": difference(bound, reference, asked),
        "tokens": exam.ROWS * STEPS,
        "greedy": other[1],
        "beams": other[BEAMS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES], metavar="FAMILY")
    parser.add_argument("--out", type=Path, default=Path("runs/models.json"))
    args = parser.parse_args()
    devices.prepare_host(1, quick=True)
    jax.config.update("jax_disable_most_optimizations", True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = read_json(args.out)["rows"] if args.out.exists() else {}
    missing = [family for family in FAMILIES if family not in rows]
    for family in tqdm(args.families or missing, unit="family"):
        rows[family] = compared(family)
        write_json(args.out, {"rows": rows})
        jax.clear_caches()  # no other family shares a program
    print(tables.families(rows))


if __name__ == "__main__":
    main()
