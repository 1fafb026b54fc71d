"""Writes ``contrastive_search.json``: what transformers 4 searches with ``penalty_alpha``.

    python tests/strategies/make_contrastive_fixture.py

Version 5 has no contrastive search, so this needs a version 4, such as 4.49. The networks are those
of ``tests/models/fixtures``.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
NETWORKS = HERE.parent / "models" / "fixtures"
# Version 4 has the rotary base of Llama under another name than the fixtures.
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", {}),
    "llama2": ("LlamaForCausalLM", {"rope_theta": 500.0}),
    "t5": ("T5ForConditionalGeneration", {}),
}
PROMPTS = [[5, 9, 11, 2], [8], [6, 12, 30, 21, 7]]
EOS, LENGTH = 17, 12


def main() -> None:
    found = []
    for family, (kind, changes) in FAMILIES.items():
        model = getattr(transformers, kind).from_pretrained(NETWORKS / family, **changes).float()
        model.eval()
        for alpha, top_k in itertools.product((0.2, 0.6, 0.9), (2, 4, 10)):
            rows = [searched(model, prompt, alpha, top_k) for prompt in PROMPTS]
            found.append({"family": family, "alpha": alpha, "top_k": top_k, "tokens": rows})
    lines = ",\n".join(json.dumps(case) for case in found)
    header = json.dumps({"prompts": PROMPTS, "eos": EOS, "length": LENGTH})[:-1]
    (HERE / "contrastive_search.json").write_text(f'{header}, "cases": [\n{lines}\n]}}\n')


def searched(model, prompt: list[int], alpha: float, top_k: int) -> list[int]:
    """The new tokens of one text."""
    inputs = torch.tensor([prompt])
    with torch.no_grad():
        (row,) = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            penalty_alpha=alpha,
            top_k=top_k,
            max_new_tokens=LENGTH,
            eos_token_id=EOS,
            pad_token_id=0,
        ).tolist()
    return row[1:] if model.config.is_encoder_decoder else row[len(prompt) :]


if __name__ == "__main__":
    main()
