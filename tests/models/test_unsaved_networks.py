"""Networks that no family of the Hugging Face layout has."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from families import FIXTURES

from decoding_jax.models.checkpoint import load_model, save_model


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "llama2",
            {"qk_norm": True, "mlp_bias": True},
            "qk_norm: expected False in llama, the nearest family of this layout, got True",
        ),
        (
            "gemma2",
            {"qk_norm": True},
            "qk_norm: expected False in gemma2, the nearest family of this layout, got True",
        ),
        (
            "t5gemma",
            {"qk_norm": True},
            "qk_norm, merged: expected both (T5Gemma 2) or neither (T5Gemma)",
        ),
        (
            "gemma3",
            {"attention_soft_cap": 9.0},
            "attention_soft_cap: expected None in gemma3_text, the nearest family of this layout",
        ),
        (
            "gemma4",
            {"out_bias": True},
            "qkv_bias, out_bias, mlp_bias: expected qkv_bias = out_bias and no mlp_bias",
        ),
        (
            "gemma4",
            {"num_layers": 1},
            "window_pattern: expected a last layer without the window, got (True, False) for 1",
        ),
        (
            "gemma3",
            {"mlp_bias": True},
            "mlp_bias: expected False in gemma3_text, the nearest family of this layout, got True",
        ),
    ],
)
def test_networks_of_no_family_are_not_saved(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = load_model(FIXTURES / family)
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, **changes))
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        save_model(model, tmp_path)
