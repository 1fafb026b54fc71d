"""What the benchmarks run beside this library: the embedded model in ``transformers``."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoding_jax.text import embedded


def transformers_t5(name: str) -> Any:
    """The embedded model of this name, in float32 on as many threads as there are cores."""
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration.from_pretrained(embedded()[name]).float().eval()


def torch_inputs(ids: np.ndarray) -> dict[str, Any]:
    """Inputs ``[B, P]`` without padding, as ``generate`` of ``transformers`` takes them."""
    import torch

    inputs = torch.from_numpy(ids.astype(np.int64))
    return {"inputs": inputs, "attention_mask": torch.ones_like(inputs)}
