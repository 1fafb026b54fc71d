"""The tiny networks of ``examples.FAMILIES`` in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from examples import FAMILIES

FIXTURES = Path(__file__).parent / "fixtures"
VOCAB = 40

BART = ("bart", "blenderbot", "mbart", "pegasus", "marian", "m2m_100")
# Those with an output table of their own.
UNTIED = ("t5_1_1", "mt5", "byt5", "umt5", "umt5_scaled", "madlad", "ul2", "longt5")


def torch_model(family: str, seed: int) -> Any:
    """A random network of transformers whose logits are far from uniform; bfloat16 values."""
    import torch
    import transformers
    from variants import VARIANTS

    name, settings = (FAMILIES | VARIANTS)[family]
    encoder_decoder = "T5" in name or family.startswith((*BART, "switch"))
    kind = name.replace(
        "Config", "ForConditionalGeneration" if encoder_decoder else "ForCausalLM"
    ).replace("GPT2ForCausalLM", "GPT2LMHeadModel")
    kind = kind.replace("Gemma3Text", "Gemma3").replace("Gemma4Text", "Gemma4")
    kind = kind.replace("MarianForConditionalGeneration", "MarianMTModel")
    model = getattr(transformers, kind)(getattr(transformers, name)(**settings)).eval()
    if family in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB, 16))
    draw = np.random.default_rng(seed)
    learned = [x for x in model.named_parameters() if x[1].requires_grad]  # no sinusoids
    held = ("final_logits_bias", "layer_scalar")
    buffers = [x for x in model.named_buffers() if x[0].endswith(held)]
    for name, parameter in (*learned, *buffers):
        spread = {"bias": 0.2, "norm": 0.2, "table": 1.0}.get(_kind(name), 0.3)
        value = draw.normal(0.0, spread, tuple(parameter.shape))
        # The norms of Nemotron and of Gemma 1 to 3 store the distance of their scale from 1.
        stored = not family.startswith(("gemma", "t5gemma", "nemotron")) or "gemma4" in family
        value += 1.0 if _kind(name) == "norm" and stored else 0.0
        parameter.data = torch.tensor(value).bfloat16().float()
    model.tie_weights()
    return unscaled(model) if family == "umt5" else model


def unscaled(model: Any) -> Any:
    """The model with the logits of released UMT5, which transformers 5 scales for a tied output."""
    model.config.tie_word_embeddings = False
    return model


def _kind(name: str) -> str:
    if name.endswith((".bias", "logits_bias")):
        return "bias"
    if name.endswith(("shared.weight", "relative_attention_bias.weight")):
        return "table"
    scale = "norm" in name or ".ln_" in name or "layer_scalar" in name
    return "norm" if scale else "matrix"
